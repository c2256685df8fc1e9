#include "planner/decide.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/text.h"
#include "planner/adapter_keys.h"
#include "planner/call_order.h"
#include "planner/decide_dtypes.h"
#include "planner/decide_sources.h"
#include "planner/fsdp_units.h"
#include "planner/input_checks.h"
#include "planner/nothing_in_common.h"
#include "planner/quantized/dequantize.h"
#include "planner/quantized/kept_cuts.h"
#include "planner/quantized/packed_weights.h"
#include "planner/quantized/quantization_config.h"
#include "planner/quantized/quantized_checks.h"
#include "planner/source_coverage.h"
#include "planner/tie_groups.h"
#include "planner/value_checks.h"

namespace lading::planner {
namespace {

using model::Kind;
using model::Tensor;

class Decider {
 public:
  explicit Decider(const PlanInputs& inputs)
      : inputs_(inputs), policy_(inputs.policy), skeleton_(inputs.skeleton), pins_(inputs.skeleton, inputs.policy) {}

  Result<Decisions, Errors> run() {
    const Errors of_policy = policy::check_policy(policy_);
    policy_is_sound_ = of_policy.empty();
    errors_.add(of_policy);
    resolve_names();
    const NotDequantized not_dequantized = dequantize_payloads(inputs_, packed_, names_);
    begin_statements();
    const Errors of_adapters = find_adapter_keys(inputs_, out_);
    const Errors of_ties = group_ties(inputs_, names_, out_);
    check_the_layout();
    errors_.add(names_.problems);
    errors_.add(of_adapters);
    errors_.add(of_ties);
    errors_.add(decide_sources(inputs_, names_, out_));
    const QuantizedProblems quantized = check_companions(inputs_, not_dequantized, out_);
    errors_.add(quantized.errors);
    errors_.add(check_lost_scales(inputs_, out_));
    add_about_config(check_quantization_config(inputs_, out_));
    if (policy_is_sound_) add_about_tensors(decide_dtypes(inputs_, pins_, out_));
    if (policy_is_sound_) errors_.add(check_payload_casts(inputs_, out_));
    errors_.add(check_keys(inputs_, names_, quantized.left_over, out_.plan));
    std::sort(out_.plan.ignored_keys.begin(), out_.plan.ignored_keys.end());
    check_ties();
    if (policy_is_sound_) check_values();
    if (policy_is_sound_ && layout_is_sound_) check_units_that_are_known();
    if (layout_is_sound_) errors_.add(check_placements(inputs_, out_));
    if (layout_is_sound_) errors_.add(check_kept_cuts(inputs_, out_));
    order_calls();
    if (layout_is_sound_) errors_.add(check_call_places(inputs_, out_));
    report_partly_read();
    report_unmatched_pins();
    errors_.add(check_name_lists(inputs_, out_.plan));
    if (!errors_.empty() || have_nothing_in_common(inputs_, names_)) {
      Errors all;
      if (!out_.tells_of_payloads) all = name_unread_payloads(inputs_, names_, not_dequantized, errors_);
      all.add(tell_nothing_in_common(inputs_, names_));
      all.add(std::move(errors_));
      return fail(std::move(all));
    }
    Plan& plan = out_.plan;
    plan.mesh = inputs_.layout.mesh;
    plan.devices = inputs_.layout.devices;
    plan.seed = policy_.seed;
    plan.budget_bytes = policy_.budget_bytes;
    plan.keys.dequantized = count_dequantized(plan);
    return std::move(out_);
  }

