// ReadBackend: one way to get bytes of a file into memory; and those that there are.
//
//   pread          through the page cache, one system call                         (default)
//   direct         past the page cache (O_DIRECT), one system call
//   uring          through the page cache, several requests in flight at once (io_uring)
//   uring_direct   past the page cache, several requests in flight at once
//
// Every backend takes any offset, length and address. Thread-safe: many threads call one backend at once. When
// read_some returns, nothing writes into `out` any more, whatever it returned. Short reads are normal; only
// io/read_exact.h loops over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "io/file.h"
#include "io/notes.h"

namespace lading::io {

struct ReadSome {
  std::size_t bytes = 0;  ///< read; 0 without an error is the end of the file
  int error = 0;          ///< an errno, or 0
};

class ReadBackend {
 public:
  virtual ~ReadBackend() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Reads up to out.size() bytes. What stands in `out` past the bytes that were read is unspecified.
  [[nodiscard]] virtual ReadSome read_some(const File& file, std::uint64_t offset_bytes, std::span<char> out) = 0;
};

class PreadBackend final : public ReadBackend {
 public:
  [[nodiscard]] std::string_view name() const override { return "pread"; }
  [[nodiscard]] ReadSome read_some(const File& file, std::uint64_t offset_bytes, std::span<char> out) override;
};

/// O_DIRECT moves whole blocks of a file between addresses that are multiples of it. Readers that choose their
/// addresses congruent to the file offset modulo this save a copy.
inline constexpr std::size_t kDirectBlockBytes = 4096;

// The notes must outlive the backends: a fallback to buffered reads, or to pread, is noted there once.
[[nodiscard]] std::unique_ptr<ReadBackend> make_direct_backend(Notes& notes);
[[nodiscard]] std::unique_ptr<ReadBackend> make_uring_backend(Notes& notes);
[[nodiscard]] std::unique_ptr<ReadBackend> make_uring_direct_backend(Notes& notes);

}  // namespace lading::io
