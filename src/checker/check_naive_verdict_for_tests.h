// For tests: whether a plan is good, by brute force over elements and bytes (see check_naive_for_tests.h).
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checker/check_naive_destination_for_tests.h"
#include "checker/check_naive_for_tests.h"
#include "checker/check_naive_reads_for_tests.h"
#include "checker/check_naive_region_for_tests.h"
#include "checker/check_naive_scales_for_tests.h"
#include "planner/value_checks.h"

namespace lading::checker::naive {

class Verdict {
 public:
  explicit Verdict(const Plan& plan) : plan_(plan) {}

  bool good() {
    Indices sizes;
    for (const auto& axis : plan_.mesh.axes()) sizes.push_back(axis.size);
    if (product(sizes) == 0) return false;
    if (!sources_good() || !statements_good() || !calls_good() || !units_good()) return false;
    std::set<std::uint64_t> seen;
    for (const RankPlan& rank : plan_.ranks) {
      if (rank.rank >= product(sizes) || !seen.insert(rank.rank).second || !rank_good(rank)) return false;
    }
    return true;
  }

 private:
  using Names = std::map<std::string, StatementId>;

  bool sources_good() const {
    std::set<std::pair<std::uint32_t, std::string>> names;
    IndexedVector<FileId, std::vector<bool>> used;
    for (const PlannedFile& file : plan_.files) {
      if (!names.emplace(file.checkpoint, file.name).second) return false;
      used.emplace_back(file.size_bytes, false);
    }
    std::set<std::pair<std::uint32_t, std::string>> keys;
    for (const Source& source : plan_.sources) {
      if (!plan_.files.has(source.file) || !keys.emplace(checkpoint_of(source, plan_), source.key).second) return false;
      if (source.bytes.begin > source.bytes.end || source.bytes.end > plan_.files[source.file].size_bytes) return false;
      if (product(indices_of(source.shape)) * width_of(source) != source.bytes.size_bytes() * 8) return false;
      for (std::uint64_t b = source.bytes.begin; b < source.bytes.end; ++b) {
        if (used[source.file][b]) return false;
        used[source.file][b] = true;
      }
    }
    return std::all_of(plan_.sources.begin(), plan_.sources.end(),
                       [&](const Source& source) { return !source.scaling || scaling_good(plan_, source); });
  }

  static bool is_registered(const Statement& s) {
    return s.kind != model::Kind::kAttribute && s.kind != model::Kind::kExtraState;
  }

  const Statement& root_of(const Statement& s) const {
    return s.provenance == Provenance::kAlias ? plan_.statements[names_.at(s.alias_of)] : s;
  }

  static std::vector<layout::Cut> without_owners(std::vector<layout::Cut> cuts) {
    std::erase_if(cuts, [](const layout::Cut& c) { return c.kind == layout::CutKind::kOwner; });
    return cuts;
  }

  // That a cut is even is a promise, not a place.
  static std::vector<layout::Cut> places(std::vector<layout::Cut> cuts) {
    cuts = without_owners(std::move(cuts));
    for (layout::Cut& cut : cuts) cut.even = false;
    return cuts;
  }

  static std::vector<std::string> slot_names(const Statement& s) {
    std::vector<std::string> names;
    for (const auto& slot : s.placement.slots) names.push_back(slot.name);
    return names;
  }

  static const layout::Slot* slot_of(const Statement& s, const std::string& name) {
    for (const auto& slot : s.placement.slots) {
      if (slot.name == name) return &slot;
    }
    return nullptr;
  }
  std::set<std::string> slots_of_class(const Statement& root) const {
    std::set<std::string> names;
    for (const Statement& member : plan_.statements) {
      if (&root_of(member) != &root) continue;
      for (const std::string& name : slot_names(member)) names.insert(name);
    }
    return names;
  }

