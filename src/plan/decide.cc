#include "plan/decide.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/text.h"
#include "plan/call_order.h"
#include "plan/decide_dtypes.h"
#include "plan/input_checks.h"
#include "plan/name_list.h"

namespace lading::plan {
namespace {

using checkpoint::CatalogTensor;
using mapping::Expression;
using model::Kind;
using model::Presence;
using model::RecipeKind;
using model::Tensor;

std::string_view describe(Kind kind) {
  switch (kind) {
    case Kind::kParameter: return "parameter";
    case Kind::kBuffer: return "buffer";
    case Kind::kNonPersistentBuffer: return "non-persistent buffer";
    case Kind::kAttribute: return "plain attribute";
    case Kind::kExtraState: return "extra state";
  }
  return "tensor";
}

Provenance provenance_of(RecipeKind kind) {
  switch (kind) {
    case RecipeKind::kFill: return Provenance::kFill;
    case RecipeKind::kHost: return Provenance::kHost;
    case RecipeKind::kCall: return Provenance::kCall;
    default: return Provenance::kRandom;
  }
}

class Decider {
 public:
  explicit Decider(const PlanInputs& inputs)
      : inputs_(inputs),
        policy_(inputs.policy),
        skeleton_(inputs.skeleton),
        pins_(inputs.skeleton, inputs.policy),
        allow_missing_(inputs.policy.allow_missing),
        allow_mismatch_(inputs.policy.allow_mismatch),
        keep_(inputs.policy.keep),
        external_(inputs.policy.external) {}

  Result<Decisions, Errors> run() {
    errors_.add(policy::check_policy(policy_));
    check_the_layout();
    if (!errors_.empty()) return fail(std::move(errors_));
    if (!resolve_names()) return fail(std::move(errors_));
    const layout::PlacementIndex placements(inputs_.layout);
    for (const Tensor& tensor : skeleton_.tensors) begin_statement(tensor, placements.of(tensor.name));
    decide_sources();
    errors_.add(decide_dtypes(inputs_, pins_, out_));
    for (const auto& [key, why] : left_alone_) {
      if (!source_number_.contains(key)) out_.plan.ignored_keys.emplace_back(key, why);
    }
    errors_.add(check_keys(inputs_, resolved_, out_.plan));
    std::sort(out_.plan.ignored_keys.begin(), out_.plan.ignored_keys.end());
    check_ties();
    check_groups();
    errors_.add(check_placements(inputs_, out_.plan));
    report_partly_read();
    order_calls();
    report_unmatched_pins();
    errors_.add(check_name_lists(inputs_, out_.plan));
    if (!errors_.empty()) return fail(std::move(errors_));
    Plan& plan = out_.plan;
    plan.mesh = inputs_.layout.mesh;
    plan.devices = inputs_.layout.devices;
    plan.seed = policy_.seed;
    plan.budget_bytes = policy_.budget_bytes;
    return std::move(out_);
  }

 private:
  Statement& statement(std::size_t i) { return out_.plan.statements[i]; }
  const Tensor& tensor(std::size_t i) const { return skeleton_.tensors[i]; }

  void refuse(const std::string& name, std::string_view rule, Error error) {
    errors_.add(std::move(error).of_tensor(name).by_rule(rule));
  }

  void check_the_layout() {
    std::vector<layout::TensorInfo> infos;
    for (const Tensor& t : skeleton_.tensors) {
      const bool is_alias = ties_hold() && t.tie_class && skeleton_.tie_classes[*t.tie_class].front() != t.name;
      infos.push_back({t.name, t.shape, t.kind == Kind::kParameter, is_alias});
    }
    errors_.add(layout::check_layout(inputs_.layout, infos));
  }

  [[nodiscard]] bool ties_hold() const { return policy_.ties == policy::Ties::kKeep; }

  const Shape* shape_of(std::string_view key) const {
    const CatalogTensor* found = inputs_.catalog.find(key);
    return found == nullptr ? nullptr : &found->shape;
  }

