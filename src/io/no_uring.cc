// Stands in for uring_transport.cc where liburing is absent or not wanted (LADING_WITH_URING).
#include "io/transport.h"

namespace lading::io {

std::unique_ptr<Transport> make_uring_transport(Notes& notes, UringOptions) {
  notes.once("uring", "this build has no io_uring; lading reads with preadv");
  return make_pread_transport();
}

std::optional<int> try_ring(const UringOptions&) { return std::nullopt; }

}  // namespace lading::io