 private:
  void resolve_names() {
    std::vector<mapping::Target> targets;
    targets.reserve(skeleton_.tensors.size());
    for (const Tensor& t : skeleton_.tensors) targets.push_back({t.name, &t.shape, can_be_in_a_file(t.kind)});
    std::vector<std::string_view> keys;
    const auto of_base = inputs_.catalog.tensors_of(0);  // adapters are never mapped
    keys.reserve(of_base.size());
    for (const checkpoint::CatalogTensor& t : of_base) keys.push_back(t.name);
    // Packed weights are mapped as if the checkpoint were not quantized.
    packed_ = packed_weights_of(inputs_);
    for (const auto& [name, weight] : packed_.by_name) {
      if (inputs_.catalog.find(name) == nullptr) keys.push_back(name);
    }
    std::sort(keys.begin(), keys.end());
    names_ = mapping::resolve_partly(inputs_.mapping, targets, keys, [&](std::string_view key) -> const Shape* {
      if (const auto packed = packed_.by_name.find(key); packed != packed_.by_name.end()) return &packed->second.shape;
      const checkpoint::CatalogTensor* found = inputs_.catalog.find(key);
      return found == nullptr ? nullptr : &found->shape;
    });
  }

  // Under "unexpected": "report", what config.json says wrongly is reported as unexpected keys are.
  void add_about_config(Errors problems) {
    if (policy_.unexpected == policy::Strictness::kReport) {
      out_.plan.warnings.add(std::move(problems));
    } else {
      errors_.add(std::move(problems));
    }
  }

  void begin_statements() {
    const layout::PlacementIndex placements(inputs_.layout);
    out_.plan.statements.reserve(skeleton_.tensors.size());
    for (const Tensor& t : skeleton_.tensors) {
      Statement& s = out_.plan.statements.emplace_back();
      s.name = t.name;
      s.kind = t.kind;
      s.shape = t.shape;
      s.placement = placements.of(t.name);
      if (s.placement.slots.empty()) s.placement.slots.emplace_back();  // which check_layout() refuses
    }
    out_.tensors.resize(out_.plan.statements.size());
    for (const StatementId i : out_.tensors.ids()) {
      out_.tensors[i].head = i;
      out_.tensors[i].speakers = {i, i, i};
    }
    for (const std::string& name : names_.disputed) out_.tensors[*id_of(name)].is_refused = true;
  }

  [[nodiscard]] std::optional<StatementId> id_of(const std::optional<std::string>& name) const {
    const Tensor* found = name ? skeleton_.find(*name) : nullptr;
    if (found == nullptr) return std::nullopt;
    return StatementId(static_cast<std::size_t>(found - skeleton_.tensors.data()));
  }

  void check_the_layout() {
    std::vector<layout::TensorToPlace> infos;
    infos.reserve(skeleton_.tensors.size());
    for (const StatementId i : out_.tensors.ids()) {
      const Tensor& t = skeleton_.tensors[i.number()];
      infos.push_back({t.name, t.shape, t.kind == Kind::kParameter, out_.tensors[i].head != i});
    }
    const Errors problems = layout::check_layout(inputs_.layout, infos);
    for (const Error& problem : problems) {
      const auto i = id_of(problem.tensor);
      if (i) out_.tensors[*i].is_misplaced = true;
      layout_is_sound_ = layout_is_sound_ && i;
    }
    errors_.add(problems);
  }

  // Nothing is known of the dtypes of a tensor that has such a problem, nor of those tied to it.
  void add_about_tensors(const Errors& problems) {
    std::set<StatementId> heads;
    for (const Error& problem : problems) {
      if (const auto i = id_of(problem.tensor)) heads.insert(out_.tensors[*i].head);
    }
    for (const StatementId i : out_.tensors.ids()) {
      if (heads.contains(out_.tensors[i].head)) out_.tensors[i].is_refused = true;
    }
    errors_.add(problems);
  }

  void check_ties() {
    for (const auto& members : out_.tie_classes()) {
      std::vector<policy::TieMember> dtypes;
      std::vector<const Statement*> placed;
      for (const StatementId i : members) {
        const Statement& s = out_.plan.statements[i];
        if (!out_.tensors[i].is_refused) dtypes.push_back({s.name, s.storage, s.compute});
        if (!out_.tensors[i].is_misplaced) placed.push_back(&s);
      }
      if (policy_is_sound_ && dtypes.size() > 1) errors_.add(policy::check_tie_dtypes(dtypes));
      if (layout_is_sound_) errors_.add(check_tie_placements(placed, inputs_.layout.mesh));
    }
  }

