#include "plan/call_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "base/text.h"

namespace lading::plan {

Result<std::vector<std::uint32_t>, Errors> call_order(const std::vector<Statement>& statements) {
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
  std::vector<std::uint32_t> order;
  std::vector<bool> done(statements.size(), false);
  const auto is_ready = [&](const auto& call) {
    return !done[call.first] &&
           std::all_of(call.second.begin(), call.second.end(), [&](std::uint32_t i) { return done[i]; });
  };
  for (auto next = waits_for.begin(); next != waits_for.end();) {
    next = std::find_if(waits_for.begin(), waits_for.end(), is_ready);
    if (next == waits_for.end()) break;
    done[next->first] = true;
    order.push_back(next->first);
  }
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

}  // namespace lading::plan