  bool is_on(const Statement& s, std::uint64_t rank) const {
    return std::any_of(s.placement.slots.begin(), s.placement.slots.end(), [&](const layout::Slot& slot) {
      const auto memory = memory_of(s, slot, plan_.mesh, rank);
      return memory && memory->present;
    });
  }

  // Alike in every slot in which any rank of the mesh has both; of different slots, no rank may have both.
  bool placed_alike(const Statement& a, const Statement& b) const {
    if (slot_names(a) != slot_names(b)) {
      for (std::uint64_t rank = 0; rank < plan_.mesh.ranks(); ++rank) {
        if (is_on(a, rank) && is_on(b, rank)) return false;
      }
      return true;
    }
    for (std::size_t slot = 0; slot < a.placement.slots.size(); ++slot) {
      const bool same = a.placement.device == b.placement.device && a.placement.fsdp_group == b.placement.fsdp_group &&
                        places(a.placement.slots[slot].cuts) == places(b.placement.slots[slot].cuts);
      for (std::uint64_t rank = 0; rank < plan_.mesh.ranks() && !same; ++rank) {
        const auto one = memory_of(a, a.placement.slots[slot], plan_.mesh, rank);
        const auto two = memory_of(b, b.placement.slots[slot], plan_.mesh, rank);
        if (one && two && one->present && two->present) return false;
      }
    }
    return true;
  }

  bool castable(const mapping::Expression& e, const Statement& s) const {
    const DType storage = s.storage;
    const std::set<DType> floats = {DType::kF8E5M2, DType::kF8E4M3, DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz,
                                    DType::kF16,    DType::kBF16,   DType::kF32,        DType::kF64};
    const std::map<DType, std::set<DType>> wider = {
        {DType::kU8, {DType::kI16, DType::kU16, DType::kI32, DType::kU32, DType::kI64, DType::kU64}},
        {DType::kU16, {DType::kI32, DType::kU32, DType::kI64, DType::kU64}},
        {DType::kU32, {DType::kI64, DType::kU64}},
        {DType::kI8, {DType::kI16, DType::kI32, DType::kI64}},
        {DType::kI16, {DType::kI32, DType::kI64}},
        {DType::kI32, {DType::kI64}},
    };
    for (const Source* source : leaves_of(e, s.checkpoint)) {
      const DType dtype = source->dtype;
      if (source->scaling) {
        const std::set<DType> scales = {DType::kF8E8M0, DType::kF8E4M3, DType::kF16, DType::kBF16, DType::kF32};
        const Decoding& decoding = source->scaling->decoding;
        if (!decoding.code && (bits(dtype) != 8 || !floats.contains(dtype))) return false;
        if (bits(storage) < 16 || !floats.contains(storage)) return false;
        if (!scales.contains(decoding.scale_dtype.value_or(plan_.sources[source->scaling->scales].dtype))) return false;
        continue;
      }
      if (dtype == storage || (floats.contains(dtype) && floats.contains(storage))) continue;
      if (!wider.contains(dtype) || !wider.at(dtype).contains(storage)) return false;
    }
    return true;
  }
  std::set<DType> dtypes_of(const mapping::Expression& e, std::uint32_t checkpoint) const {
    std::set<DType> dtypes;
    for (const Source* source : leaves_of(e, checkpoint)) dtypes.insert(source->dtype);
    return dtypes;
  }
  // What elements are taken of: not the scales.
  std::vector<const Source*> leaves_of(const mapping::Expression& e, std::uint32_t checkpoint) const {
    std::vector<const Source*> leaves;
    for (const Source& source : plan_.sources) {
      const bool is_leaf = e.op == mapping::Op::kSource || e.op == mapping::Op::kDequantize;
      if (is_leaf && source.key == e.key && checkpoint_of(source, plan_) == checkpoint) leaves.push_back(&source);
    }
    for (const mapping::Expression& part : e.parts) {
      for (const Source* source : leaves_of(part, checkpoint)) leaves.push_back(source);
    }
    return leaves;
  }