  void check_values() {
    for (const StatementId i : out_.plan.statements.ids()) {
      if (errors_.is_full()) break;
      if (out_.tensors[i].is_refused) continue;
      if (auto problem = find_value_problem(out_.plan.statements[i])) {
        errors_.add(*std::move(problem));
      }
    }
  }

  // What is refused anyway is in no unit, so that nothing is compared with it.
  void check_units_that_are_known() {
    for (const StatementId i : out_.plan.statements.ids()) {
      if (out_.tensors[i].is_refused || out_.tensors[i].is_misplaced)
        out_.plan.statements[i].placement.fsdp_group.clear();
    }
    errors_.add(check_units(inputs_, out_.plan));
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
    std::vector<std::pair<SourceId, const mapping::Piece*>> pieces;  // by source
    pieces.reserve(out_.tensors.size());
    const auto collect = [&](const FilePieces& file) {
      for (const mapping::Piece& piece : file.pieces.pieces) {
        if (!piece.is_fill()) pieces.emplace_back(file.source_numbers[piece.source.number()], &piece);
      }
    };
    for (const Decision& decision : out_.tensors) {
      collect(decision.pieces);
      std::for_each(decision.compared.begin(), decision.compared.end(), collect);
    }
    const auto by_source = [](const auto& a, const auto& b) { return a.first < b.first; };
    if (!std::is_sorted(pieces.begin(), pieces.end(), by_source)) {
      std::stable_sort(pieces.begin(), pieces.end(), by_source);
    }
    std::set<SourceId> scales;  // read by the rows that a rank needs
    for (const Source& source : out_.plan.sources) {
      if (!source.scaling) continue;
      for (const SourceId one :
           {source.scaling->scales, source.scaling->zeros, source.scaling->tensor_scale, source.scaling->groups}) {
        if (!one.is_none()) scales.insert(one);
      }
    }
    std::vector<const mapping::Piece*> of_source;
    auto next = pieces.begin();
    for (const SourceId i : out_.plan.sources.ids()) {
      of_source.clear();
      for (; next != pieces.end() && next->first == i; ++next) of_source.push_back(next->second);
      const Source& source = out_.plan.sources[i];
      const std::uint64_t elems = *source.shape.num_elems();
      const std::uint64_t read_elems = covered_elems(source.shape, of_source);
      if (read_elems >= elems || scales.contains(i)) continue;
      out_.plan.warnings.add(Error(Code::kPlan, "the model uses only part of this key")
                                 .of_tensor(source.key)
                                 .by_rule("R11")
                                 .wanted(fmt::format("{} elements", elems))
                                 .got(fmt::format("{} elements that are read", read_elems))
                                 .try_this("Check that the mapping leaves these elements out on purpose."));
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
  mapping::Resolution names_;
  PackedWeights packed_;
  bool policy_is_sound_ = true;
  bool layout_is_sound_ = true;  // but for single tensors
  Decisions out_;
  Errors errors_;
};

}  // namespace

std::vector<std::vector<StatementId>> Decisions::tie_classes() const {
  std::map<StatementId, std::vector<StatementId>> by_head;
  for (const StatementId i : tensors.ids()) {
    const StatementId head = tensors[i].head;
    if (head != i) by_head.try_emplace(head, 1, head).first->second.push_back(i);
  }
  std::vector<std::vector<StatementId>> classes;
  classes.reserve(by_head.size());
  for (auto& [head, members] : by_head) classes.push_back(std::move(members));
  return classes;
}

Result<Decisions, Errors> decide(const PlanInputs& inputs) { return Decider(inputs).run(); }

}  // namespace lading::planner