  bool resolve_names() {
    std::vector<mapping::Target> targets;
    for (const Tensor& t : skeleton_.tensors) {
      if (can_be_in_a_file(t.kind)) targets.push_back({t.name, &t.shape});
    }
    std::vector<std::string_view> keys;
    for (const CatalogTensor& t : inputs_.catalog.tensors) keys.push_back(t.name);
    auto resolved =
        mapping::resolve(inputs_.mapping, targets, keys, [&](std::string_view key) { return shape_of(key); });
    if (!resolved) {
      errors_.add(std::move(resolved).error());
      return false;
    }
    resolved_ = *std::move(resolved);
    return true;
  }

  void begin_statement(const Tensor& t, const layout::Placement& placement) {
    Statement s;
    s.name = t.name;
    s.kind = t.kind;
    s.shape = t.shape;
    s.placement = placement;
    out_.class_of.push_back(static_cast<std::uint32_t>(out_.plan.statements.size()));
    out_.plan.statements.push_back(std::move(s));
    out_.pieces.emplace_back();
    out_.is_derived.push_back(false);
  }

  [[nodiscard]] std::size_t index_of(std::string_view name) const {
    const Tensor* found = skeleton_.find(name);
    return static_cast<std::size_t>(found - skeleton_.tensors.data());
  }

  // A tie class is decided once, over all its members; anything else is a class of one.
  void decide_sources() {
    std::set<std::uint32_t> done;
    for (std::size_t i = 0; i < skeleton_.tensors.size(); ++i) {
      const auto& tie = tensor(i).tie_class;
      if (!tie || !ties_hold()) {
        if (tie) check_can_be_untied(tensor(i));
        decide_source({i});
      } else if (done.insert(*tie).second) {
        std::vector<std::size_t> members;
        for (const std::string& name : skeleton_.tie_classes[*tie]) members.push_back(index_of(name));
        decide_source(members);
      }
    }
  }

  void decide_source(const std::vector<std::size_t>& members) {
    const std::size_t head = members.front();
    for (std::size_t m = 1; m < members.size(); ++m) {
      Statement& alias = statement(members[m]);
      alias.provenance = Provenance::kAlias;
      alias.alias_of = statement(head).name;
      alias.rule = "R49";
      alias.reason = fmt::format("it shares the storage of {}", quote(alias.alias_of));
      out_.class_of[members[m]] = static_cast<std::uint32_t>(head);
    }
    if (by_users_word(members)) {
      ignore_keys_of(members, statement(head).provenance == Provenance::kKept ? "keep" : "external");
      return;
    }
    const FromFile from_file = by_file(members);
    if (from_file == FromFile::kNothing || from_file == FromFile::kOtherShape) by_value(members, from_file);
  }

  // Memory that is there is one storage, and stays one.
  void check_can_be_untied(const Tensor& t) {
    if (t.presence == Presence::kMeta || skeleton_.tie_classes[*t.tie_class].front() != t.name) return;
    refuse(t.name, "R50",
           Error(Code::kPlan, "tied memory that is already there cannot be untied")
               .wanted("tensors on meta")
               .try_this("Untie the model before it is allocated and sharded"));
  }

  bool by_users_word(const std::vector<std::size_t>& members) {
    Statement& s = statement(members.front());
    const auto named_in = [&](const NameList& list) {
      const auto found =
          std::find_if(members.begin(), members.end(), [&](std::size_t i) { return list.matches(tensor(i).name); });
      return found == members.end() ? nullptr : &tensor(*found);
    };
    const Tensor* external = named_in(external_);
    const Tensor* kept = named_in(keep_);
    if (external != nullptr && kept != nullptr) {
      refuse(external->name, "R14",
             Error(Code::kPlan, "it is to be kept and to be handed in, which contradict each other")
                 .wanted("keep or external, not both"));
      return true;
    }
    if (external != nullptr) {
      s.provenance = Provenance::kHost;
      s.recipe.kind = RecipeKind::kHost;
      s.rule = "R14";
      s.reason = "the caller hands the value in (external)";
      return true;
    }
    if (kept == nullptr) return false;
    if (kept->presence != Presence::kReal) {
      refuse(kept->name, "R14",
             Error(Code::kPlan, "it is to be kept, but has no value yet")
                 .wanted("a real value")
                 .got(kept->presence == Presence::kMeta ? "a tensor on meta" : "memory without a value"));
    }
    s.provenance = Provenance::kKept;
    s.kept_device = kept->device;
    s.rule = "R14";
    s.reason = "the value that is there is kept (keep)";
    return true;
  }

