#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/element_bytes.h"
#include "plan/decide.h"
#include "plan/work_out.h"

namespace lading::plan {
namespace {

constexpr std::uint64_t kLeastStagingBytes = 32ULL << 20;

// The planner's second half: the decisions, worked out for one rank.
class RankPlanner {
 public:
  RankPlanner(const Decisions& decisions, const layout::Layout& layout, std::uint64_t rank)
      : decisions_(decisions), layout_(layout), rank_(rank) {
    plan_.rank = rank;
  }

  RankPlan run() {
    const auto& statements = decisions_.plan.statements;
    plan_.destinations.reserve(statements.size());
    // Of tie classes, by class and slot: where this rank's destination is. The first member that the rank has there
    // gives it its name; the others are more names for it (R49).
    std::map<std::pair<std::uint32_t, std::string_view>, std::size_t> holders;
    std::vector<bool> is_tied(statements.size(), false);  // by head
    for (std::uint32_t i = 0; i < statements.size(); ++i) {
      if (decisions_.class_of[i] != i) is_tied[decisions_.class_of[i]] = true;
    }
    for (std::uint32_t i = 0; i < statements.size(); ++i) {
      const Statement& s = statements[i];
      const std::uint32_t head = decisions_.class_of[i];
      for (const layout::Slot& slot : s.placement.slots) {
        const layout::Region region = layout::region_of(s.shape, slot.cuts, layout_.mesh, rank_);
        if (!region.present) continue;
        if (!is_tied[head]) {
          add_destination({i, head}, slot, region);
          continue;
        }
        const auto [held, is_first] = holders.try_emplace({head, slot.name}, plan_.destinations.size());
        if (is_first) {
          add_destination({i, head}, slot, region);
        } else {
          plan_.destinations[held->second].aliases.push_back(i);
        }
      }
    }
    add_up();
    return std::move(plan_);
  }

 private:
  struct Named {
    std::uint32_t statement = 0;
    std::uint32_t head = 0;  // of its tie class
  };

  void add_destination(Named named, const layout::Slot& slot, const layout::Region& region) {
    const Statement& s = decisions_.plan.statements[named.statement];
    Destination destination;
    destination.statement = named.statement;
    destination.slot = slot.name;
    destination.device = layout_.device_of(s.placement, rank_).text();
    destination.unit = region.unit;
    destination.owned_elems = region.owned_elems();
    destination.buffer_bytes = *element_bytes(region.buffer_elems, s.storage);
    const Provenance provenance = decisions_.plan.statements[named.head].provenance;
    if (provenance == Provenance::kFile) {
      destination.transfers = work_out_file(decisions_.pieces[named.head], region, s.storage);
      for (const FilePieces& other : decisions_.compared[named.head]) {
        destination.comparisons.push_back(work_out_file(other, region, s.storage));
      }
    }
    if (provenance != Provenance::kKept) {
      for (Transfer& fill : padding_fills(region, s.storage)) destination.transfers.push_back(std::move(fill));
    }
    plan_.destinations.push_back(std::move(destination));
  }

  [[nodiscard]] std::vector<Transfer> work_out_file(const FilePieces& file, const layout::Region& region,
                                                    DType storage) const {
    auto transfers = work_out({file.pieces, file.source_numbers, decisions_.plan.sources, storage}, region);
    LADING_CHECK(transfers.has_value());  // check_buffers() refused what could fail
    return *std::move(transfers);
  }

  struct Unit {
    std::uint64_t buffer_bytes = 0;  // it counts once
    std::uint64_t owned_bits = 0;    // by its members
  };

  void add_up() {
    std::vector<const Transfer*> transfers;
    transfers.reserve(plan_.destinations.size());
    std::map<std::pair<std::string_view, std::string_view>, Unit> units;
    const auto add = [&](const std::vector<Transfer>& more) {
      for (const Transfer& transfer : more) transfers.push_back(&transfer);
    };
    for (const Destination& destination : plan_.destinations) {
      add(destination.transfers);
      for (const auto& comparison : destination.comparisons) add(comparison);
      if (destination.unit.empty()) {
        plan_.owned_bytes += destination.buffer_bytes;
      } else {
        Unit& unit = units[{destination.unit, destination.slot}];
        unit.buffer_bytes = std::max(unit.buffer_bytes, destination.buffer_bytes);
        unit.owned_bits += destination.owned_elems * bits(decisions_.plan.statements[destination.statement].storage);
      }
    }
    for (const auto& [name, unit] : units) {
      plan_.owned_bytes += unit.buffer_bytes;
      plan_.unit_gap_bytes += unit.buffer_bytes - unit.owned_bits / 8;
    }
    plan_.reads = reads_of(transfers, decisions_.plan.sources);
    for (const Read& read : plan_.reads) plan_.read_bytes += read.size_bytes * read.count;
    if (plan_.read_bytes > 0) plan_.staging_bytes = staging_bytes();
  }

