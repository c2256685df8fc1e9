// Stands in for uring_transport.cc where liburing is absent or not wanted (LADING_WITH_URING).
#include "io/transport.h"

namespace lading::io {

std::unique_ptr<Transport> make_uring_transport(Notes& notes, UringOptions) {
  notes.once("uring", "io_uring is not in this build; read by preadv instead");
  return make_pread_transport();
}

std::optional<int> try_ring(const UringOptions&) { return std::nullopt; }

}  // namespace lading::io