  // The keys that these tensors would have been read from are accounted for too (R38).
  void ignore_keys_of(const std::vector<std::size_t>& members, const std::string& why) {
    for (const std::size_t i : members) {
      const auto expression = resolved_.expressions.find(tensor(i).name);
      if (expression == resolved_.expressions.end()) continue;
      for (std::string& key : expression->second.keys()) left_alone_.emplace(std::move(key), why);
    }
  }

  enum class FromFile { kTaken, kRefused, kNothing, kOtherShape };

  FromFile by_file(const std::vector<std::size_t>& members) {
    Statement& s = statement(members.front());
    FromFile result = FromFile::kNothing;
    for (const std::size_t i : members) {
      const auto expression = resolved_.expressions.find(tensor(i).name);
      if (expression == resolved_.expressions.end()) continue;
      if (result == FromFile::kTaken) {
        if (expression->second != s.expression) s.must_equal.push_back(expression->second);
        continue;
      }
      const FromFile taken = take_pieces(members.front(), tensor(i), expression->second);
      if (taken == FromFile::kRefused) return taken;
      if (taken == FromFile::kOtherShape) {
        ignore_keys_of({i}, "allow_mismatch");
        result = taken;
        continue;
      }
      result = FromFile::kTaken;
      s.provenance = Provenance::kFile;
      s.expression = expression->second;
      s.mapping_rule = resolved_.decided_by[tensor(i).name];
      s.rule = members.size() > 1 ? "R50" : "R38";
      s.reason = s.mapping_rule.empty()
                     ? "the checkpoint has it"
                     : fmt::format("the checkpoint has it, by mapping rule {}", quote(s.mapping_rule));
    }
    return result;
  }

  // Works the expression out, and compares the *global* shape (R41).
  FromFile take_pieces(std::size_t head, const Tensor& t, const Expression& expression) {
    auto pieces = mapping::expand(expression, [&](std::string_view key) { return shape_of(key); });
    if (!pieces) {
      for (Error error : pieces.error()) errors_.add(std::move(error).of_tensor(t.name));
      return FromFile::kRefused;
    }
    if (pieces->shape != t.shape) {
      Error error = Error(Code::kPlan, fmt::format("the {} has another shape in the checkpoint", describe(t.kind)))
                        .of_tensor(t.name)
                        .wanted(t.shape.text())
                        .got(fmt::format("{} from {}", pieces->shape.text(), shorten(expression.text())));
      if (allow_mismatch_.matches(t.name)) {
        out_.plan.warnings.add(std::move(error).by_rule("R21").try_this("It is not read, which allow_mismatch allows"));
        return FromFile::kOtherShape;
      }
      errors_.add(std::move(error).by_rule("R41").try_this(
          "Load the checkpoint that belongs to this model, or allow the mismatch (allow_mismatch)"));
      return FromFile::kRefused;
    }
    out_.pieces[head].source_numbers = number_sources(t, pieces->sources);
    out_.pieces[head].pieces = *std::move(pieces);
    return FromFile::kTaken;
  }

  std::vector<std::uint32_t> number_sources(const Tensor& t, const std::vector<std::string>& keys) {
    std::vector<std::uint32_t> numbers;
    for (const std::string& key : keys) {
      const auto [place, is_new] =
          source_number_.try_emplace(key, static_cast<std::uint32_t>(out_.plan.sources.size()));
      if (is_new) add_source(t, *inputs_.catalog.find(key));
      numbers.push_back(place->second);
    }
    return numbers;
  }

