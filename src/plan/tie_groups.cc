#include "plan/tie_groups.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "plan/name_list.h"

namespace lading::plan {
namespace {

using mapping::Expression;
using model::Presence;
using model::Tensor;
using Members = std::vector<std::uint32_t>;

class TieGrouper {
 public:
  TieGrouper(const PlanInputs& inputs, const mapping::Resolution& names, Decisions& out)
      : inputs_(inputs), names_(names), out_(out), keep_(inputs.policy.keep), external_(inputs.policy.external) {}

  Errors run() {
    const auto& tensors = inputs_.skeleton.tensors;
    out_.class_of.reserve(tensors.size());
    out_.speakers.reserve(tensors.size());
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      out_.class_of.push_back(i);
      out_.speakers.push_back({i, i, i});
    }
    for (const auto& names : inputs_.skeleton.tie_classes) {
      Members members;
      for (const std::string& name : names) {
        members.push_back(static_cast<std::uint32_t>(inputs_.skeleton.find(name) - tensors.data()));
      }
      const std::vector<Members> groups =
          inputs_.policy.ties == policy::Ties::kKeep ? std::vector<Members>{members} : taken_apart(members);
      if (groups.size() > 1) check_can_be_untied(members);
      for (const Members& group : groups) tie(group);
    }
    return std::move(errors_);
  }

 private:
  [[nodiscard]] const Tensor& tensor(std::uint32_t i) const { return inputs_.skeleton.tensors[i]; }

  [[nodiscard]] const Expression* expression_of(std::uint32_t i) const {
    const auto found = names_.resolved.expressions.find(tensor(i).name);
    return found == names_.resolved.expressions.end() ? nullptr : &found->second;
  }

  // By source. Two names for one expression have one source; what the user keeps or hands in is one of its own.
  [[nodiscard]] std::vector<Members> taken_apart(const Members& members) const {
    std::vector<std::pair<const Expression*, Members>> groups;
    Members without;
    for (const std::uint32_t i : members) {
      const bool by_word = keep_.matches(tensor(i).name) || external_.matches(tensor(i).name);
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
    Members& first = groups.front().second;
    first.insert(first.end(), without.begin(), without.end());
    std::sort(first.begin(), first.end());
    std::vector<Members> apart;
    for (auto& [expression, group] : groups) apart.push_back(std::move(group));
    return apart;
  }

  // Memory that is there is one storage, and stays one.
  void check_can_be_untied(const Members& members) {
    const auto has_memory = [&](std::uint32_t i) { return tensor(i).presence != Presence::kMeta; };
    if (std::none_of(members.begin(), members.end(), has_memory)) return;
    errors_.add(Error(Code::kPlan, "tied memory that is already there cannot be untied")
                    .of_tensor(tensor(members.front()).name)
                    .by_rule("R50")
                    .wanted("tensors on meta")
                    .try_this("Untie the model before it is allocated and sharded"));
    for (const std::uint32_t i : members) out_.is_refused[i] = true;
  }

  void tie(const Members& group) {
    const auto first_that = [&](const auto& is_one) -> std::optional<std::uint32_t> {
      const auto found = std::find_if(group.begin(), group.end(), [&](std::uint32_t i) { return is_one(tensor(i)); });
      return found == group.end() ? std::nullopt : std::optional(*found);
    };
    const std::uint32_t head = group.front();
    for (const std::uint32_t i : group) out_.class_of[i] = head;
    Speakers& speakers = out_.speakers[head];
    speakers.kind = first_that([](const Tensor& t) { return t.kind == model::Kind::kParameter; }).value_or(head);
    const auto real = first_that([](const Tensor& t) { return t.presence == Presence::kReal; });
    const auto empty = first_that([](const Tensor& t) { return t.presence == Presence::kEmpty; });
    speakers.memory = real ? *real : empty.value_or(speakers.kind);
  }

  const PlanInputs& inputs_;
  const mapping::Resolution& names_;
  Decisions& out_;
  NameList keep_;
  NameList external_;
  Errors errors_;
};

}  // namespace

Errors group_ties(const PlanInputs& inputs, const mapping::Resolution& names, Decisions& decisions) {
  return TieGrouper(inputs, names, decisions).run();
}

}  // namespace lading::plan
