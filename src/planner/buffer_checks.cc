#include "planner/buffer_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/element_bytes.h"
#include "layout/region.h"
#include "planner/work_out.h"

namespace lading::planner {
namespace {

using layout::Cut;
using layout::CutKind;
using layout::Region;

// Packed tensors that more ranks than this have different parts of are not looked at one by one.
constexpr std::uint64_t kMostDifferingRanks = std::uint64_t{1} << 16;

// The ranks on which a tensor's parts may differ: owners only, and no seats that chunks do not reach. The first one has
// the largest part.
class DifferingRanks {
 public:
  DifferingRanks(const Shape& shape, const std::vector<Cut>& cuts, const layout::Mesh& mesh) : mesh_(mesh) {
    for (const Cut& cut : cuts) {
      Seats& seats = seats_.emplace_back();
      seats.cut = &cut;
      seats.count = count_of(shape, cut, seats);
      count_ = checked_mul(count_, seats.count).value_or(kMaxSize);
    }
  }

  [[nodiscard]] std::uint64_t count() const { return count_; }

  [[nodiscard]] std::uint64_t rank(std::uint64_t place) const {
    std::vector<std::uint64_t> coordinate(mesh_.axes().size(), 0);
    for (const Seats& seats : seats_) {
      std::uint64_t index = place % seats.count;
      place /= seats.count;
      index = seats.cut->kind == CutKind::kOwner ? seats.cut->owners[index] : index + seats.first;
      for (auto axis = seats.cut->axes.rbegin(); axis != seats.cut->axes.rend(); ++axis) {
        coordinate[*axis] = index % mesh_.axes()[*axis].size;
        index /= mesh_.axes()[*axis].size;
      }
    }
    std::uint64_t rank = 0;
    for (std::size_t axis = 0; axis < coordinate.size(); ++axis) {
      rank = rank * mesh_.axes()[axis].size + coordinate[axis];
    }
    return rank;
  }

 private:
  struct Seats {
    const Cut* cut = nullptr;
    std::uint64_t first = 0;
    std::uint64_t count = 1;
  };

  // Chunks have an element or more, so seats behind as many as there are elements have nothing.
  [[nodiscard]] std::uint64_t count_of(const Shape& shape, const Cut& cut, Seats& seats) const {
    const std::uint64_t group = mesh_.group_size(cut.axes);
    const auto at_most = [&](std::uint64_t elems) { return std::max<std::uint64_t>(1, std::min(group, elems)); };
    switch (cut.kind) {
      case CutKind::kOwner: return cut.owners.size();
      case CutKind::kShard:
      case CutKind::kStridedShard: return at_most(shape[cut.dim]);
      case CutKind::kFlat: return at_most(*shape.num_elems());
      case CutKind::kFlatGroup: break;
    }
    const std::uint64_t part = cut.group_elems / group + (cut.group_elems % group == 0 ? 0 : 1);
    const std::uint64_t elems = *shape.num_elems();
    if (part == 0 || elems == 0) return 1;
    seats.first = cut.group_offset_elems / part;
    return (cut.group_offset_elems + elems - 1) / part - seats.first + 1;
  }

  const layout::Mesh& mesh_;
  std::vector<Seats> seats_;
  std::uint64_t count_ = 1;
};

class BufferCheck {
 public:
  BufferCheck(const Decisions& decisions, const layout::Layout& layout, Regions& regions)
      : decisions_(decisions), layout_(layout), regions_(regions) {}

  Errors run() {
    const auto& statements = decisions_.plan.statements;
    for (const StatementId i : statements.ids()) {
      if (errors_.is_full()) break;
      for (std::size_t k = 0; k < statements[i].placement.slots.size(); ++k) check_slot(i, k);
    }
    return std::move(errors_);
  }

 private:
  void check_slot(StatementId i, std::size_t k) {
    const Statement& s = decisions_.plan.statements[i];
    const layout::Slot& slot = s.placement.slots[k];
    const bool is_packed = policy::is_packed(s.storage);
    if (slot.cuts.empty() && !is_packed) {
      // Whole on every rank, as most are: there is no region to work out.
      if (const auto bytes = element_bytes(*s.shape.num_elems(), s.storage)) return add_up(s, slot, *bytes, Region());
    }
    const DifferingRanks ranks(s.shape, slot.cuts, layout_.mesh);
    const std::uint64_t largest_on = ranks.rank(0);
    const Region& largest = regions_.of(i, k, largest_on);
    const auto bytes = element_bytes(largest.buffer_elems, s.storage);
    if (!bytes && !is_packed) return refuse_size(s, largest, largest_on);
    if (bytes) add_up(s, slot, *bytes, largest);
    if (is_packed) check_packed(i, k, ranks);
  }

