#include "lading/provenance.h"

namespace lading {

std::string_view word(Provenance provenance) {
  switch (provenance) {
    case Provenance::kFile: return "file";
    case Provenance::kHost: return "host";
    case Provenance::kCall: return "call";
    case Provenance::kFill: return "fill";
    case Provenance::kRandom: return "random";
    case Provenance::kAlias: return "alias";
    case Provenance::kKept: return "kept";
  }
  return "unknown";
}

}  // namespace lading
