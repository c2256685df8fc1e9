#include "planner/tie_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/name_list.h"
#include "base/text.h"

namespace lading::planner {
namespace {

using mapping::Expression;
using model::Presence;
using model::Tensor;
using Members = std::vector<StatementId>;

// Frameworks keep these names. A plain attribute that lists the same tensor may be gone after sharding (an LSTM's
// `_flat_weights` under ZeRO-3), and random values are keyed by the head's name (R16).
bool is_registered(model::Kind kind) {
  return kind == model::Kind::kParameter || kind == model::Kind::kBuffer || kind == model::Kind::kNonPersistentBuffer;
}

class TieGrouper {
 public:
  TieGrouper(const PlanInputs& inputs, const mapping::Resolution& names, Decisions& out)
      : inputs_(inputs),
        names_(names),
        out_(out),
        may_untie_(inputs.policy.may_untie),
        keep_(inputs.policy.keep),
        external_(inputs.policy.external) {}

  Errors run() {
    const auto& tensors = inputs_.skeleton.tensors;
    for (const auto& names : inputs_.skeleton.tie_classes) {
      Members members;
      for (const std::string& name : names) {
        members.push_back(StatementId(static_cast<std::size_t>(inputs_.skeleton.find(name) - tensors.data())));
      }
      const std::vector<Members> groups =
          inputs_.policy.ties == policy::Ties::kKeep ? left(members) : taken_apart(members);
      if (groups.size() > 1) check_can_be_untied(members);
      for (const Members& group : groups) {
        tie(group);
        check_can_be_one(group);
      }
    }
    return std::move(errors_);
  }

 private:
  [[nodiscard]] const Tensor& tensor(StatementId i) const { return inputs_.skeleton.tensors[i.number()]; }

  [[nodiscard]] const Expression* expression_of(StatementId i) const {
    const auto found = names_.resolved.expressions.find(tensor(i).name);
    return found == names_.resolved.expressions.end() ? nullptr : &found->second;
  }

  // The class, and each that leaves it (may_untie): it has a key of its own, and another is left for the class. A
  // class with memory stays whole.
  [[nodiscard]] std::vector<Members> left(const Members& members) const {
    std::vector<Members> groups(1);
    std::vector<StatementId> leaving;
    std::vector<const Expression*> of_class;
    for (const StatementId i : members) {
      if (tensor(i).presence != Presence::kMeta) return {members};
      const Expression* const own = is_by_word(i) ? nullptr : expression_of(i);
      if (own != nullptr && may_untie_.matches(tensor(i).name)) {
        leaving.push_back(i);
      } else {
        groups.front().push_back(i);
        if (own != nullptr) of_class.push_back(own);
      }
    }
    if (of_class.empty()) return {members};
    for (const StatementId i : leaving) {
      const bool is_same = std::any_of(of_class.begin(), of_class.end(),
                                       [&](const Expression* one) { return *one == *expression_of(i); });
      if (is_same) {
        groups.front().push_back(i);
      } else {
        groups.push_back({i});
      }
    }
    std::sort(groups.front().begin(), groups.front().end());
    return groups;
  }

  // What the user keeps or hands in, or an adapter has: its value is not the base checkpoint's.
  [[nodiscard]] bool is_by_word(StatementId i) const {
    return keep_.matches(tensor(i).name) || external_.matches(tensor(i).name) || out_.adapter_keys.contains(i);
  }

  // By source. Two names for one expression have one source; what the user keeps or hands in is one of its own.
  // A member without any could go with each of several, and nothing says with which.
  [[nodiscard]] std::vector<Members> taken_apart(const Members& members) {
    std::vector<std::pair<const Expression*, Members>> groups;
    Members without;
    for (const StatementId i : members) {
      const bool by_word = is_by_word(i);
      const Expression* expression = by_word ? nullptr : expression_of(i);
      const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
        return expression != nullptr && group.first != nullptr && *group.first == *expression;
      });
      if (same != groups.end()) {
        same->second.push_back(i);
      } else if (expression != nullptr || by_word) {
        groups.emplace_back(expression, Members{i});
      } else {
        without.push_back(i);
      }
    }
    if (groups.size() < 2) return {members};
    if (!without.empty()) {
      Members candidates;
      for (const auto& group : groups) candidates.push_back(group.second.front());
      refuse(
          members, tensor(without.front()).name, "R50",
          Error(Code::kPlan, "the tied tensors get separate sources, but this one has none")
              .wanted(fmt::format("a source of its own for {}", listed(without)))
              .got(fmt::format("sources for {}", listed(candidates)))
              .try_this("Map a key of the checkpoint to it (--mapping FILE), supply its value (\"external\"), or keep "
                        "the ties (\"ties\": \"keep\")."));
      return {members};
    }
    std::vector<Members> apart;
    apart.reserve(groups.size());
    for (auto& [expression, group] : groups) apart.push_back(std::move(group));
    return apart;
  }

