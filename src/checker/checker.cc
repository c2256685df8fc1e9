#include "checker/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "checker/check_bytes.h"
#include "checker/check_decoding.h"
#include "checker/check_destination.h"
#include "checker/check_geometry.h"
#include "checker/check_offers.h"
#include "checker/check_reads.h"
#include "checker/check_scales.h"
#include "checker/check_statements.h"
#include "checker/check_values.h"
#include "checker/problem.h"

namespace lading::checker {
namespace {

// The device of a rank: listed, or by counting through the node's devices (R34). Nothing if neither says.
std::optional<std::string> device_of(const layout::DeviceMap& devices, std::uint64_t rank) {
  const auto text = [](layout::DeviceType type, std::uint64_t index) {
    return type == layout::DeviceType::kCpu ? std::string("cpu") : fmt::format("cuda:{}", index);
  };
  if (!devices.list.empty()) {
    if (rank >= devices.list.size()) return std::nullopt;
    return text(devices.list[rank].type, devices.list[rank].index);
  }
  if (devices.per_node == 0) return std::nullopt;
  return text(devices.type, rank % devices.per_node);
}

// The members of a shared flat buffer on one rank (FSDP1).
struct FlatParameter {
  const layout::Cut* cut = nullptr;
  DType storage = DType::kF32;
  std::string_view device;
  std::uint64_t buffer_bytes = 0;
  std::vector<std::tuple<std::uint64_t, std::uint64_t, const std::string*>> members;  // elements from, to; name
  std::uint64_t owned_elems = 0;                                                      // of the rank's part, by members
};

// Where the keys lie that a tensor is compared with, of each must_equal (R50).
using CompareTraces = IndexedVector<StatementId, std::vector<Trace>>;

class RankCheck {
 public:
  RankCheck(const Plan& plan, const Facts& facts, const CompareTraces& compared, const RankPlan& rank)
      : plan_(plan),
        facts_(facts),
        compared_(compared),
        rank_(rank),
        seating_(plan.mesh, rank.rank),
        heads_(plan.statements.size()) {}

  Errors run(CheckReport& report, ByteSet& read_by_all) {
    const auto device = device_of(plan_.devices, rank_.rank);
    if (!device) {
      add(problem("the plan has no device for the rank", "R34"));
      return std::move(errors_);
    }
    device_ = *device;
    if (auto read = bytes_read(plan_, rank_)) {
      read_by_all.add(*read);
    } else {
      for (const Error& error : read.error()) add(error);
    }
    sort_out_destinations();
    for (const StatementId s : plan_.statements.ids()) {
      if (facts_.tensors[s].root == s) check_class(s);
    }
    check_flat_parameters();
    check_memory();
    report.bytes_proved += proved_bytes_;
    return std::move(errors_);
  }

 private:
  void add(Error error) {
    if (rank_.rank <= static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
      error.rank = static_cast<int>(rank_.rank);
    }
    errors_.add(std::move(error));
  }
  void add(Error error, const Statement& statement) { add(std::move(error).of_tensor(statement.name)); }

  // Chains the destinations of each tie class together: there are few of each.
  void sort_out_destinations() {
    next_.assign(rank_.destinations.size(), DestinationId::none());
    for (std::size_t i = rank_.destinations.size(); i-- > 0;) {
      const DestinationId id(i);
      const Destination& destination = rank_.destinations[id];
      owned_bytes_ = owned_bytes_
                         ? checked_add(*owned_bytes_, destination.flat_parameter.empty() ? destination.buffer_bytes : 0)
                         : std::nullopt;
      if (!plan_.statements.has(destination.statement)) {
        add(problem("a destination is for a tensor that the plan does not state", "R1"));
        continue;
      }
      DestinationId& head = heads_[facts_.tensors[destination.statement].root];
      next_[id] = std::exchange(head, id);
    }
  }

  // Everything about one tensor, or one tie class, on this rank: a destination per slot, if a member is here.
  void check_class(StatementId root) {
    const Statement& statement = plan_.statements[root];
    const Facts::Tensor& tensor = facts_.tensors[root];
    if (!tensor.sound) return;  // it has been refused already
    std::size_t expected = 0;
    for (const std::string_view slot : slot_names(root)) {
      present_.clear();
      note_present(root, slot);
      for (const StatementId alias : tensor.aliases) {
        if (facts_.tensors[alias].sound) note_present(alias, slot);
      }
      if (present_.empty()) continue;
      ++expected;
      const Destination* found = nullptr;
      for (DestinationId d = heads_[root]; !d.is_none(); d = next_[d]) {
        const Destination& destination = rank_.destinations[d];
        if (destination.slot != slot) continue;
        if (found != nullptr) {
          add(problem("the tensor has two memories where it should have one", "R49").got(quote(found->slot)),
              statement);
          return;
        }
        found = &destination;
      }
      if (found == nullptr) {
        add(problem("the tensor has no memory on this rank", "R1")
                .wanted(fmt::format("a destination in slot {}", quote(slot))),
            plan_.statements[present_.front()]);
        return;
      }
      check_destination(*found, root);
      if (statement.provenance == Provenance::kCall) check_inputs(root);
    }
    std::size_t count = 0;
    for (DestinationId d = heads_[root]; !d.is_none(); d = next_[d]) ++count;
    if (count != expected) {
      add(problem("the tensor has memory that it should not have on this rank", "R1")
              .wanted(std::to_string(expected))
              .got(std::to_string(count)),
          statement);
    }
  }

