#include "checker/check_statements.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "checker/check_bytes.h"
#include "checker/check_decoding.h"
#include "checker/check_fsdp_units.h"
#include "checker/check_geometry.h"
#include "checker/meeting_places.h"
#include "checker/problem.h"

namespace lading::checker {
namespace {

bool is_random(model::RecipeKind kind) {
  return kind == model::RecipeKind::kUniform || kind == model::RecipeKind::kNormal ||
         kind == model::RecipeKind::kTruncatedNormal;
}

struct MemberOfClass {
  model::Kind kind;
  StatementId number;
};

// Random values are keyed by the root's name, which every layout must agree on: sharding may lose a plain attribute,
// but no registered name.
bool may_be_root(MemberOfClass root, MemberOfClass other) {
  const auto is_plain = [](model::Kind kind) {
    return kind == model::Kind::kAttribute || kind == model::Kind::kExtraState;
  };
  if (is_plain(root.kind) != is_plain(other.kind)) return is_plain(other.kind);
  return root.number < other.number;
}

class StatementCheck {
 public:
  StatementCheck(const Plan& plan, Errors& errors) : plan_(plan), errors_(errors), index_(plan) {}

  Facts run() {
    check_files();
    check_sources();
    check_names();
    facts_.tensors.resize(plan_.statements.size());
    facts_.traces.resize(plan_.statements.size());
    for (const StatementId s : plan_.statements.ids()) facts_.tensors[s].sound = is_sound(s);
    for (const StatementId s : plan_.statements.ids()) find_root(s);
    for (const StatementId s : plan_.statements.ids()) {
      Facts::Tensor& tensor = facts_.tensors[s];
      tensor.sound = tensor.sound && facts_.tensors[tensor.root].sound;
    }
    check_calls();
    check_fsdp_units(plan_, errors_);
    return std::move(facts_);
  }

 private:
  void check_files() {
    std::set<std::pair<std::uint32_t, std::string_view>> names;
    for (const PlannedFile& file : plan_.files) {
      if (!names.emplace(file.checkpoint, file.name).second) {
        errors_.add(problem("the plan has a file twice", "R45").in_file(file.name));
      }
    }
  }

  void check_sources() {
    std::vector<SourceId> by_place;
    usable_.assign(plan_.sources.size(), false);
    for (const SourceId i : plan_.sources.ids()) {
      const Source& source = plan_.sources[i];
      if (index_.is_again(i)) {
        errors_.add(problem("the plan has a source twice", "R45").of_tensor(source.key));
      }
      if (!plan_.files.has(source.file)) {
        errors_.add(problem("a source is in a file that the plan does not have", "R45").of_tensor(source.key));
        continue;
      }
      const PlannedFile& file = plan_.files[source.file];
      const bool ordered = source.bytes.satisfies_invariants();
      if (!ordered || source.bytes.end > file.size_bytes) {
        errors_.add(problem("a source lies outside its file", "R45")
                        .of_tensor(source.key)
                        .in_file(file.name)
                        .at(source.bytes)
                        .wanted(fmt::format("within {} bytes", file.size_bytes)));
        continue;
      }
      const auto size = size_of_source(source);
      if (size != source.bytes.size_bytes()) {
        errors_.add(problem("a source's shape and dtype do not fill its bytes", "R45")
                        .of_tensor(source.key)
                        .in_file(file.name)
                        .at(source.bytes)
                        .wanted(size ? std::to_string(*size) : "a whole number of bytes")
                        .got(std::to_string(source.bytes.size_bytes())));
        continue;
      }
      usable_[i] = true;
      if (source.bytes.size_bytes() > 0) by_place.push_back(i);
    }
    check_overlaps(std::move(by_place));
    for (const SourceId i : plan_.sources.ids()) {
      const Source& source = plan_.sources[i];
      if (!source.scaling || !usable_[i]) continue;
      auto wrong = find_scaling_problem(plan_, source);
      usable_[i] = !wrong && usable_[source.scaling->scales] && is_usable_or_none(source.scaling->zeros) &&
                   is_usable_or_none(source.scaling->tensor_scale) && is_usable_or_none(source.scaling->groups);
      if (wrong) errors_.add(std::move(*wrong).of_tensor(source.key));
    }
  }

  [[nodiscard]] bool is_usable_or_none(SourceId source) const { return source.is_none() || usable_[source]; }

  // Tensors of a file do not share bytes; one that was moved would be found out here.
  void check_overlaps(std::vector<SourceId> by_place) {
    const auto& all = plan_.sources;
    const auto before_in_file = [&](SourceId a, SourceId b) {
      return std::pair(all[a].file, all[a].bytes.begin) < std::pair(all[b].file, all[b].bytes.begin);
    };
    if (!std::is_sorted(by_place.begin(), by_place.end(), before_in_file)) {
      std::sort(by_place.begin(), by_place.end(), before_in_file);
    }
    for (std::size_t i = 1; i < by_place.size(); ++i) {
      const Source& before = all[by_place[i - 1]];
      const Source& source = all[by_place[i]];
      if (before.file != source.file || before.bytes.end <= source.bytes.begin) continue;
      errors_.add(problem(fmt::format("the source shares bytes with {}", quote(before.key)), "R45")
                      .of_tensor(source.key)
                      .in_file(plan_.files[source.file].name)
                      .at(source.bytes));
    }
  }

