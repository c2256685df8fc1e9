#include "plan/words.h"

#include <fmt/format.h>

#include "base/text.h"

namespace lading::plan {

using layout::CutKind;

std::string cut_words(const layout::Cut& cut, const layout::Mesh& mesh) {
  std::string over;
  for (const std::size_t axis : cut.axes) {
    over += fmt::format("{}{}", over.empty() ? "" : "+", escape(mesh.axes()[axis].name));
  }
  const std::uint64_t parts = mesh.group_size(cut.axes);
  switch (cut.kind) {
    case CutKind::kShard: return fmt::format("dim {} in {} chunks over {}", cut.dim, parts, over);
    case CutKind::kStridedShard:
      return fmt::format("each of {} groups of dim {} in {} chunks over {}", cut.split_factor, cut.dim, parts, over);
    case CutKind::kFlat: return fmt::format("flattened, padded and cut into {} equal parts over {}", parts, over);
    case CutKind::kFlatGroup:
      return fmt::format("in the shared buffer {} from element {}, which is cut into {} parts over {}",
                         quote(cut.flat_parameter), cut.group_offset_elems, parts, over);
    case CutKind::kOwner: {
      std::string owners;
      for (const std::uint64_t owner : cut.owners) owners += fmt::format("{}{}", owners.empty() ? "" : ", ", owner);
      return fmt::format("only on {} of {}", owners, over);
    }
  }
  return "unknown";
}

}  // namespace lading::plan