  static const layout::Slot* find_slot(const Statement& statement, std::string_view name) {
    for (const layout::Slot& slot : statement.placement.slots) {
      if (slot.name == name) return &slot;
    }
    return nullptr;
  }

  void note_present(StatementId s, std::string_view name) {
    const layout::Slot* slot = find_slot(plan_.statements[s], name);
    if (slot != nullptr && is_present(*slot, seating_)) present_.push_back(s);
  }

  // Of all members of the class: those that no rank has together may have different ones.
  [[nodiscard]] InlineVector<std::string_view, 2> slot_names(StatementId root) const {
    InlineVector<std::string_view, 2> names;
    const auto add_names = [&](StatementId s) {
      for (const layout::Slot& slot : plan_.statements[s].placement.slots) {
        if (std::find(names.begin(), names.end(), slot.name) == names.end()) names.push_back(slot.name);
      }
    };
    add_names(root);
    for (const StatementId alias : facts_.tensors[root].aliases) {
      if (facts_.tensors[alias].sound) add_names(alias);
    }
    return names;
  }

  // Under any of its names: a tie class is one value.
  [[nodiscard]] bool is_here(StatementId root) const {
    const auto has_slot = [&](StatementId s) {
      const auto& slots = plan_.statements[s].placement.slots;
      return facts_.tensors[s].sound && std::any_of(slots.begin(), slots.end(), [&](const layout::Slot& slot) {
               return is_present(slot, seating_);
             });
    };
    const auto& aliases = facts_.tensors[root].aliases;
    return has_slot(root) || std::any_of(aliases.begin(), aliases.end(), has_slot);
  }

  // Whatever is computed here needs its inputs here (R66).
  void check_inputs(StatementId root) {
    for (const std::string& name : plan_.statements[root].recipe.inputs) {
      const Statement* input = plan_.find(name);
      if (input == nullptr) continue;  // refused already
      const Facts::Tensor& tensor = facts_.tensors[plan_.statements.id_of(*input)];
      if (!tensor.sound || is_here(tensor.root)) continue;
      add(problem("the tensor is computed on a rank that does not have all of its inputs", "R66").got(quote(name)),
          plan_.statements[present_.front()]);
    }
  }

  void check_destination(const Destination& destination, StatementId root) {
    const Statement& statement = plan_.statements[present_.front()];
    const layout::Slot& slot = *find_slot(statement, destination.slot);  // that it is present was seen by it
    std::vector<StatementId> aliases = destination.aliases;
    std::sort(aliases.begin(), aliases.end());
    if (destination.statement != present_.front() ||
        !std::equal(aliases.begin(), aliases.end(), present_.begin() + 1, present_.end())) {
      add(problem("the members of the tie class on this rank are not those that share the memory", "R49"), statement);
      return;
    }
    const std::string_view device =
        statement.placement.device == layout::DeviceRule::kCpu ? std::string_view("cpu") : device_;
    if (destination.device != device) {
      add(problem("the tensor is on the wrong device", "R34").wanted(std::string(device)).got(destination.device),
          statement);
    }
    auto share = Share::of(statement.shape, slot, seating_);
    if (!share) return add(share.error(), statement);
    // The others have the same share, but may promise that it is even where this one does not.
    for (auto alias = present_.begin() + 1; alias != present_.end(); ++alias) {
      const Statement& other = plan_.statements[*alias];
      const layout::Slot& others = *find_slot(other, destination.slot);
      if (others == slot) continue;
      if (auto same = Share::of(other.shape, others, seating_); !same) return add(same.error(), other);
    }
    const layout::Cut* group = nullptr;
    for (const layout::Cut& cut : slot.cuts) {
      if (cut.kind == layout::CutKind::kFlatGroup) group = &cut;
    }
    if (!check_sizes(destination, *share, statement, group)) return;
    const bool has_region = rank_.regions.has(destination.region) &&
                            rank_.regions[destination.region].flat_parameter == destination.flat_parameter &&
                            share->is(rank_.regions[destination.region], statement.shape);
    if (!has_region) {
      return add(problem("the region is not the rank's share of the tensor", "R53"), statement);
    }
    if (destination.root != root)
      return add(problem("the tensor names a wrong root of its tie class", "R49"), statement);
    if (group != nullptr) note_flat_parameter(destination, statement, *group);

    const Statement& source = plan_.statements[root];
    const DestinationQuestion question{plan_, destination, *share, source, facts_.traces[root], compared_[root]};
    const auto proved = check_transfers(question, offers_);
    if (!proved) return add(proved.error(), statement);
    proved_bytes_ += *proved;
    if (const auto compared = check_comparisons(question, offers_); !compared) add(compared.error(), statement);
  }