  // Owners are not told apart: what no mesh could hold on one rank is no model's.
  void add_up(const Statement& s, const layout::Slot& slot, std::uint64_t bytes, const Region& largest) {
    if (is_too_much_) return;
    if (!largest.flat_parameter.empty()) {
      const auto cut = std::find_if(slot.cuts.begin(), slot.cuts.end(),
                                    [](const Cut& other) { return other.kind == CutKind::kFlatGroup; });
      if (!flat_parameters_.emplace(cut->flat_parameter, slot.name).second) return;  // it counts once
    }
    const auto sum = checked_add(sum_bytes_, bytes);
    if (sum) {
      sum_bytes_ = *sum;
      return;
    }
    is_too_much_ = true;
    errors_.add(Error(Code::kPlan, "the buffers of the tensors up to this one are too large together")
                    .of_tensor(s.name)
                    .by_rule("R64")
                    .wanted("less than 2^63 bytes")
                    .got(fmt::format("{} bytes, and {} bytes of other tensors", bytes, sum_bytes_))
                    .try_this("Shard the model over more ranks."));
  }

  void check_packed(StatementId i, std::size_t k, const DifferingRanks& ranks) {
    const Statement& s = decisions_.plan.statements[i];
    if (ranks.count() > kMostDifferingRanks) {
      errors_.add(Error(Code::kPlan, "the layout cuts packed elements into too many parts")
                      .of_tensor(s.name)
                      .by_rule("R48")
                      .wanted(fmt::format("at most {}", kMostDifferingRanks))
                      .got(std::to_string(ranks.count()))
                      .try_this("Change its cuts, or replicate this tensor."));
      return;
    }
    for (std::uint64_t place = 0; place < ranks.count(); ++place) {
      const std::uint64_t rank = ranks.rank(place);
      const Region& region = regions_.of(i, k, rank);
      if (ends_at_bytes(i, region)) continue;
      const Region whole = layout::region_of(s.shape, {}, layout_.mesh, 0);
      const bool by_mapping = !ends_at_bytes(i, whole);
      Error error = Error(Code::kPlan, by_mapping ? "the mapping cuts packed elements inside a byte"
                                                  : "the layout cuts packed elements inside a byte")
                        .of_tensor(s.name)
                        .by_rule("R48")
                        .got(fmt::format("a buffer of {} elements of {}", region.buffer_elems, name(s.storage)))
                        .try_this(by_mapping ? "Cut and move whole bytes only, or keep the tensor as it is in the file."
                                             : "Change its cuts, or replicate this tensor.");
      errors_.add(by_mapping ? std::move(error) : with_rank(std::move(error), rank));
      return;  // one rank tells it
    }
  }

  // Memory, the elements that are owned, their place, and every run that is read or compared.
  [[nodiscard]] bool ends_at_bytes(StatementId i, const Region& region) const {
    const DType storage = decisions_.plan.statements[i].storage;
    const std::uint64_t begin = region.flat ? region.flat->buffer_begin : 0;
    for (const std::uint64_t elems : {region.buffer_elems, region.owned_elems(), begin}) {
      if (!element_bytes(elems, storage)) return false;
    }
    const auto can_be = [&](const FilePieces& file) {
      const WorkInputs inputs{file.pieces, file.source_numbers, decisions_.plan.sources, storage};
      return file.source_numbers.empty() || work_out(inputs, region);
    };
    const StatementId head = decisions_.tensors[i].head;
    const auto& compared = decisions_.tensors[head].compared;
    return can_be(decisions_.tensors[head].pieces) && std::all_of(compared.begin(), compared.end(), can_be);
  }

  void refuse_size(const Statement& s, const Region& region, std::uint64_t rank) {
    errors_.add(with_rank(Error(Code::kPlan, "the buffer is too large")
                              .of_tensor(s.name)
                              .by_rule("R64")
                              .wanted("less than 2^63 bytes")
                              .got(fmt::format("a buffer of {} elements of {}", region.buffer_elems, name(s.storage)))
                              .try_this("Use less padding, or change its cuts."),
                          rank));
  }

  static Error with_rank(Error error, std::uint64_t rank) {
    if (rank <= static_cast<std::uint64_t>(std::numeric_limits<int>::max())) error.rank = static_cast<int>(rank);
    return error;
  }

  const Decisions& decisions_;
  const layout::Layout& layout_;
  Regions& regions_;
  std::uint64_t sum_bytes_ = 0;
  bool is_too_much_ = false;
  std::set<std::pair<std::string_view, std::string_view>> flat_parameters_;
  Errors errors_;
};

}  // namespace

Errors check_buffers(const Decisions& decisions, const layout::Layout& layout, Regions& regions) {
  return BufferCheck(decisions, layout, regions).run();
}

}  // namespace lading::planner
