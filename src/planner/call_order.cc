#include "planner/call_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <string_view>

#include "base/text.h"

namespace lading::planner {
namespace {

using Edges = std::map<StatementId, std::vector<StatementId>>;

// What only waits for a circle is not part of one: of the calls that are left, those that nothing left waits for go,
// until none does.
void drop_downstream(const Edges& waits_for, const Edges& waiting, IndexedVector<StatementId, bool>& done) {
  std::map<StatementId, std::size_t> waiters;
  std::vector<StatementId> free;
  for (const auto& [call, inputs] : waits_for) {
    if (done[call]) continue;
    const auto found = waiting.find(call);
    if (found != waiting.end()) {
      waiters[call] = static_cast<std::size_t>(
          std::count_if(found->second.begin(), found->second.end(), [&](StatementId other) { return !done[other]; }));
    }
    if (waiters[call] == 0) free.push_back(call);
  }
  while (!free.empty()) {
    const StatementId call = free.back();
    free.pop_back();
    done[call] = true;
    for (const StatementId input : waits_for.at(call)) {
      if (!done[input] && --waiters[input] == 0) free.push_back(input);
    }
  }
}

}  // namespace

Result<std::vector<StatementId>, Errors> call_order(const IndexedVector<StatementId, Statement>& statements) {
  const auto is_call = [](const Statement& s) { return s.provenance == Provenance::kCall; };
  if (std::none_of(statements.begin(), statements.end(), is_call)) return std::vector<StatementId>();
  std::map<std::string_view, StatementId> number;
  for (const StatementId i : statements.ids()) number.emplace(statements[i].name, i);
  Errors errors;
  std::map<StatementId, std::vector<StatementId>> waits_for;  // only calls wait, and only for calls
  for (const StatementId i : statements.ids()) {
    if (statements[i].provenance != Provenance::kCall) continue;
    auto& inputs = waits_for[i];
    for (const std::string& name : statements[i].recipe.inputs) {
      const auto found = number.find(name);
      if (found == number.end()) {
        errors.add(Error(Code::kPlan,
                         fmt::format("the tensor is computed from {}, which the model does not have", quote(name)))
                       .of_tensor(statements[i].name)
                       .by_rule("R66")
                       .try_this("Correct the name of the input."));
        continue;
      }
      StatementId input = found->second;
      if (statements[input].provenance == Provenance::kAlias) input = number.at(statements[input].alias_of);
      if (statements[input].provenance == Provenance::kCall) inputs.push_back(input);
    }
  }
  // Of those that wait for nothing any more, the first by name: by hand it would be done so too.
  std::map<StatementId, std::size_t> left;  // by call: the inputs that are not there yet
  std::map<StatementId, std::vector<StatementId>> waiting;
  std::priority_queue<StatementId, std::vector<StatementId>, std::greater<>> ready;
  for (const auto& [call, inputs] : waits_for) {
    left[call] = inputs.size();
    for (const StatementId input : inputs) waiting[input].push_back(call);
    if (inputs.empty()) ready.push(call);
  }
  std::vector<StatementId> order;
  IndexedVector<StatementId, bool> done(statements.size(), false);
  while (!ready.empty()) {
    const StatementId call = ready.top();
    ready.pop();
    done[call] = true;
    order.push_back(call);
    for (const StatementId other : waiting[call]) {
      if (--left[other] == 0) ready.push(other);
    }
  }
  drop_downstream(waits_for, waiting, done);
  for (const auto& [call, inputs] : waits_for) {
    if (done[call]) continue;
    errors.add(Error(Code::kPlan, "the tensor is computed from tensors that are computed from it")
                   .of_tensor(statements[call].name)
                   .by_rule("R66")
                   .wanted("no cycles")
                   .try_this("Remove the cycle from the inputs."));
  }
  if (!errors.empty()) return fail(std::move(errors));
  return order;
}

}  // namespace lading::planner