  // Memory that is there is one storage, and stays one.
  void check_can_be_untied(const Members& members) {
    const auto has_memory = [&](StatementId i) { return tensor(i).presence != Presence::kMeta; };
    if (std::none_of(members.begin(), members.end(), has_memory)) return;
    refuse(members, tensor(members.front()).name, "R50",
           Error(Code::kPlan, "tied tensors that already have memory cannot be untied")
               .wanted("tensors on meta")
               .try_this("Untie the model before it is allocated and sharded."));
  }

  // One storage is on one device, and one parameter is trained or is not, whatever names it has.
  void check_can_be_one(const Members& group) {
    const auto first_that = [&](const auto& is_one) -> const Tensor* {
      const auto found = std::find_if(group.begin(), group.end(), [&](StatementId i) { return is_one(tensor(i)); });
      return found == group.end() ? nullptr : &tensor(*found);
    };
    const auto has_memory = [](const Tensor& t) { return t.presence != Presence::kMeta; };
    if (const Tensor* one = first_that(has_memory)) {
      const Tensor* other = first_that([&](const Tensor& t) { return has_memory(t) && t.device != one->device; });
      if (other != nullptr) {
        refuse(
            group, one->name, "R49",
            Error(Code::kPlan, fmt::format("the tensor is tied to {}, which is on another device", quote(other->name)))
                .wanted("one device for one storage")
                .got(fmt::format("{} and {}", quote(one->device), quote(other->device)))
                .try_this("Tie them after both are on one device, or remove the tie."));
      }
    }
    const auto is_parameter = [](const Tensor& t) { return t.kind == model::Kind::kParameter; };
    if (const Tensor* one = first_that(is_parameter)) {
      const Tensor* other =
          first_that([&](const Tensor& t) { return is_parameter(t) && t.requires_grad != one->requires_grad; });
      if (other != nullptr) {
        refuse(group, one->name, "R49",
               Error(Code::kPlan,
                     fmt::format("the tensor is tied to {}, but only one of them is trainable", quote(other->name)))
                   .wanted("one requires_grad for one parameter")
                   .got(fmt::format("{} with {}, {} with {}", quote(one->name), one->requires_grad, quote(other->name),
                                    other->requires_grad))
                   .try_this("Set the same requires_grad under all names of the parameter, or remove the tie."));
      }
    }
  }

  void refuse(const Members& members, std::string_view name, std::string_view rule, Error error) {
    errors_.add(std::move(error).of_tensor(name).by_rule(rule));
    for (const StatementId i : members) out_.tensors[i].is_refused = true;
  }

  [[nodiscard]] std::string listed(const Members& members) const {
    constexpr std::size_t kShown = 5;
    std::string text;
    for (std::size_t m = 0; m < std::min(members.size(), kShown); ++m)
      text += (m == 0 ? "" : ", ") + quote(tensor(members[m]).name);
    if (members.size() > kShown) text += fmt::format(" and {} more", members.size() - kShown);
    return text;
  }

  void tie(const Members& group) {
    const auto first_that = [&](const auto& is_one) -> std::optional<StatementId> {
      const auto found = std::find_if(group.begin(), group.end(), [&](StatementId i) { return is_one(tensor(i)); });
      return found == group.end() ? std::nullopt : std::optional(*found);
    };
    const auto registered = first_that([](const Tensor& t) { return is_registered(t.kind); });
    const StatementId head = registered.value_or(group.front());
    for (const StatementId i : group) out_.tensors[i].head = head;
    Speakers& speakers = out_.tensors[head].speakers;
    speakers.kind = first_that([](const Tensor& t) { return t.kind == model::Kind::kParameter; }).value_or(head);
    const auto real = first_that([](const Tensor& t) { return t.presence == Presence::kReal; });
    const auto empty = first_that([](const Tensor& t) { return t.presence == Presence::kEmpty; });
    speakers.memory = real ? *real : empty.value_or(speakers.kind);
  }

  const PlanInputs& inputs_;
  const mapping::Resolution& names_;
  Decisions& out_;
  NameList may_untie_;
  NameList keep_;
  NameList external_;
  Errors errors_;
};

}  // namespace

Errors group_ties(const PlanInputs& inputs, const mapping::Resolution& names, Decisions& decisions) {
  return TieGrouper(inputs, names, decisions).run();
}

}  // namespace lading::planner