  void add_source(const Tensor& t, const CatalogTensor& found) {
    if (!found.dtype) {
      refuse(t.name, "R45",
             Error(Code::kUnknownDType, fmt::format("it needs {}, whose dtype {} is unknown", quote(found.name),
                                                    quote(found.unknown_dtype))));
    }
    const auto [file, is_new] =
        file_number_.try_emplace(found.file, static_cast<std::uint32_t>(out_.plan.files.size()));
    if (is_new) {
      const checkpoint::CatalogFile& f = inputs_.catalog.files[found.file];
      out_.plan.files.push_back({f.name, f.size_bytes});
    }
    out_.plan.sources.push_back({found.name, file->second, found.bytes, found.dtype.value_or(DType::kU8), found.shape});
  }

  // No file has it, or not in this shape: a derivation, the value that is there, or an initial value.
  void by_value(const std::vector<std::size_t>& members, FromFile from_file) {
    Statement& s = statement(members.front());
    const bool other_shape = from_file == FromFile::kOtherShape;
    const bool missing = !other_shape && std::all_of(members.begin(), members.end(),
                                                     [&](std::size_t i) { return is_missing(tensor(i)); });
    if (missing) {
      report_missing(members);
      return;
    }
    if (take_recipe(members, s, &Tensor::derivation, "R6", "its value follows from the model's configuration")) {
      out_.is_derived[members.front()] = true;
      return;
    }
    for (const std::size_t i : members) {
      if (tensor(i).presence != Presence::kReal) continue;
      s.provenance = Provenance::kKept;
      s.kept_device = tensor(i).device;
      s.rule = "R7";
      s.reason = "no file has it, and the value that is there is kept";
      return;
    }
    const std::string_view why = other_shape ? "the checkpoint has it in another shape, so it is initialised"
                                             : "no file has it; it is initialised";
    if (take_recipe(members, s, &Tensor::init, other_shape ? "R21" : "R12", why)) return;
    const Tensor& t = tensor(members.front());
    const bool never_in_file = !can_be_in_a_file(t.kind);
    refuse(t.name, never_in_file ? "R6" : "R13",
           Error(Code::kPlan, fmt::format("nothing says what the value of this {} is", describe(t.kind)))
               .wanted("a derivation, a real value or a recipe")
               .got("none of them")
               .try_this("Build the model under lading.skeleton(), or give a recipe for it"));
  }

  // A key that the checkpoint should have had, and that nobody said may be missing (R39).
  [[nodiscard]] bool is_missing(const Tensor& t) const {
    return can_be_in_a_file(t.kind) && !t.adapter && !allow_missing_.matches(t.name);
  }

  bool take_recipe(const std::vector<std::size_t>& members, Statement& s, std::optional<model::Recipe> Tensor::*which,
                   std::string_view rule, std::string_view reason) {
    for (const std::size_t i : members) {
      const auto& recipe = tensor(i).*which;
      if (!recipe) continue;
      s.recipe = *recipe;
      s.provenance = provenance_of(recipe->kind);
      s.rule = rule;
      s.reason = reason;
      return true;
    }
    return false;
  }

  void report_missing(const std::vector<std::size_t>& members) {
    const Tensor& t = tensor(members.front());
    std::string found = "no such key";
    if (const auto note = resolved_.tensor_notes.find(t.name); note != resolved_.tensor_notes.end())
      found = note->second;
    if (members.size() > 1) found += fmt::format(", nor any of the {} tensors tied to it", members.size() - 1);
    refuse(t.name, members.size() > 1 ? "R50" : "R39",
           Error(Code::kPlan, fmt::format("the checkpoint does not have this {}", describe(t.kind)))
               .wanted(fmt::format("a key for {}", t.shape.text()))
               .got(std::move(found))
               .try_this("Map its key, or say that it may be missing (allow_missing)"));
  }

  void check_ties() {
    if (!ties_hold()) return;
    for (const auto& names : skeleton_.tie_classes) {
      std::vector<policy::TieMember> members;
      std::vector<const Statement*> placed;
      for (const std::string& name : names) {
        const Statement& s = statement(index_of(name));
        members.push_back({s.name, s.storage, s.compute});
        placed.push_back(&s);
      }
      errors_.add(policy::check_tie_dtypes(members));
      errors_.add(check_tie_placements(placed));
      check_tie_sources(names);
    }
  }