  bool statements_good() {
    for (const StatementId s : plan_.statements.ids()) {
      const std::string& name = plan_.statements[s].name;
      if (!names_.empty() && names_.rbegin()->first >= name) return false;
      names_[name] = s;
    }
    for (const Statement& s : plan_.statements) {
      std::set<std::string> slots;
      if (s.placement.slots.empty()) return false;
      for (const auto& slot : s.placement.slots) {
        if (!slots.insert(slot.name).second || !memory_of(s, slot, plan_.mesh, 0)) return false;
      }
      for (const auto& other : s.must_equal) {
        const auto dense = evaluate(other, s.checkpoint, plan_);
        if (!dense || dense->dims != indices_of(s.shape)) return false;
        if (s.provenance != Provenance::kFile || !castable(other, s)) return false;
      }
      if (planner::find_value_problem(s)) return false;
      if (s.provenance == Provenance::kFile && !file_good(s)) return false;
      if (s.provenance == Provenance::kFill) {
        if (s.recipe.kind != model::RecipeKind::kFill) return false;
        if (s.recipe.zero_row && (s.shape.rank() == 0 || *s.recipe.zero_row >= s.shape[0])) return false;
      }
      if (s.provenance == Provenance::kCall && s.recipe.kind != model::RecipeKind::kCall) return false;
      if (s.provenance == Provenance::kRandom &&
          (s.recipe.kind == model::RecipeKind::kFill || s.recipe.kind == model::RecipeKind::kHost ||
           s.recipe.kind == model::RecipeKind::kCall)) {
        return false;
      }
      if (s.provenance != Provenance::kAlias) continue;
      if (!names_.contains(s.alias_of) || s.alias_of == s.name) return false;
      const Statement& root = root_of(s);
      if (std::pair(!is_registered(root), root.name) > std::pair(!is_registered(s), s.name)) return false;
      if (root.provenance == Provenance::kAlias || root.shape != s.shape || root.storage != s.storage ||
          root.compute != s.compute) {
        return false;
      }
      for (const Statement& other : plan_.statements) {
        if (&other == &root || (other.provenance == Provenance::kAlias && other.alias_of == s.alias_of)) {
          if (!placed_alike(other, s)) return false;
        }
      }
    }
    return true;
  }

  bool file_good(const Statement& s) const {
    const auto dense = evaluate(s.expression, s.checkpoint, plan_);
    if (!dense || dense->dims != indices_of(s.shape)) return false;
    if (!castable(s.expression, s)) return false;
    const std::set<DType> dtypes = dtypes_of(s.expression, s.checkpoint);
    return dtypes.size() != 1 || s.checkpoint_dtype == *dtypes.begin();
  }

  bool calls_good() const {
    std::set<std::string> done;
    std::size_t calls = 0;
    for (const Statement& s : plan_.statements) {
      calls += s.provenance == Provenance::kCall ? 1 : 0;
    }
    for (const StatementId s : plan_.call_order) {
      if (!plan_.statements.has(s) || plan_.statements[s].provenance != Provenance::kCall) return false;
      for (const std::string& input : plan_.statements[s].recipe.inputs) {
        if (!names_.contains(input)) return false;
        const Statement& root = root_of(plan_.statements[names_.at(input)]);
        if (root.provenance == Provenance::kCall && !done.contains(root.name)) return false;
      }
      if (!done.insert(plan_.statements[s].name).second) return false;
    }
    return done.size() == calls;
  }