  void check_names() {
    const std::string* before = nullptr;
    for (const Statement& statement : plan_.statements) {
      const std::string* const last = std::exchange(before, &statement.name);
      if (last == nullptr || *last < statement.name) continue;
      sorted_ = false;
      errors_.add(
          problem(*last == statement.name ? "the plan states a tensor twice" : "the statements are not sorted by name",
                  "R1")
              .of_tensor(statement.name));
    }
  }

  // Statements are sorted, or else refused: then any way of finding them will do.
  [[nodiscard]] std::optional<StatementId> find(std::string_view name) const {
    const auto& all = plan_.statements;
    const auto found =
        sorted_ ? std::lower_bound(all.begin(), all.end(), name,
                                   [](const Statement& s, std::string_view wanted) { return s.name < wanted; })
                : std::find_if(all.begin(), all.end(), [&](const Statement& s) { return s.name == name; });
    if (found == all.end() || found->name != name) return std::nullopt;
    return all.id_of(*found);
  }

  void add(Error error, const Statement& statement) { errors_.add(std::move(error).of_tensor(statement.name)); }

  bool is_sound(StatementId s) {
    const Statement& statement = plan_.statements[s];
    const std::size_t before = errors_.size() + errors_.not_listed();
    if (statement.placement.slots.empty()) add(problem("the tensor has no memory", "R1"), statement);
    for (std::size_t i = 0; i < statement.placement.slots.size(); ++i) {
      const layout::Slot& slot = statement.placement.slots[i];
      if (auto checked = check_slot(statement.shape, slot, plan_.mesh); !checked) add(checked.error(), statement);
      for (std::size_t j = 0; j < i; ++j) {
        if (statement.placement.slots[j].name == slot.name)
          add(problem("the tensor has a slot twice", "R1"), statement);
      }
    }
    switch (statement.provenance) {
      case Provenance::kFile: check_file_source(s); break;
      case Provenance::kFill: check_fill(s); break;
      case Provenance::kRandom:
        if (!is_random(statement.recipe.kind)) add(problem("the recipe is not one for random values", "R1"), statement);
        break;
      case Provenance::kCall:
        if (statement.recipe.kind != model::RecipeKind::kCall)
          add(problem("the recipe is not a call", "R1"), statement);
        break;
      case Provenance::kHost:
      case Provenance::kAlias:
      case Provenance::kKept: break;
    }
    check_must_equal(statement);
    // Sources that were refused are not refused again, but nothing can be worked out from them either.
    for (const SourceId i : facts_.traces[s].sources()) {
      if (!usable_[i]) return false;
    }
    return errors_.size() + errors_.not_listed() == before;
  }

  void check_file_source(StatementId s) {
    const Statement& statement = plan_.statements[s];
    auto trace = Trace::of(statement.expression, statement.checkpoint, index_, plan_.sources);
    if (!trace) return add(trace.error(), statement);
    if (trace->shape() != statement.shape) {
      return add(problem("the expression makes another shape than the tensor's", "R41")
                     .wanted(statement.shape.text())
                     .got(trace->shape().text()),
                 statement);
    }
    bool alike = true;
    for (const SourceId i : trace->sources()) {
      const Source& source = plan_.sources[i];
      alike = alike && source.dtype == plan_.sources[trace->sources().front()].dtype;
      if (values_fit(plan_, source, statement.storage)) continue;
      add(problem(fmt::format("the source {} cannot be cast to the tensor's dtype", quote(source.key)), "R23")
              .wanted(std::string(name(statement.storage)))
              .got(std::string(name(source.dtype))),
          statement);
    }
    // Compute dtypes were decided by it (R26), so it must be what the file has.
    if (alike && statement.checkpoint_dtype != plan_.sources[trace->sources().front()].dtype) {
      add(problem("the recorded dtype is not the checkpoint's", "R26")
              .wanted(std::string(name(plan_.sources[trace->sources().front()].dtype)))
              .got(statement.checkpoint_dtype ? std::string(name(*statement.checkpoint_dtype)) : "none"),
          statement);
    }
    facts_.traces[s] = *std::move(trace);
  }

  void check_fill(StatementId s) {
    const Statement& statement = plan_.statements[s];
    const auto& row = statement.recipe.zero_row;
    if (statement.recipe.kind != model::RecipeKind::kFill) {
      return add(problem("the recipe is not one for a constant", "R1"), statement);
    }
    if (!statement.shape.num_elems()) return add(problem("the tensor is too large", "R41"), statement);
    if (row && (statement.shape.rank() == 0 || *row >= statement.shape[0])) {
      return add(problem("the row that is to be zero lies outside", "R20"), statement);
    }
    facts_.traces[s] = Trace::constant(statement.shape, statement.recipe);
  }