  // The node's budget, divided among its ranks.
  [[nodiscard]] std::uint64_t staging_bytes() const {
    const std::uint64_t budget = decisions_.plan.budget_bytes;
    const std::uint64_t on_node = std::max<std::uint64_t>(1, std::min(ranks_per_node(), layout_.mesh.ranks()));
    return std::min(budget, std::max(budget / on_node, kLeastStagingBytes));
  }

  // Ranks with a GPU each; without any, all of them are taken to share one machine.
  [[nodiscard]] std::uint64_t ranks_per_node() const {
    const layout::DeviceMap& devices = layout_.devices;
    if (devices.list.empty()) return devices.type == "cpu" ? layout_.mesh.ranks() : devices.per_node;
    std::set<std::string> distinct;
    for (const layout::Device& device : devices.list) distinct.insert(device.text());
    return distinct.size() == 1 ? devices.list.size() : distinct.size();
  }

  const Decisions& decisions_;
  const layout::Layout& layout_;
  std::uint64_t rank_;
  RankPlan plan_;
};

// Almost every verdict is the same on all ranks and fell before. Where a cut meets a byte is not, so tensors
// of packed elements that are cut are worked out for every rank, though only some are asked for.
Errors check_buffers(const Decisions& decisions, const layout::Layout& layout) {
  Errors errors;
  for (std::size_t i = 0; i < decisions.plan.statements.size() && !errors.is_full(); ++i) {
    const Statement& s = decisions.plan.statements[i];
    const std::vector<FilePieces>& compared = decisions.compared[decisions.class_of[i]];
    const auto can_be_cut = [&](const layout::Region& region) {
      const auto can_be = [&](const FilePieces& file) {
        const WorkInputs inputs{file.pieces, file.source_numbers, decisions.plan.sources, s.storage};
        return file.source_numbers.empty() || work_out(inputs, region);
      };
      return can_be(decisions.pieces[decisions.class_of[i]]) && std::all_of(compared.begin(), compared.end(), can_be);
    };
    for (const layout::Slot& slot : s.placement.slots) {
      if (slot.cuts.empty()) continue;  // the tensor whole, whose size was looked at with its dtype
      const bool differs = policy::is_packed(s.storage);
      const std::uint64_t ranks = differs ? layout.mesh.ranks() : 1;
      for (std::uint64_t rank = 0; rank < ranks; ++rank) {
        const layout::Region region = layout::region_of(s.shape, slot.cuts, layout.mesh, rank);
        const bool fits = element_bytes(region.buffer_elems, s.storage).has_value();
        if (fits && (!differs || can_be_cut(region))) continue;
        errors.add(
            Error(Code::kPlan, differs ? "the layout cuts packed elements inside a byte" : "the buffer is too large")
                .of_tensor(s.name)
                .on_rank(static_cast<int>(rank))
                .by_rule(differs ? "R48" : "R64")
                .got(fmt::format("a buffer of {} elements of {}", region.buffer_elems, name(s.storage)))
                .try_this("Cut it otherwise, or replicate this tensor"));
        break;  // one rank tells it
      }
    }
  }
  return errors;
}

}  // namespace

Result<Plan, Errors> make_plan(const PlanInputs& inputs, const std::vector<std::uint64_t>& ranks) {
  LADING_ASSIGN_OR_RETURN(Decisions decisions, decide(inputs));
  Errors errors = check_buffers(decisions, inputs.layout);
  if (!errors.empty()) return fail(std::move(errors));
  std::vector<RankPlan> rank_plans;
  for (const std::uint64_t rank : ranks) {
    if (rank >= inputs.layout.mesh.ranks()) {
      errors.add(Error(Code::kPlan, fmt::format("there is no rank {}", rank))
                     .wanted(fmt::format("a rank below {}", inputs.layout.mesh.ranks())));
      continue;
    }
    const auto is_this = [&](const RankPlan& other) { return other.rank == rank; };
    if (std::any_of(rank_plans.begin(), rank_plans.end(), is_this)) continue;  // asked for twice
    rank_plans.push_back(RankPlanner(decisions, inputs.layout, rank).run());
  }
  if (!errors.empty()) return fail(std::move(errors));
  decisions.plan.ranks = std::move(rank_plans);
  return std::move(decisions.plan);
}

Result<model::Skeleton, Errors> skeleton_of(const checkpoint::Catalog& catalog) {
  std::vector<model::Tensor> tensors;
  tensors.reserve(catalog.tensors.size());
  for (const checkpoint::CatalogTensor& found : catalog.tensors) {
    model::Tensor& tensor = tensors.emplace_back();
    tensor.name = found.name;
    tensor.shape = found.shape;
    tensor.dtype = found.dtype.value_or(DType::kU8);
  }
  return model::make_skeleton(std::move(tensors), {}, {});
}

}  // namespace lading::plan
