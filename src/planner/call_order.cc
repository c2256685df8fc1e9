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

using Edges = std::map<std::uint32_t, std::vector<std::uint32_t>>;

// What only waits for a circle is not part of one: of the calls that are left, those that nothing left waits for go,
// until none does.
void drop_downstream(const Edges& waits_for, const Edges& waiting, std::vector<bool>& done) {
  std::map<std::uint32_t, std::size_t> waiters;
  std::vector<std::uint32_t> free;
  for (const auto& [call, inputs] : waits_for) {
    if (done[call]) continue;
    const auto found = waiting.find(call);
    if (found != waiting.end()) {
      waiters[call] = static_cast<std::size_t>(
          std::count_if(found->second.begin(), found->second.end(), [&](std::uint32_t other) { return !done[other]; }));
    }
    if (waiters[call] == 0) free.push_back(call);
  }
  while (!free.empty()) {
    const std::uint32_t call = free.back();
    free.pop_back();
    done[call] = true;
    for (const std::uint32_t input : waits_for.at(call)) {
      if (!done[input] && --waiters[input] == 0) free.push_back(input);
    }
  }
}

}  // namespace

Result<std::vector<std::uint32_t>, Errors> call_order(const std::vector<Statement>& statements) {
  const auto is_call = [](const Statement& s) { return s.provenance == Provenance::kCall; };
  if (std::none_of(statements.begin(), statements.end(), is_call)) return std::vector<std::uint32_t>();
  std::map<std::string_view, std::uint32_t> number;
  for (std::uint32_t i = 0; i < statements.size(); ++i) number.emplace(statements[i].name, i);
  Errors errors;
  std::map<std::uint32_t, std::vector<std::uint32_t>> waits_for;  // only calls wait, and only for calls
  for (std::uint32_t i = 0; i < statements.size(); ++i) {
    if (statements[i].provenance != Provenance::kCall) continue;
    auto& inputs = waits_for[i];
    for (const std::string& name : statements[i].recipe.inputs) {
      const auto found = number.find(name);
      if (found == number.end()) {
        errors.add(Error(Code::kPlan, fmt::format("it is computed from {}, which the model does not have", quote(name)))
                       .of_tensor(statements[i].name)
                       .by_rule("R66"));
        continue;
      }
      std::uint32_t input = found->second;
      if (statements[input].provenance == Provenance::kAlias) input = number.at(statements[input].alias_of);
      if (statements[input].provenance == Provenance::kCall) inputs.push_back(input);
    }
  }
  // Of those that wait for nothing any more, the first by name: by hand it would be done so too.
  std::map<std::uint32_t, std::size_t> left;  // by call: the inputs that are not there yet
  std::map<std::uint32_t, std::vector<std::uint32_t>> waiting;
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (const auto& [call, inputs] : waits_for) {
    left[call] = inputs.size();
    for (const std::uint32_t input : inputs) waiting[input].push_back(call);
    if (inputs.empty()) ready.push(call);
  }
  std::vector<std::uint32_t> order;
  std::vector<bool> done(statements.size(), false);
  while (!ready.empty()) {
    const std::uint32_t call = ready.top();
    ready.pop();
    done[call] = true;
    order.push_back(call);
    for (const std::uint32_t other : waiting[call]) {
      if (--left[other] == 0) ready.push(other);
    }
  }
  drop_downstream(waits_for, waiting, done);
  for (const auto& [call, inputs] : waits_for) {
    if (done[call]) continue;
    errors.add(Error(Code::kPlan, "it is computed from tensors that are computed from it")
                   .of_tensor(statements[call].name)
                   .by_rule("R66")
                   .wanted("an order without circles"));
  }
  if (!errors.empty()) return fail(std::move(errors));
  return order;
}

}  // namespace lading::planner
