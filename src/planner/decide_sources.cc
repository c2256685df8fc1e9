// Where each tensor's value comes from: one source for a tie class, chosen in a fixed order.
#include "planner/decide_sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/name_list.h"
#include "base/text.h"
#include "planner/input_checks.h"
#include "planner/source_refusals.h"
#include "planner/source_table.h"
#include "planner/value_checks.h"

namespace lading::planner {
namespace {

using mapping::Expression;
using model::Presence;
using model::RecipeKind;
using model::Tensor;

class SourceDecider {
 public:
  using Members = std::vector<StatementId>;  // of a tie class, or one: statements, ascending

  SourceDecider(const PlanInputs& inputs, mapping::Resolution& names, Decisions& out)
      : inputs_(inputs),
        skeleton_(inputs.skeleton),
        names_(names),
        out_(out),
        allow_missing_(inputs.policy.allow_missing),
        not_expected_(inputs.policy.not_expected),
        allow_mismatch_(inputs.policy.allow_mismatch),
        keep_(inputs.policy.keep),
        external_(inputs.policy.external),
        sources_(inputs, out.plan) {}

  Errors run() {
    find_expressions();
    std::map<StatementId, Members> tied;  // by head
    for (Members& members : out_.tie_classes()) tied.emplace(members.front(), std::move(members));
    Members alone(1);
    for (const StatementId i : out_.tensors.ids()) {
      if (out_.tensors[i].head != i) continue;  // decided with its head
      const auto found = tied.find(i);
      alone.front() = i;
      decide(found == tied.end() ? alone : found->second);
    }
    for (const auto& [key, why] : left_alone_) {
      if (!sources_.is_read(key)) out_.plan.ignored_keys.emplace_back(key, why);
    }
    for (auto* names : {&out_.plan.keys.missing, &out_.plan.keys.mismatched, &out_.plan.keys.initialized}) {
      std::sort(names->begin(), names->end());
      names->erase(std::unique(names->begin(), names->end()), names->end());
    }
    return std::move(errors_);
  }

 private:
  Statement& statement(StatementId i) { return out_.plan.statements[i]; }
  [[nodiscard]] const Tensor& tensor(StatementId i) const { return skeleton_.tensors[i.number()]; }
  Speakers& speakers(const Members& members) { return out_.tensors[members.front()].speakers; }

  // What is tied to a tensor that is refused has no source either.
  void give_up(const Members& members) {
    for (const StatementId i : members) out_.tensors[i].is_refused = true;
  }
  void refuse(const Members& members, const Tensor& t, std::string_view rule, Error error) {
    errors_.add(std::move(error).of_tensor(t.name).by_rule(rule));
    give_up(members);
  }

  // All are sorted by name; a tensor that has an expression has a rule, or "".
  void find_expressions() {
    expressions_.assign(skeleton_.tensors.size(), nullptr);
    rules_.assign(skeleton_.tensors.size(), nullptr);
    auto next = names_.resolved.expressions.begin();
    auto rule = names_.resolved.decided_by.begin();
    for (const StatementId i : expressions_.ids()) {
      if (next == names_.resolved.expressions.end()) break;
      if (next->first != tensor(i).name) continue;
      expressions_[i] = &(next++)->second;
      rules_[i] = &(rule++)->second;
    }
  }

  enum class FromFile { kTaken, kRefused, kNothing, kOtherShape };

  void decide(const Members& members) {
    const StatementId head = members.front();
    for (std::size_t m = 1; m < members.size(); ++m) {
      Statement& alias = statement(members[m]);
      alias.provenance = Provenance::kAlias;
      alias.alias_of = statement(head).name;
      alias.rule = "R49";
      alias.reason = fmt::format("the tensor shares the storage of {}", quote(alias.alias_of));
    }
    const auto is_refused = [&](StatementId i) { return out_.tensors[i].is_refused; };
    if (std::any_of(members.begin(), members.end(), is_refused)) {
      give_up(members);
      return;
    }
    if (by_users_word(members)) {
      ignore_keys_of(members, statement(head).provenance == Provenance::kKept ? "keep" : "external");
      return;
    }
    if (by_adapter(members)) return ignore_keys_of(members, "adapter");
    const FromFile from_file = by_file(members);
    if (from_file == FromFile::kRefused) give_up(members);
    if (from_file != FromFile::kNothing && from_file != FromFile::kOtherShape) return;
    by_value(members, from_file);
    if (!out_.tensors[head].is_refused) report_keys(members, from_file);
  }