  // Any two parameters of one FSDP2 unit, side by side.
  bool units_good() const {
    const auto cuts_of = [](const Statement& s) { return without_owners(s.placement.slots.front().cuts); };
    const auto is_sharded = [&](const Statement& s) {
      return !cuts_of(s).empty() && cuts_of(s).back().kind == layout::CutKind::kShard;
    };
    for (const Statement& a : plan_.statements) {
      if (a.kind != model::Kind::kParameter || a.placement.fsdp_group.empty()) continue;
      if (is_sharded(a) && cuts_of(a).back().dim != 0 && !cuts_of(a).back().even) return false;
      for (const Statement& b : plan_.statements) {
        if (b.kind != model::Kind::kParameter || a.placement.fsdp_group != b.placement.fsdp_group) continue;
        if (a.placement.device != b.placement.device || is_sharded(a) != is_sharded(b)) return false;
        if (is_sharded(a) && cuts_of(a).back().axes != cuts_of(b).back().axes) return false;
        if (class_of(a.storage) != DTypeClass::kFloat || class_of(b.storage) != DTypeClass::kFloat) continue;
        if (a.compute != b.compute && is_cast_in(a.placement.fsdp_group)) return false;
      }
    }
    return true;
  }

  bool is_cast_in(const std::string& unit) const {
    return std::any_of(plan_.statements.begin(), plan_.statements.end(), [&](const Statement& s) {
      return s.placement.fsdp_group == unit && s.kind == model::Kind::kParameter &&
             class_of(s.storage) == DTypeClass::kFloat && s.storage != s.compute;
    });
  }

  std::string device_of(const Statement& s, std::uint64_t rank) const {
    if (s.placement.device == layout::DeviceRule::kCpu) return "cpu";
    const layout::Device device = plan_.devices.list.empty()
                                      ? layout::Device{plan_.devices.type, rank % plan_.devices.per_node}
                                      : plan_.devices.list[rank];
    return device.type == layout::DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
  }

  // What the destinations of a rank add up to.
  struct Sums {
    using Buffer = std::pair<std::string, std::string>;  // that of a flat parameter, in a slot
    std::map<Buffer, std::uint64_t> shared_bytes;
    std::map<Buffer, std::set<std::uint64_t>> shared_elems;
    std::map<Buffer, std::set<std::string>> shared_facts;
    std::uint64_t owned_bytes = 0;
    std::uint64_t gap_bits = 0;  // below 0 for a while, which 64 bits bear
    std::size_t destinations = 0;
  };

  bool rank_good(const RankPlan& rank) const {
    if (!plan_.devices.list.empty() && rank.rank >= plan_.devices.list.size()) return false;
    if (plan_.devices.list.empty() && plan_.devices.per_node == 0) return false;
    if (rank.staging_bytes > plan_.budget_bytes) return false;

    Sums sums;
    for (const StatementId s : plan_.statements.ids()) {
      if (plan_.statements[s].provenance == Provenance::kAlias) continue;
      for (const std::string& slot : slots_of_class(plan_.statements[s])) {
        if (!slot_good(rank, s, slot, sums)) return false;
      }
    }
    for (const auto& [buffer, bytes] : sums.shared_bytes) {
      sums.owned_bytes += bytes;
      sums.gap_bits += bytes * 8;
    }
    if (sums.gap_bits / 8 != rank.flat_parameter_gap_bytes) return false;
    if (sums.destinations != rank.destinations.size() || sums.owned_bytes != rank.owned_bytes) return false;
    if (!scale_reads_good(rank) || !ReadsVerdict(plan_, rank).good() || !batches_good(rank)) return false;
    return rank.staging_bytes >= memory_of_scales(plan_, rank);
  }

  // One read for each source, in any order.
  bool scale_reads_good(const RankPlan& rank) const {
    const std::vector<ScaleRead> wanted = scale_reads_of(plan_, rank);
    std::vector<ScaleRead> found = rank.scale_reads;
    std::sort(found.begin(), found.end(), [](const ScaleRead& a, const ScaleRead& b) { return a.source < b.source; });
    return found == wanted;
  }

