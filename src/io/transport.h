// Transport: the system calls below the backends: bytes of a descriptor into segments of memory.
//
// Knows nothing of files, alignment or retries. Thread-safe. When `read` returns, the kernel writes nothing into the
// segments any more.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "io/notes.h"
#include "io/read_backend.h"

struct io_uring;

namespace lading::io {

class Transport {
 public:
  virtual ~Transport() = default;
  /// Fills the segments in order from `offset_bytes` on; returns how many bytes arrived without a gap.
  [[nodiscard]] virtual ReadSome read(int fd, std::uint64_t offset_bytes, std::span<const iovec> segments) = 0;
};

[[nodiscard]] std::unique_ptr<Transport> make_pread_transport();

struct UringOptions {
  /// Rings alive at once; readers beyond this many use preadv.
  std::size_t max_rings = 64;
  /// Sets up a ring like io_uring_queue_init(entries, ring, flags); null means that one. For tests.
  int (*queue_init)(unsigned entries, ::io_uring* ring, unsigned flags) = nullptr;
};

/// Without io_uring (an old kernel, a sandbox, a build without it) it reads by preadv, and notes that once.
[[nodiscard]] std::unique_ptr<Transport> make_uring_transport(Notes& notes, UringOptions options);

/// Sets up a ring as a reader does, and takes it down: 0, or the errno. Nothing: io_uring is not in this build.
[[nodiscard]] std::optional<int> try_ring(const UringOptions& options);

/// Backends over a transport. With O_DIRECT, what the kernel refuses is read buffered, and noted once.
[[nodiscard]] std::unique_ptr<ReadBackend> make_buffered_over(std::unique_ptr<Transport> transport,
                                                              std::string_view name);
[[nodiscard]] std::unique_ptr<ReadBackend> make_direct_over(std::unique_ptr<Transport> transport, Notes& notes,
                                                            std::string_view name);

}  // namespace lading::io