  // Of tensors that no file gives a value. One that somebody put in is nobody's surprise.
  void report_keys(const Members& members, FromFile from_file) {
    const bool is_kept = statement(members.front()).provenance == Provenance::kKept;
    const bool other_shape = from_file == FromFile::kOtherShape;
    if (is_kept && !other_shape && is_assigned(members)) return;
    KeyReport& keys = out_.plan.keys;
    for (const StatementId i : members) {
      const Tensor& t = tensor(i);
      if (!can_be_in_a_file(t.kind)) continue;
      if (!is_kept) keys.initialized.push_back(t.name);
      if (other_shape) {
        keys.mismatched.push_back(t.name);
      } else if (is_expected(t)) {
        keys.missing.push_back(t.name);
      }
    }
  }

  [[nodiscard]] bool is_assigned(const Members& members) const {
    return std::any_of(members.begin(), members.end(), [&](StatementId i) { return tensor(i).assigned; });
  }

  bool by_users_word(const Members& members) {
    Statement& s = statement(members.front());
    const auto named_in = [&](const NameList& list) {
      const auto found =
          std::find_if(members.begin(), members.end(), [&](StatementId i) { return list.matches(tensor(i).name); });
      return found == members.end() ? nullptr : &tensor(*found);
    };
    const Tensor* external = named_in(external_);
    const Tensor* kept = named_in(keep_);
    if (external != nullptr && kept != nullptr) {
      refuse(members, *external, "R14", in_keep_and_external());
      return true;
    }
    if (kept != nullptr && has_adapter_key(members)) {
      refuse(members, *kept, "R14", in_keep_and_adapter());
      return true;
    }
    if (external != nullptr) {
      ignore_adapter_keys(members);
      s.provenance = Provenance::kHost;
      s.recipe.kind = RecipeKind::kHost;
      s.rule = "R14";
      s.reason = "the caller supplies the value (external)";
      return true;
    }
    if (kept == nullptr) return false;
    if (kept->presence != Presence::kReal) {
      refuse(members, *kept, "R14", kept_without_value(kept->presence));
    }
    s.provenance = Provenance::kKept;
    s.kept_device = kept->device;
    s.kept_by_name = true;
    speakers(members).memory = StatementId(static_cast<std::size_t>(kept - skeleton_.tensors.data()));
    s.rule = "R14";
    s.reason = "the tensor keeps its value (keep)";
    return true;
  }

  [[nodiscard]] bool has_adapter_key(const Members& members) const {
    return std::any_of(members.begin(), members.end(), [&](StatementId i) { return out_.adapter_keys.contains(i); });
  }

  void ignore_adapter_keys(const Members& members) {
    for (const StatementId i : members) {
      const auto found = out_.adapter_keys.find(i);
      if (found == out_.adapter_keys.end()) continue;
      out_.plan.ignored_adapter_keys.push_back({found->second.checkpoint, found->second.key, "external"});
    }
  }

  // An adapter was trained for this model: its keys go before the base checkpoint's (R65).
  bool by_adapter(const Members& members) {
    if (!has_adapter_key(members)) return false;
    Statement& s = statement(members.front());
    for (const StatementId i : members) {
      const auto found = out_.adapter_keys.find(i);
      if (found == out_.adapter_keys.end()) continue;
      const auto& [checkpoint, key] = found->second;
      if (s.checkpoint > 0) {
        if (!is_alike(members, tensor(i), found->second)) return true;
        continue;
      }
      s.checkpoint = checkpoint;
      s.provenance = Provenance::kFile;
      s.expression = Expression::source(key);
      s.rule = "R65";
      s.reason = fmt::format("adapter {} has it, as {}", checkpoint, quote(key));
      if (expand(tensor(i), s.expression, out_.tensors[members.front()].pieces, checkpoint) == FromFile::kRefused)
        give_up(members);
    }
    return true;
  }

  // A further key of the class: of the same adapter, and equal (R50).
  bool is_alike(const Members& members, const Tensor& t, const AdapterKey& other) {
    if (other.checkpoint != statement(members.front()).checkpoint) {
      refuse(members, t, "R50", in_two_adapters());
      return false;
    }
    if (compare_with(members, t, Expression::source(other.key))) return true;
    give_up(members);
    return false;
  }

  // The keys that these tensors would have been read from are accounted for too (R38).
  void ignore_keys_of(const Members& members, const std::string& why) {
    for (const StatementId i : members) {
      if (expressions_[i] == nullptr) continue;
      for (std::string& key : expressions_[i]->keys()) {
        out_.tensors[members.front()].unread_keys.push_back(key);
        left_alone_.emplace(std::move(key), why);
      }
    }
  }

