#include "planner/quantized/kept_cuts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/quantized.h"
#include "layout/region.h"
#include "mapping/pieces.h"
#include "planner/quantized/dequantize.h"
#include "planner/quantized/packed_weights.h"

namespace lading::planner {
namespace {

using checkpoint::CatalogTensor;
using layout::Cut;
using layout::CutKind;
using Dims = std::vector<std::uint64_t>;

// Numbers of ranks that are tried on each side of the one that does not do.
constexpr std::uint64_t kTried = 64;

// Of a packed payload, in the dims of its key: the elements that share a scale, or an element of zero points, as long
// as groups count up.
Dims block_in_order(const mapping::Expression* leaf, const checkpoint::Catalog& catalog) {
  const Shape& key = catalog.find(leaf->key)->shape;
  Dims block(leaf->shape.begin(), leaf->shape.end() - 1);
  if (leaf->zeros.empty()) return block;
  // The scales' dims are those of the grid of blocks, the codes of an element merged with the last one of the key, and
  // dims of 1 left out or not.
  const std::uint64_t per_element = leaf->decoding.per_element;
  const std::uint64_t in_element = (per_element - 1) / leaf->shape[block.size()] + 1;
  const Shape& scales = catalog.find(leaf->scales)->shape;
  std::size_t dim = 0;
  for (std::size_t s = 0; s < scales.rank(); ++s) {
    if (scales[s] == 1) continue;
    const auto blocks = [&](std::size_t d) {
      return ((key[d] - 1) / block[d] + 1) * (d + 1 == block.size() ? in_element : 1);
    };
    while (dim < block.size() && blocks(dim) == 1) ++dim;
    if (dim == block.size()) break;
    if (s == leaf->decoding.zeros_dim)
      block[dim] *= std::max<std::uint64_t>(1, per_element / (dim + 1 == block.size() ? in_element : 1));
    ++dim;
  }
  return block;
}

// The same. Groups in an order of their own are in no part by themselves: their dim is one block.
Dims block_of_elements(const PackedWeight& weight, const checkpoint::Catalog& catalog) {
  const mapping::Expression* leaf = &weight.expression;
  while (leaf->op != mapping::Op::kDequantize) leaf = &leaf->parts.front();
  Dims block = block_in_order(leaf, catalog);
  const std::size_t dim = leaf->decoding.groups_dim;
  if (!leaf->groups.empty()) block[dim] = std::max<std::uint64_t>(1, catalog.find(leaf->key)->shape[dim]);
  return block;
}

// The cuts whose parts modules compute with.
std::vector<Cut> computing_cuts(const layout::Placement& placement) {
  std::vector<Cut> cuts = placement.slots.front().cuts;
  std::erase_if(cuts, [](const Cut& cut) { return cut.kind != CutKind::kShard && cut.kind != CutKind::kStridedShard; });
  if (!placement.fsdp_group.empty() && !cuts.empty()) cuts.pop_back();
  std::erase_if(cuts, [](const Cut& cut) { return cut.gathered; });
  return cuts;
}

// Keys of which a module has a part.
std::set<std::string> cut_keys(const Decisions& decisions) {
  std::set<std::string> keys;
  for (const StatementId i : decisions.plan.statements.ids()) {
    const Statement& s = decisions.plan.statements[i];
    if (s.provenance != Provenance::kFile || computing_cuts(s.placement).empty()) continue;
    const auto& sources = decisions.tensors[i].pieces.pieces.sources;
    keys.insert(sources.begin(), sources.end());
  }
  return keys;
}

// Where config.json does not say it: as many elements as scales divide evenly. Of dims that scales do not divide so, a
// block begins somewhere else, and a cut is refused rather than right by chance.
std::optional<Dims> assumed_block(const CatalogTensor& payload, const std::vector<const CatalogTensor*>& companions) {
  for (const CatalogTensor* one : companions) {
    const Shape& scales = one->shape;
    if (!checkpoint::QuantizedKeys::is_factor(one->name) || scales.rank() != payload.shape.rank()) continue;
    Dims block;
    for (std::size_t d = 0; d < scales.rank() && scales[d] > 0; ++d) {
      block.push_back(std::max<std::uint64_t>(1, (payload.shape[d] + scales[d] - 1) / scales[d]));
    }
    if (block.size() == scales.rank()) return block;
  }
  return std::nullopt;
}

// Payloads of the base whose scales are read as they are, too, and their blocks.
class KeptBlocks {
 public:
  KeptBlocks(const PlanInputs& inputs, const Decisions& decisions) : catalog_(inputs.catalog) {
    const Plan& plan = decisions.plan;
    const auto is_payload = [](const Source& one) { return !one.scaling && checkpoint::is_payload_dtype(one.dtype); };
    if (std::none_of(plan.sources.begin(), plan.sources.end(), is_payload)) return;
    std::set<std::string_view> read;
    for (const Source& source : plan.sources) {
      if (plan.files[source.file].checkpoint == 0 && !source.scaling) read.insert(source.key);
    }
    const checkpoint::QuantizedKeys keys(catalog_);
    const std::set<std::string> cut = cut_keys(decisions);
    std::optional<PackedWeights> packed;
    for (const Source& source : plan.sources) {
      if (!is_payload(source) || !read.contains(source.key)) continue;
      const CatalogTensor& payload = *catalog_.find(source.key);
      const auto companions = keys.companions_of(payload);
      const auto is_read = [&](const CatalogTensor* one) { return read.contains(one->name); };
      if (companions.empty() || !std::all_of(companions.begin(), companions.end(), is_read)) continue;
      std::optional<Dims> block = assumed_block(payload, companions);
      if (checkpoint::is_low_precision(source.dtype)) {
        const auto known = block_of_scales(catalog_, payload, *companions.front());
        if (known && companions.size() == 1) block = Dims(known->begin(), known->end());
      } else {
        if (!packed) packed = find_packed_weights(catalog_);
        for (const auto& [name, weight] : packed->by_name) {
          if (weight.payload == source.key) block = block_of_elements(weight, catalog_);
        }
      }
      if (!block) continue;
      const auto is_cut = [&](const CatalogTensor* one) { return cut.contains(one->name); };
      if (std::none_of(companions.begin(), companions.end(), is_cut)) free_dims_of_one_block(payload.shape, *block);
      blocks_[source.key] = *std::move(block);
    }
  }