  void check_must_equal(const Statement& statement) {
    for (const mapping::Expression& other : statement.must_equal) {
      const auto trace = Trace::of(other, statement.checkpoint, index_, plan_.sources);
      if (!trace) {
        add(trace.error(), statement);
      } else if (trace->shape() != statement.shape) {
        add(problem("a key that must be equal has another shape", "R50")
                .wanted(statement.shape.text())
                .got(trace->shape().text()),
            statement);
      }
    }
  }

  void find_root(StatementId s) {
    const Statement& statement = plan_.statements[s];
    facts_.tensors[s].root = s;
    if (statement.provenance != Provenance::kAlias) return;
    const bool was_sound = std::exchange(facts_.tensors[s].sound, false);
    const auto found = find(statement.alias_of);
    if (!found) {
      return add(problem("the tensor is tied to one that the plan does not have", "R49").got(quote(statement.alias_of)),
                 statement);
    }
    const Statement& root = plan_.statements[*found];
    if (root.provenance == Provenance::kAlias) {
      return add(problem("the tensor is tied to one that is tied itself", "R49").got(quote(root.name)), statement);
    }
    if (!may_be_root({root.kind, *found}, {statement.kind, s})) {
      return add(problem("the tensor is tied to one that is not the first registered name of its class", "R16")
                     .got(quote(root.name)),
                 statement);
    }
    if (root.shape != statement.shape) {
      return add(problem("tied tensors differ in shape", "R49").wanted(root.shape.text()).got(statement.shape.text()),
                 statement);
    }
    if (root.storage != statement.storage || root.compute != statement.compute) {
      return add(problem(fmt::format("{} and the tensor tied to it differ in dtype", quote(root.name)), "R31"),
                 statement);
    }
    std::vector<const layout::Placement*>& placements =
        placements_.try_emplace(*found, 1, &root.placement).first->second;
    const auto equals = [&](const layout::Placement* other) { return *other == statement.placement; };
    const auto together = [&](const layout::Placement* other) {
      return same_placement(*other, statement.placement, plan_.mesh);
    };
    const bool known = std::any_of(placements.begin(), placements.end(), equals);
    if (!known && std::all_of(placements.begin(), placements.end(), together)) {
      placements.push_back(&statement.placement);
    } else if (!known) {
      return add(problem(fmt::format("{} and the tensor tied to it differ in placement", quote(root.name)), "R52"),
                 statement);
    }
    facts_.tensors[s].sound = was_sound;
    facts_.tensors[s].root = *found;
    facts_.tensors[*found].aliases.push_back(s);
  }

  // Inputs first, every call once, and nothing that is no call (R66).
  void check_calls() {
    constexpr std::size_t kNever = ~std::size_t{0};
    IndexedVector<StatementId, std::size_t> turn(plan_.statements.size(), kNever);
    for (std::size_t i = 0; i < plan_.call_order.size(); ++i) {
      const StatementId s = plan_.call_order[i];
      if (!plan_.statements.has(s)) {
        errors_.add(problem("the order of calls names a statement that the plan does not have", "R66"));
      } else if (plan_.statements[s].provenance != Provenance::kCall) {
        add(problem("the order of calls names a tensor that is not computed", "R66"), plan_.statements[s]);
      } else if (std::exchange(turn[s], i) != kNever) {
        add(problem("the tensor is computed twice", "R66"), plan_.statements[s]);
      }
    }
    for (const StatementId s : plan_.statements.ids()) {
      const Statement& statement = plan_.statements[s];
      if (statement.provenance != Provenance::kCall) continue;
      if (turn[s] == kNever) add(problem("the tensor is never computed", "R66"), statement);
      for (const std::string& input : statement.recipe.inputs) {
        const auto found = find(input);
        if (!found) {
          add(problem("the tensor is computed from one that the plan does not have", "R66").got(quote(input)),
              statement);
          continue;
        }
        const StatementId root = facts_.tensors[*found].root;
        if (plan_.statements[root].provenance == Provenance::kCall && (root == s || turn[root] >= turn[s])) {
          add(problem("the tensor is computed before one of its inputs", "R66").got(quote(input)), statement);
        }
      }
    }
  }

  const Plan& plan_;
  Errors& errors_;
  SourceIndex index_;
  IndexedVector<SourceId, bool> usable_;
  bool sorted_ = true;  // the statements
  /// By root: the placements of its class that were seen, each once. Any two go together.
  std::map<StatementId, std::vector<const layout::Placement*>> placements_;
  Facts facts_;
};

}  // namespace

Facts check_statements(const Plan& plan, Errors& errors) { return StatementCheck(plan, errors).run(); }

}  // namespace lading::checker