  FromFile by_file(const Members& members) {
    Statement& s = statement(members.front());
    FromFile result = FromFile::kNothing;
    for (const StatementId i : members) {
      Expression* expression = expressions_[i];
      if (expression == nullptr) continue;
      if (result == FromFile::kTaken) {
        if (!compare_with(members, tensor(i), *expression)) return FromFile::kRefused;
        continue;
      }
      FilePieces file;
      const FromFile taken = expand(tensor(i), *expression, file, 0);
      if (taken == FromFile::kRefused) return taken;
      if (taken == FromFile::kOtherShape) {
        ignore_keys_of({i}, "allow_mismatch");
        result = taken;
        continue;
      }
      result = FromFile::kTaken;
      out_.tensors[members.front()].pieces = std::move(file);
      s.provenance = Provenance::kFile;
      s.expression = std::move(*expression);
      s.mapping_rule = *rules_[i];
      s.rule = members.size() > 1 ? "R50" : "R38";
      s.reason = s.mapping_rule.empty()
                     ? "the checkpoint has the tensor"
                     : fmt::format("the checkpoint has the tensor, by mapping rule {}", quote(s.mapping_rule));
    }
    return result;
  }

  // Works the expression out, and compares the *global* shape (R41).
  FromFile expand(const Tensor& t, const Expression& expression, FilePieces& out, std::uint32_t checkpoint) {
    auto pieces = mapping::expand(expression, [&](std::string_view key) { return sources_.shape_of(key, checkpoint); });
    if (!pieces) {
      for (Error error : pieces.error()) errors_.add(std::move(error).of_tensor(t.name));
      return FromFile::kRefused;
    }
    if (pieces->shape != t.shape) {
      const std::string found = fmt::format("{} from {}", pieces->shape.text(), shorten(expression.text()));
      if (allow_mismatch_.matches(t.name)) {
        const char* const remedy = "Remove the tensor from \"allow_mismatch\" if it should be read; now it is not.";
        out_.plan.warnings.add(differs_in_shape(t, found, remedy).by_rule("R21"));
        out_.plan.keys.mismatched.push_back(t.name);
        return FromFile::kOtherShape;
      }
      const char* const remedy =
          "Load the checkpoint that belongs to this model, or list the tensor in \"allow_mismatch\".";
      errors_.add(differs_in_shape(t, found, remedy).by_rule("R41"));
      return FromFile::kRefused;
    }
    if (!number_sources(t, checkpoint, *pieces, out.source_numbers)) return FromFile::kRefused;
    out.pieces = *std::move(pieces);
    return FromFile::kTaken;
  }

  // Another key of the class must be in the same form; its bytes are compared while loading (R50).
  bool compare_with(const Members& members, const Tensor& t, const Expression& other) {
    Statement& s = statement(members.front());
    const bool known = std::find(s.must_equal.begin(), s.must_equal.end(), other) != s.must_equal.end();
    if (known || other == s.expression) return true;
    auto pieces = mapping::expand(other, [&](std::string_view key) { return sources_.shape_of(key, s.checkpoint); });
    const bool other_shape = pieces && pieces->shape != s.shape;
    if (!pieces || (other_shape && allow_mismatch_.matches(t.name))) {
      FilePieces unused;  // it cannot be worked out, or need not be: told as of any other tensor
      if (expand(t, other, unused, s.checkpoint) == FromFile::kRefused) return false;
      for (std::string& key : other.keys()) left_alone_.emplace(std::move(key), "allow_mismatch");
      return true;
    }
    if (other_shape || sources_.dtypes_of(other, s.checkpoint) != sources_.dtypes_of(s.expression, s.checkpoint)) {
      refuse(members, tensor(members.front()), "R50",
             forms_differ(sources_.forms_of(s.expression, s.checkpoint), sources_.forms_of(other, s.checkpoint)));
      return false;
    }
    FilePieces file;
    if (!number_sources(t, s.checkpoint, *pieces, file.source_numbers)) return false;
    file.pieces = *std::move(pieces);
    s.must_equal.push_back(other);
    out_.tensors[members.front()].compared.push_back(std::move(file));
    return true;
  }

  bool number_sources(const Tensor& t, std::uint32_t checkpoint, const mapping::Pieces& pieces,
                      SourceNumbers& numbers) {
    const Errors problems = sources_.number(t.name, checkpoint, pieces, numbers);
    errors_.add(problems);
    return problems.empty();
  }