  [[nodiscard]] bool empty() const { return blocks_.empty(); }
  /// Null: it has none, or they are not known.
  [[nodiscard]] const Dims* of(const std::string& key) const {
    const auto found = blocks_.find(key);
    return found == blocks_.end() ? nullptr : &found->second;
  }

 private:
  // Where all ranks have the one scale of a dim, it may be cut anywhere.
  static void free_dims_of_one_block(const Shape& shape, Dims& block) {
    for (std::size_t d = 0; d < block.size(); ++d) {
      if (block[d] >= shape[d]) block[d] = 1;
    }
  }

  const checkpoint::Catalog& catalog_;
  std::map<std::string, Dims> blocks_;
};

// Where parts begin, by dim of the tensor; without the edges of the tensor.
using Boundaries = std::vector<std::set<std::uint64_t>>;

// A rank for each place in the axes that the cuts use.
std::vector<std::uint64_t> ranks_with_shares(const std::vector<Cut>& cuts, const layout::Mesh& mesh) {
  std::set<std::size_t> used;
  for (const Cut& cut : cuts) used.insert(cut.axes.begin(), cut.axes.end());
  std::vector<std::uint64_t> ranks{0};
  std::uint64_t stride = 1;
  for (std::size_t a = mesh.axes().size(); a-- > 0;) {
    const std::uint64_t size = mesh.axes()[a].size;
    const std::size_t before = used.contains(a) ? ranks.size() : 0;
    for (std::uint64_t i = 1; i < size && before > 0; ++i) {
      for (std::size_t r = 0; r < before; ++r) ranks.push_back(ranks[r] + i * stride);
    }
    stride *= size;
  }
  return ranks;
}

Boundaries boundaries_of(const Shape& shape, const std::vector<Cut>& cuts, const layout::Mesh& mesh) {
  Boundaries found(shape.rank());
  for (const std::uint64_t rank : ranks_with_shares(cuts, mesh)) {
    const layout::Region region = layout::region_of(shape, cuts, mesh, rank);
    for (std::size_t d = 0; d < region.runs.size(); ++d) {
      for (const layout::Run& run : region.runs[d]) {
        for (const std::uint64_t at : {run.begin, run.begin + run.size}) {
          if (at > 0 && at < shape[d]) found[d].insert(at);
        }
      }
    }
  }
  return found;
}

// A boundary between two elements of one block.
struct Straddle {
  std::size_t dim = 0;  // of the tensor
  std::uint64_t at = 0;
  const std::string* key = nullptr;
};

bool are_of_one_block(const mapping::Piece& a, const mapping::Piece& b, const Dims& block) {
  for (std::size_t d = 0; d < block.size(); ++d) {
    if (a.source_origin[d] / block[d] != b.source_origin[d] / block[d]) return false;
  }
  return true;
}

std::optional<Straddle> find_straddle(const FilePieces& file, const KeptBlocks& blocks, const Boundaries& boundaries) {
  for (const mapping::Piece& piece : file.pieces.pieces) {
    const std::string* const key = piece.is_fill() ? nullptr : &file.pieces.sources[piece.source];
    const Dims* const block = key == nullptr ? nullptr : blocks.of(*key);
    if (block == nullptr) continue;
    for (std::size_t d = 0; d < boundaries.size(); ++d) {
      for (const std::uint64_t at : boundaries[d]) {
        const auto before = mapping::clip(piece, d, at - 1, at);
        const auto behind = mapping::clip(piece, d, at, at + 1);
        const bool is_within = before.size() == 1 && behind.size() == 1;  // of a piece, the two lie side by side
        if (is_within && are_of_one_block(before.front(), behind.front(), *block)) return Straddle{d, at, key};
      }
    }
  }
  return std::nullopt;
}

class KeptCutCheck {
 public:
  KeptCutCheck(const PlanInputs& inputs, const Decisions& decisions)
      : inputs_(inputs), decisions_(decisions), blocks_(inputs, decisions) {}

