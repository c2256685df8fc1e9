#include "layout/strategy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <unordered_set>

#include "base/enumerator.h"
#include "base/text.h"

namespace lading::layout {
namespace {

struct StrategyRow {
  std::string_view word;
  Strategy strategy;
  std::vector<std::string_view> axes;  ///< which the mesh must have, and no others
  std::string_view example;
};

const std::array<StrategyRow, 7>& strategy_table() {
  static const std::array<StrategyRow, 7> table = {{
      {"single", Strategy::kSingle, {}, "no mesh"},
      {"ddp", Strategy::kDdp, {"dp"}, "dp=8"},
      {"fsdp2", Strategy::kFsdp2, {"dp"}, "dp=8"},
      {"hsdp", Strategy::kHsdp, {"replicate", "shard"}, "replicate=2,shard=4"},
      {"tp", Strategy::kTp, {"tp"}, "tp=8"},
      {"fsdp2+tp", Strategy::kFsdp2Tp, {"dp", "tp"}, "dp=4,tp=2"},
      {"zero3", Strategy::kZero3, {}, "dp=8"},
  }};
  return table;
}

constexpr std::array<std::pair<std::string_view, TpStyle>, 4> kTpStyles = {{{"colwise", TpStyle::kColwise},
                                                                            {"rowwise", TpStyle::kRowwise},
                                                                            {"replicate", TpStyle::kReplicate},
                                                                            {"vocab", TpStyle::kVocab}}};

const StrategyRow& row_of(Strategy strategy) {
  const auto& table = strategy_table();
  return *std::find_if(table.begin(), table.end(), [&](const StrategyRow& row) { return row.strategy == strategy; });
}

void check_fit(const StrategyRequest& request, Errors& errors) {
  const StrategyRow& row = row_of(request.strategy);
  const std::string remedy = fmt::format("Use a mesh such as {}, or another strategy.", row.example);
  const auto refuse = [&](std::string message, std::string expected) {
    errors.add(Error(Code::kLayout, std::move(message))
                   .wanted(std::move(expected))
                   .got(request.mesh.axes().empty() ? "no mesh" : request.mesh.text())
                   .try_this(remedy));
  };
  if (request.strategy == Strategy::kSingle) {
    if (request.mesh.ranks() != 1) refuse("the strategy single is for one rank", "a mesh of 1 rank");
    return;
  }
  if (request.strategy == Strategy::kZero3) {
    if (request.mesh.axes().empty()) refuse("the strategy zero3 needs a mesh", "one axis or more");
    return;
  }
  std::set<std::string_view> needed(row.axes.begin(), row.axes.end());
  std::set<std::string_view> there;
  for (const Axis& axis : request.mesh.axes()) there.insert(axis.name);
  if (needed != there) {
    refuse(fmt::format("the mesh does not fit the strategy {}", row.word),
           fmt::format("exactly the axes {}", fmt::join(row.axes, ", ")));
  }
}

class Maker {
 public:
  explicit Maker(const StrategyRequest& request) : request_(request), rule_used_(request.tp_plan.size(), false) {}

  std::vector<Cut> cuts_for(const TensorToPlace& tensor) {
    // FSDP and ZeRO leave buffers alone; whoever wants one cut writes a layout (R57).
    if (!tensor.is_parameter) return {};
    std::vector<Cut> cuts;
    switch (request_.strategy) {
      case Strategy::kSingle:
      case Strategy::kDdp: break;
      case Strategy::kFsdp2: add_fsdp(tensor, "dp", cuts); break;
      case Strategy::kHsdp: add_fsdp(tensor, "shard", cuts); break;
      case Strategy::kTp: add_tp(tensor, cuts); break;
      case Strategy::kFsdp2Tp:
        add_tp(tensor, cuts);
        add_fsdp(tensor, "dp", cuts);
        break;
      case Strategy::kZero3: add_flat(tensor, cuts); break;
    }
    return cuts;
  }

  void report_unused_rules(Errors& errors) const {
    for (std::size_t i = 0; i < rule_used_.size(); ++i) {
      if (rule_used_[i]) continue;
      errors.add(Error(Code::kLayout, fmt::format("the tensor-parallel rule {} applies to no parameter",
                                                  quote(request_.tp_plan[i].pattern.text)))
                     .by_rule("R43")
                     .try_this("Correct the pattern, move the rule before the rule that hides it, or remove it."));
    }
  }

  [[nodiscard]] std::vector<std::string> notes() && { return std::move(notes_); }

 private:
  [[nodiscard]] std::vector<std::size_t> axis(std::string_view name) const { return {*request_.mesh.find(name)}; }

  void add_shard(std::size_t dim, std::string_view axis_name, std::vector<Cut>& cuts) const {
    Cut cut;
    cut.axes = axis(axis_name);
    cut.dim = dim;
    cuts.push_back(std::move(cut));
  }

  void add_fsdp(const TensorToPlace& tensor, std::string_view axis_name, std::vector<Cut>& cuts) {
    if (tensor.shape.rank() == 0) {
      note(tensor, "has no dims; it is replicated, because FSDP2 rejects such parameters");
    } else {
      add_shard(0, axis_name, cuts);
      cuts.back().gathered = true;
    }
  }

  void add_flat(const TensorToPlace& tensor, std::vector<Cut>& cuts) {
    if (tensor.shape.rank() == 0) {
      note(tensor, "has no dims; DeepSpeed's zero.Init (0.19.8) fails on such parameters with several ranks");
    }
    Cut cut;
    cut.kind = CutKind::kFlat;
    for (std::size_t i = 0; i < request_.mesh.axes().size(); ++i) cut.axes.push_back(i);
    cuts.push_back(std::move(cut));
  }

