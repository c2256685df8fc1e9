// read_exact: the repository's only loop around short reads.
//
// Interruptions (EINTR), refusals (EAGAIN, with a growing pause), read errors (EIO, three times) and one stale handle
// (ESTALE: the file is reopened if it is the same) are gone through; everything else is an error that names the file
// and the bytes. Thread-safe as far as `out` is one thread's.
#pragma once

#include <cstdint>
#include <span>

#include "io/file.h"
#include "io/read_backend.h"
#include "lading/result.h"

namespace lading::io {

/// Fills `out` from `offset_bytes` on, or fails; never less. The end of the file is an error.
Result<void> read_exact(const File& file, ReadBackend& backend, std::uint64_t offset_bytes, std::span<char> out);

}  // namespace lading::io
