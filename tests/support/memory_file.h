// A file in memory, for tests that need many small ones: a regular file to everybody who reads it.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <span>

#include "io/file.h"

namespace lading::test {

inline io::Fd memory_file(std::span<const std::byte> bytes) {
  io::Fd fd(::memfd_create("lading-test", MFD_CLOEXEC));
  if (::write(fd.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  return fd;
}

}  // namespace lading::test