  // No file has it, or not in this shape: a derivation, the value that is there, or an initial value.
  void by_value(const Members& members, FromFile from_file) {
    Statement& s = statement(members.front());
    const bool other_shape = from_file == FromFile::kOtherShape;
    const auto may_have_a_key = [&](StatementId i) { return can_be_in_a_file(tensor(i).kind); };
    if (!names_.settled && !other_shape && std::any_of(members.begin(), members.end(), may_have_a_key)) {
      give_up(members);  // a mapping that holds may find it
      return;
    }
    const bool was_assigned = is_assigned(members);
    const auto missing =
        std::find_if(members.begin(), members.end(), [&](StatementId i) { return is_missing(tensor(i)); });
    if (!other_shape && !was_assigned && missing != members.end()) {
      report_missing(members, tensor(*missing));
      return;
    }
    if (take_recipe(members, &Tensor::derivation, "R6", "the value follows from the model's configuration")) {
      out_.tensors[members.front()].is_derived = true;
      return;
    }
    for (const StatementId i : members) {
      if (tensor(i).presence != Presence::kReal) continue;
      s.provenance = Provenance::kKept;
      s.kept_device = tensor(i).device;
      s.rule = other_shape ? "R21" : was_assigned ? "R14" : "R7";
      s.reason = other_shape ? "the checkpoint has another shape for the tensor, so that it keeps its value"
                 : was_assigned
                     ? "no file has the tensor; it keeps the value that was assigned after the model was built"
                     : "no file has the tensor; it keeps its value";
      return;
    }
    const std::string_view why = other_shape
                                     ? "the checkpoint has another shape for the tensor, so that it is initialised"
                                 : has_checkpoint() ? "no file has the tensor; it is initialised"
                                                    : "there is no checkpoint; the tensor is initialised";
    if (take_recipe(members, &Tensor::init, other_shape ? "R21" : "R12", why)) return;
    const Tensor& t = tensor(members.front());
    refuse(members, t, can_be_in_a_file(t.kind) ? "R13" : "R6", without_source(t.kind));
  }

  [[nodiscard]] bool has_checkpoint() const { return !inputs_.catalog.files.empty(); }

  // A key that the checkpoint should have.
  [[nodiscard]] bool is_expected(const Tensor& t) const {
    return has_checkpoint() && can_be_in_a_file(t.kind) && !t.adapter && !not_expected_.matches(t.name);
  }
  // One that nobody said may be missing (R39).
  [[nodiscard]] bool is_missing(const Tensor& t) const { return is_expected(t) && !allow_missing_.matches(t.name); }

  bool take_recipe(const Members& members, std::optional<model::Recipe> Tensor::*which, std::string_view rule,
                   std::string_view reason) {
    Statement& s = statement(members.front());
    for (const StatementId i : members) {
      const auto& recipe = tensor(i).*which;
      if (!recipe) continue;
      const auto differs = [&](StatementId other) {
        const auto& others = tensor(other).*which;
        return others && !is_same_recipe(*others, *recipe);
      };
      if (const auto other = std::find_if(members.begin(), members.end(), differs); other != members.end()) {
        refuse(members, tensor(i), "R50", recipes_differ(tensor(*other).name));
        return true;
      }
      s.recipe = *recipe;
      s.provenance = provenance_of(recipe->kind);
      s.rule = rule;
      s.reason = reason;
      speakers(members).value = i;
      return true;
    }
    return false;
  }

  // `t` is the first that may not be missing.
  void report_missing(const Members& members, const Tensor& t) {
    std::string found = "no such key";
    const auto& notes = names_.resolved.tensor_notes;
    if (const auto note = notes.find(t.name); note != notes.end()) found = note->second;
    std::string remedy = "Map a key of the checkpoint to it (--mapping FILE), or list it in \"allow_missing\".";
    if (members.size() > 1) {
      found += fmt::format(", nor any of the {} tensors tied to it", members.size() - 1);
      remedy =
          fmt::format("Map a key of the checkpoint to one of them (--mapping FILE), or add to \"allow_missing\": {}.",
                      names_not_allowed(members));
    }
    refuse(members, t, members.size() > 1 ? "R50" : "R39", not_in_checkpoint(t, std::move(found), std::move(remedy)));
  }

  [[nodiscard]] std::string names_not_allowed(const Members& members) const {
    constexpr std::size_t kShown = 5;
    std::string text;
    std::size_t count = 0;
    for (const StatementId i : members) {
      if (is_missing(tensor(i)) && count++ < kShown) text += (text.empty() ? "" : ", ") + quote(tensor(i).name);
    }
    if (count > kShown) text += fmt::format(" and {} more", count - kShown);
    return text;
  }

  const PlanInputs& inputs_;
  const model::Skeleton& skeleton_;
  mapping::Resolution& names_;
  Decisions& out_;
  NameList allow_missing_;
  NameList not_expected_;
  NameList allow_mismatch_;
  NameList keep_;
  NameList external_;
  IndexedVector<StatementId, Expression*> expressions_;   // null: no key is for it
  IndexedVector<StatementId, const std::string*> rules_;  // the id of the rule that made the expression, or ""
  SourceTable sources_;
  std::map<std::string, std::string> left_alone_;  // keys that a tensor has and does not read, and why
  Errors errors_;
};

}  // namespace

Errors decide_sources(const PlanInputs& inputs, mapping::Resolution& names, Decisions& decisions) {
  return SourceDecider(inputs, names, decisions).run();
}

}  // namespace lading::planner