  // Keys that are to be equal must at least be of one dtype; their bytes are compared while loading (R50).
  void check_tie_sources(const std::vector<std::string>& names) {
    const Statement& head = statement(index_of(names.front()));
    if (head.provenance != Provenance::kFile) return;
    for (const Expression& other : head.must_equal) {
      auto pieces = mapping::expand(other, [&](std::string_view key) { return shape_of(key); });
      if (!pieces) {
        for (Error error : pieces.error()) errors_.add(std::move(error).of_tensor(head.name));
        continue;
      }
      const auto mine = inputs_.catalog.find(head.expression.keys().front());
      const auto theirs = inputs_.catalog.find(other.keys().front());
      if (pieces->shape == head.shape && mine->dtype == theirs->dtype) {
        number_sources(tensor(index_of(head.name)), pieces->sources);
        continue;
      }
      refuse(head.name, "R50",
             Error(Code::kPlan, "the checkpoint has the tied tensors in different forms")
                 .wanted(fmt::format("{} as {}", other.text(), head.shape.text()))
                 .got(pieces->shape.text())
                 .try_this("Untie them before sharding (ties = untie), or map one key only"));
    }
  }

  void check_groups() {
    std::vector<policy::GroupMember> members;
    for (std::size_t i = 0; i < out_.plan.statements.size(); ++i) {
      const Statement& s = statement(i);
      if (s.kind != Kind::kParameter || s.placement.fsdp_group.empty()) continue;
      members.push_back({s.name, s.placement.fsdp_group, s.storage, s.compute, tensor(i).requires_grad});
    }
    errors_.add(policy::check_groups(members));
  }

  void order_calls() {
    auto order = call_order(out_.plan.statements);
    if (order) {
      out_.plan.call_order = *std::move(order);
    } else {
      errors_.add(std::move(order).error());
    }
  }

  // Of a key that is read, every element should be: a chunk that nobody takes is a tensor half dropped (R11).
  void report_partly_read() {
    std::vector<std::uint64_t> read_elems(out_.plan.sources.size(), 0);
    for (const FilePieces& file : out_.pieces) {
      for (const mapping::Piece& piece : file.pieces.pieces) {
        if (!piece.is_fill()) read_elems[file.source_numbers[piece.source]] += piece.elems();
      }
    }
    std::set<std::string> compared;  // read for comparison only (R50)
    for (const Statement& s : out_.plan.statements) {
      for (const Expression& other : s.must_equal) {
        for (std::string& key : other.keys()) compared.insert(std::move(key));
      }
    }
    for (std::size_t i = 0; i < read_elems.size(); ++i) {
      const Source& source = out_.plan.sources[i];
      const std::uint64_t elems = *source.shape.num_elems();
      if (read_elems[i] >= elems || compared.contains(source.key)) continue;
      out_.plan.warnings.add(Error(Code::kPlan, "no tensor takes all of this key")
                                 .of_tensor(source.key)
                                 .by_rule("R11")
                                 .wanted(fmt::format("{} elements", elems))
                                 .got(fmt::format("{} that are read", read_elems[i])));
    }
  }

  // Pins come from libraries' tables and may match nothing.
  void report_unmatched_pins() {
    for (const std::string& pattern : pins_.unmatched()) {
      out_.plan.warnings.add(
          Error(Code::kPolicy, fmt::format("the pin {} matches no tensor", quote(pattern))).by_rule("R25"));
    }
  }

  const PlanInputs& inputs_;
  const policy::Policy& policy_;
  const model::Skeleton& skeleton_;
  policy::Pins pins_;
  NameList allow_missing_;
  NameList allow_mismatch_;
  NameList keep_;
  NameList external_;
  mapping::Resolved resolved_;
  std::map<std::string, std::uint32_t, std::less<>> source_number_;
  std::map<std::uint32_t, std::uint32_t> file_number_;
  std::map<std::string, std::string> left_alone_;  // keys that a tensor has and does not read, and why
  Decisions out_;
  Errors errors_;
};

}  // namespace

Result<Decisions, Errors> decide(const PlanInputs& inputs) { return Decider(inputs).run(); }

}  // namespace lading::plan