  // One destination for all members of the class that the rank has in this slot, or none for nobody.
  bool slot_good(const RankPlan& rank, StatementId s, const std::string& slot, Sums& sums) const {
    const Statement& root = plan_.statements[s];
    const auto members = members_here(root, slot, rank.rank);
    if (!members) return false;
    if (members->empty()) return true;
    ++sums.destinations;
    if (root.provenance == Provenance::kCall && !inputs_here(root, rank.rank)) return false;
    const Statement& first = plan_.statements[members->front()];
    const layout::Slot& place = *slot_of(first, slot);
    const Destination* found = only_destination(rank, members->front(), slot);
    if (found == nullptr || found->device != device_of(first, rank.rank)) return false;
    std::vector<StatementId> aliases = found->aliases;
    std::sort(aliases.begin(), aliases.end());
    if (aliases != std::vector<StatementId>(members->begin() + 1, members->end())) return false;
    const Memory memory = *memory_of(first, place, plan_.mesh, rank.rank);
    if (!DestinationVerdict(plan_, *found).good(root, memory)) return false;
    if (found->root != s || !rank.regions.has(found->region)) return false;
    if (!region_good(rank.regions[found->region], first.shape, memory)) return false;
    if (rank.regions[found->region].flat_parameter != found->flat_parameter) return false;
    return buffer_good(*found, first, place, sums);
  }

  // Nothing: one of them cannot be as its slot says.
  std::optional<std::vector<StatementId>> members_here(const Statement& root, const std::string& slot,
                                                       std::uint64_t rank) const {
    std::vector<StatementId> members;
    for (const StatementId m : plan_.statements.ids()) {
      const Statement& member = plan_.statements[m];
      if (&root_of(member) != &root || slot_of(member, slot) == nullptr) continue;
      const auto memory = memory_of(member, *slot_of(member, slot), plan_.mesh, rank);
      if (!memory || (memory->present && memory->uneven)) return std::nullopt;
      if (memory->present) members.insert(&member == &root ? members.begin() : members.end(), m);
    }
    return members;
  }

  // None if there are two.
  static const Destination* only_destination(const RankPlan& rank, StatementId statement, const std::string& slot) {
    const Destination* found = nullptr;
    for (const Destination& d : rank.destinations) {
      if (d.statement != statement || d.slot != slot) continue;
      if (found != nullptr) return nullptr;
      found = &d;
    }
    return found;
  }

  // A buffer of its own, or a place in a flat parameter's that nobody else has.
  static bool buffer_good(const Destination& d, const Statement& first, const layout::Slot& place, Sums& sums) {
    std::string shared;
    for (const auto& cut : place.cuts) {
      if (cut.kind != layout::CutKind::kFlatGroup) continue;
      shared = cut.flat_parameter;
      const Sums::Buffer buffer(cut.flat_parameter, place.name);
      sums.shared_bytes[buffer] = d.buffer_bytes;
      sums.gap_bits -= d.owned_elems * bits(first.storage);
      std::string facts = std::to_string(cut.group_elems) + d.device + std::string(name(first.storage));
      for (const std::size_t axis : cut.axes) facts += "," + std::to_string(axis);
      sums.shared_facts[buffer].insert(facts);
      for (std::uint64_t i = 0; i < product(indices_of(first.shape)); ++i) {
        if (!sums.shared_elems[buffer].insert(cut.group_offset_elems + i).second) return false;
      }
      if (sums.shared_facts[buffer].size() > 1) return false;
    }
    if (shared != d.flat_parameter) return false;
    if (shared.empty()) sums.owned_bytes += d.buffer_bytes;
    return true;
  }

  bool inputs_here(const Statement& call, std::uint64_t rank) const {
    for (const std::string& name : call.recipe.inputs) {
      const Statement& input = root_of(plan_.statements[names_.at(name)]);
      bool here = false;
      for (const Statement& member : plan_.statements) {
        if (&root_of(member) != &input) continue;
        for (const auto& slot : member.placement.slots) {
          here = here || memory_of(member, slot, plan_.mesh, rank)->present;
        }
      }
      if (!here) return false;
    }
    return true;
  }

  const Plan& plan_;
  Names names_;
};

inline bool is_good(const Plan& plan) { return Verdict(plan).good(); }

}  // namespace lading::checker::naive