  bool check_sizes(const Destination& destination, const Share& share, const Statement& statement,
                   const layout::Cut* group) {
    const auto bytes = bytes_of(share.buffer_elems(), statement.storage);
    const bool sound = bytes == destination.buffer_bytes;
    if (!sound) {
      add(problem("the buffer has the wrong size", "R64")
              .wanted(bytes ? fmt::format("{} bytes", *bytes) : "a whole number of bytes")
              .got(std::to_string(destination.buffer_bytes)),
          statement);
    }
    if (share.owned_elems() != destination.owned_elems) {
      add(problem("the rank's share of the tensor has the wrong size", "R41")
              .wanted(fmt::format("{} elements", share.owned_elems()))
              .got(std::to_string(destination.owned_elems)),
          statement);
    }
    if (destination.flat_parameter != (group == nullptr ? "" : group->flat_parameter)) {
      add(problem("the tensor is in the wrong shared buffer", "R49").got(quote(destination.flat_parameter)), statement);
      return false;
    }
    return sound;
  }

  void note_flat_parameter(const Destination& destination, const Statement& statement, const layout::Cut& cut) {
    FlatParameter& shared =
        flat_parameters_[std::pair(std::string_view(destination.flat_parameter), std::string_view(destination.slot))];
    if (shared.cut == nullptr) {
      shared = {&cut, statement.storage, destination.device, destination.buffer_bytes, {}, 0};
    } else if (shared.cut->group_elems != cut.group_elems || shared.cut->axes != cut.axes ||
               shared.storage != statement.storage || shared.device != destination.device) {
      add(problem(fmt::format("the members of the flat buffer {} disagree about it", quote(destination.flat_parameter)),
                  "R52"),
          statement);
    }
    shared.owned_elems += destination.owned_elems;
    const std::uint64_t elems = *statement.shape.num_elems();
    shared.members.emplace_back(cut.group_offset_elems, cut.group_offset_elems + elems, &statement.name);
  }

  // Each member is at its place; so bytes have two writers only if places overlap.
  void check_flat_parameters() {
    for (auto& [name, shared] : flat_parameters_) {
      owned_bytes_ = owned_bytes_ ? checked_add(*owned_bytes_, shared.buffer_bytes) : std::nullopt;
      const auto owned = bytes_of(shared.owned_elems, shared.storage);
      if (owned && *owned <= shared.buffer_bytes) gap_bytes_ += shared.buffer_bytes - *owned;
      std::sort(shared.members.begin(), shared.members.end());
      std::uint64_t end = 0;
      for (const auto& [from, to, tensor] : shared.members) {
        if (from < end && from < to) {
          add(problem(fmt::format("two tensors overlap in the flat buffer {}", quote(name.first)), "R11")
                  .of_tensor(*tensor));
        }
        end = std::max(end, to);
      }
    }
  }

  void check_memory() {
    if (owned_bytes_ != rank_.owned_bytes) {
      add(problem("the buffers do not add up to what the plan states", "R64")
              .wanted(owned_bytes_ ? std::to_string(*owned_bytes_) : "less than 2^63")
              .got(std::to_string(rank_.owned_bytes)));
    }
    if (gap_bytes_ != rank_.flat_parameter_gap_bytes) {
      add(problem("the gaps of shared buffers do not add up to what the plan states", "R56")
              .wanted(std::to_string(gap_bytes_))
              .got(std::to_string(rank_.flat_parameter_gap_bytes)));
    }
    if (rank_.staging_bytes > plan_.budget_bytes) {
      add(problem("the rank needs more memory beside its tensors than it may have", "R64")
              .wanted(fmt::format("at most {}", plan_.budget_bytes))
              .got(std::to_string(rank_.staging_bytes)));
    }
  }