  void add_tp(const TensorToPlace& tensor, std::vector<Cut>& cuts) {
    const std::size_t dims = tensor.shape.rank();
    const TpStyle style = style_of(tensor);
    if (style == TpStyle::kReplicate) return;
    if (dims == 0) {
      note(tensor, "has no dims, so it is replicated over tp");
    } else if (style == TpStyle::kVocab) {
      add_shard(0, "tp", cuts);
    } else if (style == TpStyle::kColwise) {
      add_shard(dims < 2 ? 0 : dims - 2, "tp", cuts);
    } else if (dims > 1) {
      add_shard(dims - 1, "tp", cuts);
    }
  }

  TpStyle style_of(const TensorToPlace& tensor) {
    if (request_.tp_plan.empty()) return tensor.shape.rank() == 2 ? TpStyle::kVocab : TpStyle::kReplicate;
    for (std::size_t i = 0; i < request_.tp_plan.size(); ++i) {
      if (!request_.tp_plan[i].pattern.matches(tensor.name)) continue;
      rule_used_[i] = true;
      return request_.tp_plan[i].style;
    }
    return TpStyle::kReplicate;
  }

  void note(const TensorToPlace& tensor, std::string_view what) {
    notes_.push_back(fmt::format("{} {}", quote(tensor.name), what));
  }

  const StrategyRequest& request_;
  std::vector<bool> rule_used_;
  std::vector<std::string> notes_;
};

/// What is true of most tensors becomes one rule at the end; the others are named before it.
std::vector<PlacementRule> as_rules(const std::vector<TensorToPlace>& tensors, std::vector<std::vector<Cut>> cuts) {
  std::vector<std::pair<std::vector<Cut>, std::size_t>> kinds;  // a handful
  for (const std::vector<Cut>& one : cuts) {
    const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.first == one; });
    if (found == kinds.end()) {
      kinds.emplace_back(one, 1);
    } else {
      ++found->second;
    }
  }
  const auto most =
      std::max_element(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::vector<PlacementRule> rules;
  if (most == kinds.end()) return rules;
  const auto rule = [](NamePattern pattern, std::vector<Cut> of) {
    PlacementRule made{std::move(pattern), {}};
    made.placement.slots.front().cuts = std::move(of);
    return made;
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (cuts[i] != most->first) rules.push_back(rule(NamePattern::exact(tensors[i].name), std::move(cuts[i])));
  }
  if (!most->first.empty()) rules.push_back(rule("*", most->first));
  return rules;
}

}  // namespace

Result<Strategy> parse_strategy(std::string_view text) {
  std::vector<std::string_view> words;
  for (const StrategyRow& row : strategy_table()) {
    if (row.word == text) return row.strategy;
    words.push_back(row.word);
  }
  return fail(Error(Code::kLayout, "the strategy is unknown")
                  .wanted(fmt::format("one of {}", fmt::join(words, ", ")))
                  .got(quote(text)));
}

std::string_view word(Strategy strategy) { return row_of(strategy).word; }

Result<TpStyle> parse_tp_style(std::string_view text) {
  std::vector<std::string_view> words;
  for (const auto& [name, style] : kTpStyles) {
    if (name == text) return style;
    words.push_back(name);
  }
  return fail(Error(Code::kLayout, "the tensor-parallel style is unknown")
                  .wanted(fmt::format("one of {}", fmt::join(words, ", ")))
                  .got(quote(text)));
}

Result<StrategyLayout, Errors> make_layout(const StrategyRequest& request, const std::vector<TensorToPlace>& tensors) {
  Errors errors = check_mesh(request.mesh);
  const bool is_known = is_enumerator(request.strategy, Strategy::kZero3) &&
                        std::all_of(request.tp_plan.begin(), request.tp_plan.end(),
                                    [](const TpRule& rule) { return is_enumerator(rule.style, TpStyle::kVocab); });
  if (!is_known) errors.add(Error(Code::kLayout, "the strategy or tensor-parallel style is not a known enumerator"));
  if (!errors.empty()) return fail(std::move(errors));
  check_fit(request, errors);
  const bool uses_plan = request.strategy == Strategy::kTp || request.strategy == Strategy::kFsdp2Tp;
  if (!uses_plan && !request.tp_plan.empty()) {
    errors.add(
        Error(Code::kLayout, fmt::format("the strategy {} does not use a tensor-parallel plan", word(request.strategy)))
            .try_this("Use the strategy tp or fsdp2+tp, or omit the tensor-parallel plan."));
  }
  // A model's tensors come sorted; then neighbours tell whether a name is there twice.
  const auto not_before = [](const TensorToPlace& a, const TensorToPlace& b) { return !(a.name < b.name); };
  const bool all_differ = std::adjacent_find(tensors.begin(), tensors.end(), not_before) == tensors.end();
  std::unordered_set<std::string_view> names;
  for (const TensorToPlace& tensor : tensors) {
    if (!all_differ && !names.insert(tensor.name).second) {
      errors.add(Error(Code::kLayout, "the tensor is listed twice").of_tensor(tensor.name));
    }
  }
  if (!errors.empty()) return fail(std::move(errors));

  Maker maker(request);
  std::vector<std::vector<Cut>> cuts;
  cuts.reserve(tensors.size());
  for (const TensorToPlace& tensor : tensors) cuts.push_back(maker.cuts_for(tensor));
  maker.report_unused_rules(errors);

  StrategyLayout made;
  made.layout = Layout{request.mesh, request.devices, as_rules(tensors, std::move(cuts))};
  made.notes = std::move(maker).notes();
  errors.add(check_layout(made.layout, tensors));
  if (!errors.empty()) return fail(std::move(errors));
  return made;
}

}  // namespace lading::layout