  Errors run() {
    Errors errors;
    for (const StatementId i : decisions_.plan.statements.ids()) {
      const Statement& s = decisions_.plan.statements[i];
      const Decision& decision = decisions_.tensors[i];
      if (blocks_.empty() || s.provenance != Provenance::kFile || decision.is_refused || decision.is_misplaced)
        continue;
      const std::vector<Cut> cuts = computing_cuts(s.placement);
      if (cuts.empty()) continue;
      if (const auto found = find_straddle(decision.pieces, blocks_, boundaries(s.shape, cuts, inputs_.layout.mesh)))
        errors.add(error_of(s, decision.pieces, cuts, *found));
    }
    return errors;
  }

 private:
  struct Known {
    Shape shape;
    std::vector<Cut> cuts;
    Boundaries boundaries;
  };

  // Models have few shapes, and many tensors of each.
  const Boundaries& boundaries(const Shape& shape, const std::vector<Cut>& cuts, const layout::Mesh& mesh) {
    const auto is_same = [&](const Known& one) { return one.shape == shape && one.cuts == cuts; };
    auto found = std::find_if(known_.begin(), known_.end(), is_same);
    if (found == known_.end()) found = known_.insert(found, Known{shape, cuts, boundaries_of(shape, cuts, mesh)});
    return found->boundaries;
  }

  // With another number of ranks in the axes of the cut.
  [[nodiscard]] bool would_do(const Statement& s, const FilePieces& pieces, const Cut& cut, std::uint64_t ranks) const {
    Cut alone = cut;
    alone.axes = {0};
    const layout::Mesh mesh({{"ranks", ranks}});
    return !find_straddle(pieces, blocks_, boundaries_of(s.shape, {alone}, mesh));
  }

  // The nearest numbers of ranks that do, where one cut is all there is.
  [[nodiscard]] std::string remedy(const Statement& s, const FilePieces& pieces, const std::vector<Cut>& cuts) const {
    std::vector<std::uint64_t> good;
    if (cuts.size() == 1) {
      const std::uint64_t ranks = inputs_.layout.mesh.group_size(cuts.front().axes);
      for (std::uint64_t n = ranks - 1; n > 0 && n + kTried > ranks && good.empty(); --n) {
        if (would_do(s, pieces, cuts.front(), n)) good.push_back(n);
      }
      const std::size_t fewer = good.size();
      const std::uint64_t most = std::min(ranks + kTried, s.shape[cuts.front().dim]);
      for (std::uint64_t n = ranks + 1; n <= most && good.size() == fewer; ++n) {
        if (would_do(s, pieces, cuts.front(), n)) good.push_back(n);
      }
    }
    const std::string where =
        good.empty() ? "Replicate it"
                     : fmt::format("Cut it over {} {}", fmt::join(good, " or "), good.back() == 1 ? "rank" : "ranks");
    return where + ", or load it dequantized into a model of ordinary floats.";
  }

  [[nodiscard]] Error error_of(const Statement& s, const FilePieces& pieces, const std::vector<Cut>& cuts,
                               const Straddle& found) const {
    const Dims& block = *blocks_.of(*found.key);
    std::string axes;
    for (const Cut& cut : cuts) {
      for (const std::size_t axis : cut.axes) {
        const layout::Axis& one = inputs_.layout.mesh.axes()[axis];
        axes += fmt::format("{}{}={}", axes.empty() ? "" : ",", one.name, one.size);
      }
    }
    return Error(Code::kLayout,
                 "a rank's part of this quantized tensor begins inside a block: two ranks need the block's scale, "
                 "but a cut gives it to one")
        .of_tensor(s.name)
        .by_rule("R48")
        .wanted(fmt::format("parts of whole blocks of {} ({})", Shape(block).text(), quote(*found.key)))
        .got(fmt::format("a part that begins at {} of dim {}, on {}", found.at, found.dim, axes))
        .try_this(remedy(s, pieces, cuts));
  }

  const PlanInputs& inputs_;
  const Decisions& decisions_;
  KeptBlocks blocks_;
  std::vector<Known> known_;
};

}  // namespace

Errors check_kept_cuts(const PlanInputs& inputs, const Decisions& decisions) {
  return KeptCutCheck(inputs, decisions).run();
}

}  // namespace lading::planner