  const Plan& plan_;
  const Facts& facts_;
  const CompareTraces& compared_;
  const RankPlan& rank_;
  Seating seating_;
  std::string device_;
  IndexedVector<StatementId, DestinationId> heads_;   // the first destination of a root's class
  IndexedVector<DestinationId, DestinationId> next_;  // the next of its class
  std::vector<StatementId> present_;
  std::map<std::pair<std::string_view, std::string_view>, FlatParameter> flat_parameters_;
  Offers offers_;
  std::optional<std::uint64_t> owned_bytes_ = 0;
  std::uint64_t gap_bytes_ = 0;
  std::uint64_t proved_bytes_ = 0;
  Errors errors_;
};

// Of tensors that hold so far. Only what is read from a file is compared with other keys, cast as it is (R50).
CompareTraces check_compared(const Plan& plan, Facts& facts, Errors& errors) {
  CompareTraces traces(plan.statements.size());
  std::optional<SourceIndex> index;
  for (const StatementId s : plan.statements.ids()) {
    const Statement& statement = plan.statements[s];
    if (statement.must_equal.empty() || !facts.tensors[s].sound) continue;
    const auto refuse = [&](Error error) {
      facts.tensors[s].sound = false;
      errors.add(std::move(error).of_tensor(statement.name));
    };
    if (statement.provenance != Provenance::kFile) {
      refuse(problem("the tensor is compared with a key, but no file has it", "R50"));
      continue;
    }
    if (!index) index.emplace(plan);
    for (const mapping::Expression& other : statement.must_equal) {
      auto trace = Trace::of(other, statement.checkpoint, *index, plan.sources);
      if (!trace) {
        refuse(trace.error());
        break;
      }
      const auto& sources = trace->sources();
      // A source that is refused is not refused again, but nothing can be compared with it either.
      const bool usable = std::all_of(sources.begin(), sources.end(), [&](SourceId k) {
        const Source& source = plan.sources[k];
        return plan.files.has(source.file) && source.bytes.satisfies_invariants() &&
               source.bytes.end <= plan.files[source.file].size_bytes &&
               size_of_source(source) == source.bytes.size_bytes();
      });
      if (!usable) facts.tensors[s].sound = false;
      const bool castable = std::all_of(sources.begin(), sources.end(), [&](SourceId k) {
        return values_fit(plan, plan.sources[k], statement.storage);
      });
      if (!castable) refuse(problem("a key that must be equal cannot be cast to the tensor's dtype", "R50"));
      traces[s].push_back(*std::move(trace));
    }
  }
  return traces;
}

}  // namespace

Result<CheckReport, Errors> check_plan(const Plan& plan) {
  Errors errors;
  if (auto checked = check_axes(plan.mesh); !checked) return fail(Errors(checked.error()));
  Facts facts = check_statements(plan, errors);
  for (const StatementId s : plan.statements.ids()) {
    if (!facts.tensors[s].sound) continue;
    const auto checked = check_values(plan.statements[s]);
    if (!checked) errors.add(Error(checked.error()).of_tensor(plan.statements[s].name));
  }
  const CompareTraces compared = check_compared(plan, facts, errors);

  std::uint64_t ranks = 1;
  for (const layout::Axis& axis : plan.mesh.axes()) ranks *= axis.size;
  std::vector<std::uint64_t> seen;
  CheckReport report;
  ByteSet read_by_all;
  std::size_t settle_at = 1 << 16;
  for (const RankPlan& rank : plan.ranks) {
    if (rank.rank >= ranks) {
      errors.add(problem("the plan has a rank that the mesh does not have", "R53")
                     .wanted(fmt::format("less than {}", ranks))
                     .got(std::to_string(rank.rank)));
      continue;
    }
    seen.push_back(rank.rank);
    errors.add(RankCheck(plan, facts, compared, rank).run(report, read_by_all));
    if (errors.empty()) errors.add(check_reads(plan, rank));  // of transfers that hold
    if (errors.empty()) errors.add(check_scale_reads(plan, rank));
    if (errors.empty()) errors.add(check_scale_memory(plan, rank));
    // Shares of many ranks join to whole tensors: memory stays near that of one rank.
    if (read_by_all.size() > settle_at) {
      read_by_all.settle();
      settle_at = std::max<std::size_t>(settle_at, 2 * read_by_all.size());
    }
  }
  std::sort(seen.begin(), seen.end());
  if (std::adjacent_find(seen.begin(), seen.end()) != seen.end())
    errors.add(problem("the plan has a rank twice", "R1"));
  if (!errors.empty()) return fail(std::move(errors));

  read_by_all.settle();
  for (const Source& source : plan.sources) {
    const std::uint64_t read = read_by_all.bytes_within({source.file, source.bytes.begin, source.bytes.end});
    if (read < source.bytes.size_bytes()) report.unread.push_back({source.key, source.bytes.size_bytes() - read});
  }
  return report;
}

}  // namespace lading::checker
