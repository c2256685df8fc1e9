#include "planner/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/element_bytes.h"
#include "planner/buffer_checks.h"
#include "planner/decide.h"
#include "planner/quantized/scale_reads.h"
#include "planner/regions.h"
#include "planner/schedule.h"
#include "planner/work_out.h"

namespace lading::planner {
namespace {

// Beside scales, for a thread and its staging buffer.
constexpr std::uint64_t kLeastBufferBytes = 4ULL << 20;
constexpr std::uint64_t kLeastStagingBytes = 32ULL << 20;
// Of the memory beside the tensors, this part may be scales of one batch of reads. Those of two are there at a time.
constexpr std::uint64_t kPartOfABatch = 4;

// Ranks with a GPU each; without any, all of them are taken to share one machine.
std::uint64_t ranks_on_node(const layout::Layout& layout) {
  const layout::DeviceMap& devices = layout.devices;
  const auto per_node = [&]() -> std::uint64_t {
    if (devices.list.empty()) return devices.type == layout::DeviceType::kCpu ? layout.mesh.ranks() : devices.per_node;
    std::set<std::string> distinct;
    for (const layout::Device& device : devices.list) distinct.insert(device.text());
    return distinct.size() == 1 ? devices.list.size() : distinct.size();
  };
  return std::max<std::uint64_t>(1, std::min(per_node(), layout.mesh.ranks()));
}

// The node's budget, divided among its ranks; but none can load with less than the least.
std::uint64_t staging_bytes_of(std::uint64_t budget_bytes, std::uint64_t on_node) {
  return std::min(budget_bytes, std::max(budget_bytes / on_node, kLeastStagingBytes));
}

// The planner's second half: the decisions, worked out for one rank.
class RankPlanner {
 public:
  RankPlanner(const Decisions& decisions, const layout::Layout& layout, Regions& regions, std::uint64_t rank)
      : decisions_(decisions), layout_(layout), regions_(regions), rank_(rank), region_ids_(regions.table().kinds()) {
    plan_.rank = rank;
  }

  RankPlan run() {
    const auto& statements = decisions_.plan.statements;
    plan_.destinations.reserve(statements.size());
    std::map<StatementId, Members> tied;  // by head
    for (Members& members : decisions_.tie_classes()) tied.emplace(members.front(), std::move(members));
    for (const StatementId i : statements.ids()) {
      if (decisions_.tensors[i].head != i) continue;  // it comes with its head
      if (const auto found = tied.find(i); found != tied.end()) {
        add_class(found->second);
        continue;
      }
      for (std::uint32_t k = 0; k < statements[i].placement.slots.size(); ++k) {
        if (regions_.of(i, k, rank_).present) add_destination({i, i, k});
      }
    }
    add_up();
    return std::move(plan_);
  }

 private:
  using Members = std::vector<StatementId>;

  // One destination for each slot. The first member that this rank has there, the head if it has it, gives the
  // destination its name; the others are more names for it (R49).
  void add_class(const Members& members) {
    std::map<std::string_view, DestinationId> holders;  // by slot
    for (const StatementId i : members) {
      const auto& slots = decisions_.plan.statements[i].placement.slots;
      for (std::uint32_t k = 0; k < slots.size(); ++k) {
        if (!regions_.of(i, k, rank_).present) continue;
        const auto [held, is_first] = holders.try_emplace(slots[k].name, DestinationId(plan_.destinations.size()));
        if (is_first) {
          add_destination({i, members.front(), k});
        } else {
          plan_.destinations[held->second].aliases.push_back(i);
        }
      }
    }
  }

  struct Named {
    StatementId statement = 0;
    StatementId head = 0;  // of its tie class
    std::uint32_t slot = 0;
  };

  RegionId region_id(const Named& named) {
    RegionId& id = region_ids_[regions_.kind(named.statement, named.slot)];
    if (id.is_none()) {
      id = RegionId(plan_.regions.size());
      plan_.regions.push_back(regions_.of(named.statement, named.slot, rank_));
    }
    return id;
  }

