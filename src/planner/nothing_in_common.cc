#include "planner/nothing_in_common.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "planner/input_checks.h"

namespace lading::planner {
namespace {

constexpr std::size_t kSamples = 3;

std::string samples(const std::vector<std::string_view>& names) {
  std::string text;
  const std::size_t shown = std::min(names.size(), kSamples);
  for (std::size_t i = 0; i < shown; ++i) {
    text += (i == 0 ? "" : ", ") + quote(names[i * (names.size() - 1) / std::max<std::size_t>(1, shown - 1)]);
  }
  return text;
}

std::vector<std::string_view> wanted_names(const PlanInputs& inputs) {
  std::vector<std::string_view> names;
  for (const model::Tensor& t : inputs.skeleton.tensors) {
    if (can_be_in_a_file(t.kind)) names.push_back(t.name);
  }
  return names;
}

}  // namespace

bool have_nothing_in_common(const PlanInputs& inputs, const mapping::Resolution& names) {
  return names.resolved.expressions.empty() && names.problems.empty() && !inputs.catalog.tensors_of(0).empty() &&
         !wanted_names(inputs).empty();
}

Errors tell_nothing_in_common(const PlanInputs& inputs, const mapping::Resolution& names) {
  Errors errors;
  if (!have_nothing_in_common(inputs, names)) return errors;
  const std::vector<std::string_view> wanted = wanted_names(inputs);
  std::vector<std::string_view> keys;
  for (const checkpoint::CatalogTensor& t : inputs.catalog.tensors_of(0)) keys.push_back(t.name);
  errors.add(Error(Code::kPlan, "the checkpoint and the model have no tensor in common")
                 .by_rule("R39")
                 .wanted(fmt::format("names like {}", samples(wanted)))
                 .got(fmt::format("names like {}", samples(keys)))
                 .try_this("Pass the checkpoint of this model, or map its names to the model's (--mapping FILE)."));
  return errors;
}

}  // namespace lading::planner