  void add_destination(Named named) {
    const Statement& s = decisions_.plan.statements[named.statement];
    Destination destination;
    destination.statement = named.statement;
    destination.root = named.head;
    destination.region = region_id(named);
    const layout::Region& region = plan_.regions[destination.region];
    destination.slot = s.placement.slots[named.slot].name;
    destination.device = layout_.device_of(s.placement, rank_).text();
    destination.flat_parameter = region.flat_parameter;
    destination.owned_elems = region.owned_elems();
    destination.buffer_bytes = *element_bytes(region.buffer_elems, s.storage);
    const Provenance provenance = decisions_.plan.statements[named.head].provenance;
    if (provenance == Provenance::kFile) {
      destination.transfers = work_out_file(decisions_.tensors[named.head].pieces, region, s.storage);
      for (const FilePieces& other : decisions_.tensors[named.head].compared) {
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

  struct FlatParameter {
    std::uint64_t buffer_bytes = 0;  // it counts once
    std::uint64_t owned_bytes = 0;   // by its members
  };

  // check_buffers() refused what could overflow here, and packed elements that do not end at a byte.
  void add_up() {
    std::map<std::pair<std::string_view, std::string_view>, FlatParameter> flat_parameters;
    for (const Destination& destination : plan_.destinations) {
      if (destination.flat_parameter.empty()) {
        plan_.owned_bytes += destination.buffer_bytes;
      } else {
        FlatParameter& shared = flat_parameters[{destination.flat_parameter, destination.slot}];
        shared.buffer_bytes = std::max(shared.buffer_bytes, destination.buffer_bytes);
        const DType storage = decisions_.plan.statements[destination.statement].storage;
        shared.owned_bytes += *element_bytes(destination.owned_elems, storage);
      }
    }
    for (const auto& [name, shared] : flat_parameters) {
      plan_.owned_bytes += shared.buffer_bytes;
      plan_.flat_parameter_gap_bytes += shared.buffer_bytes - shared.owned_bytes;
    }
    schedule_reads(decisions_.plan, plan_);
    add_scale_reads(decisions_.plan, plan_);
    if (plan_.read_bytes > 0) {
      plan_.staging_bytes = staging_bytes_of(decisions_.plan.budget_bytes, ranks_on_node(layout_));
    }
    cut_into_batches(decisions_.plan, plan_.staging_bytes / kPartOfABatch, plan_);
    if (const std::uint64_t scale_bytes = plan::scale_memory_bytes(decisions_.plan, plan_); scale_bytes > 0) {
      plan_.staging_bytes =
          std::min(decisions_.plan.budget_bytes, std::max(plan_.staging_bytes, scale_bytes + kLeastBufferBytes));
    }
  }

  const Decisions& decisions_;
  const layout::Layout& layout_;
  Regions& regions_;
  std::uint64_t rank_;
  std::vector<RegionId> region_ids_;  // by kind
  RankPlan plan_;
};

// The minimum wins over the budget, so ranks that share a node may exceed it.
void warn_of_budget(const layout::Layout& layout, Plan& plan) {
  const std::uint64_t on_node = ranks_on_node(layout);
  const std::uint64_t staging_bytes = staging_bytes_of(plan.budget_bytes, on_node);
  if (plan.sources.empty() || on_node * staging_bytes <= plan.budget_bytes) return;
  plan.warnings.add(Error(Code::kPlan, "the ranks of a node may need more host memory than the budget")
                        .by_rule("R64")
                        .wanted(fmt::format("at most {} bytes (\"budget_bytes\")", plan.budget_bytes))
                        .got(fmt::format("{} bytes: {} ranks of {} bytes, the minimum for a rank",
                                         on_node * staging_bytes, on_node, staging_bytes))
                        .try_this(fmt::format("Set \"budget_bytes\": {}.", on_node * staging_bytes)));
}

void check_scale_memory(const Plan& plan, const RankPlan& rank, Errors& errors) {
  const std::uint64_t scale_bytes = plan::scale_memory_bytes(plan, rank);
  if (scale_bytes == 0 || scale_bytes < plan.budget_bytes) return;
  errors.add(Error(Code::kPlan, "the scales of quantized tensors need more host memory than the budget")
                 .on_rank(static_cast<int>(rank.rank))
                 .by_rule("R64")
                 .wanted(fmt::format("less than {} bytes (\"budget_bytes\")", plan.budget_bytes))
                 .got(fmt::format("{} bytes", scale_bytes))
                 .try_this(fmt::format("Set \"budget_bytes\": {}.", scale_bytes + kLeastStagingBytes)));
}

}  // namespace

Result<Plan, Errors> make_plan(const PlanInputs& inputs, const std::vector<std::uint64_t>& ranks) {
  LADING_ASSIGN_OR_RETURN(Decisions decisions, decide(inputs));
  Regions regions(decisions.plan.statements, inputs.layout.mesh);
  Errors errors = check_buffers(decisions, inputs.layout, regions);
  if (!errors.empty()) return fail(std::move(errors));
  std::vector<RankPlan> rank_plans;
  for (const std::uint64_t rank : ranks) {
    if (rank >= inputs.layout.mesh.ranks()) {
      errors.add(Error(Code::kPlan, fmt::format("rank {} does not exist", rank))
                     .wanted(fmt::format("a rank below {}", inputs.layout.mesh.ranks()))
                     .try_this("Correct the rank, or the mesh."));
      continue;
    }
    const auto is_this = [&](const RankPlan& other) { return other.rank == rank; };
    if (std::any_of(rank_plans.begin(), rank_plans.end(), is_this)) continue;  // asked for twice
    rank_plans.push_back(RankPlanner(decisions, inputs.layout, regions, rank).run());
    regions.table().release(rank);
  }
  for (const RankPlan& rank : rank_plans) check_scale_memory(decisions.plan, rank, errors);
  if (!errors.empty()) return fail(std::move(errors));
  warn_of_budget(inputs.layout, decisions.plan);
  decisions.plan.ranks = std::move(rank_plans);
  return std::move(decisions.plan);
}

Result<model::Skeleton, Errors> skeleton_of(const checkpoint::Catalog& catalog) {
  std::vector<model::Tensor> tensors;
  tensors.reserve(catalog.tensors_of(0).size());
  for (const checkpoint::CatalogTensor& found : catalog.tensors_of(0)) {
    model::Tensor& tensor = tensors.emplace_back();
    tensor.name = found.name;
    tensor.shape = found.shape;
    tensor.dtype = found.dtype.value_or(DType::kU8);
    tensor.requires_grad = class_of(tensor.dtype) == DTypeClass::kFloat;  // nobody said that it is frozen
  }
  return model::make_skeleton(std::move(tensors), {}, {});
}

}  // namespace lading::planner
