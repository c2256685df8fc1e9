#include "planner/nothing_in_common.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "planner/input_checks.h"

namespace lading::planner {
namespace {

constexpr std::size_t kFewNames = 12;
constexpr std::size_t kSamples = 3;
constexpr std::size_t kMostPatterns = 20;

// "layers.12.attn.q" and "layers.3.attn.q" are of one pattern, "layers.*.attn.q".
std::string digit_pattern_of(std::string_view name) {
  std::string pattern;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool is_digit = name[i] >= '0' && name[i] <= '9';
    if (!is_digit) {
      pattern += name[i];
    } else if (!pattern.ends_with('*')) {
      pattern += '*';
    }
  }
  return pattern;
}

std::string samples(const std::vector<std::string_view>& names) {
  std::string text;
  const std::size_t shown = std::min(names.size(), kSamples);
  for (std::size_t i = 0; i < shown; ++i) {
    text += (i == 0 ? "" : ", ") + quote(names[i * (names.size() - 1) / std::max<std::size_t>(1, shown - 1)]);
  }
  return text;
}

void add_patterns(const std::vector<std::string_view>& names, std::string_view has, std::string_view lacks,
                  Errors& errors) {
  std::map<std::string, std::size_t> patterns;
  for (const std::string_view name : names) ++patterns[digit_pattern_of(name)];
  std::size_t listed = 0;
  for (const auto& [pattern, count] : patterns) {
    if (++listed > kMostPatterns) {
      errors.count_not_listed(patterns.size() - kMostPatterns);
      break;
    }
    errors.add(Error(Code::kPlan, fmt::format("{} has {} tensor{} of this name, and {} none", has, with_commas(count),
                                              count == 1 ? "" : "s", lacks))
                   .of_tensor(pattern)
                   .by_rule("R39"));
  }
}

std::vector<std::string_view> wanted_names(const PlanInputs& inputs) {
  std::vector<std::string_view> names;
  for (const model::Tensor& t : inputs.skeleton.tensors) {
    if (can_be_in_a_file(t.kind)) names.push_back(t.name);
  }
  return names;
}

std::vector<std::string_view> unread_keys(const mapping::Resolution& names) {
  std::vector<std::string_view> keys;
  for (const auto& [key, rule] : names.resolved.unread) {
    if (rule.empty()) keys.push_back(key);
  }
  return keys;
}

}  // namespace

bool have_nothing_in_common(const PlanInputs& inputs, const mapping::Resolution& names) {
  return names.resolved.expressions.empty() && names.problems.empty() && !inputs.catalog.tensors_of(0).empty() &&
         !wanted_names(inputs).empty();
}

bool is_told_by_patterns(const PlanInputs& inputs, const mapping::Resolution& names) {
  return have_nothing_in_common(inputs, names) && wanted_names(inputs).size() + unread_keys(names).size() > kFewNames;
}

Errors tell_nothing_in_common(const PlanInputs& inputs, const mapping::Resolution& names) {
  Errors errors;
  if (!have_nothing_in_common(inputs, names)) return errors;
  const std::vector<std::string_view> wanted = wanted_names(inputs);
  std::vector<std::string_view> keys;
  for (const checkpoint::CatalogTensor& t : inputs.catalog.tensors_of(0)) keys.push_back(t.name);
  errors.add(
      Error(Code::kPlan, "the checkpoint and the model have no tensor in common")
          .by_rule("R39")
          .wanted(fmt::format("names like {}", samples(wanted)))
          .got(fmt::format("names like {}", samples(keys)))
          .try_this(
              "It is probably another model's checkpoint, or its names need a mapping: in Python "
              "mapping={\"a key of the checkpoint\": \"a name of the model\"}, where * stands for any characters; "
              "on the command line --mapping FILE"));
  if (is_told_by_patterns(inputs, names)) {
    add_patterns(wanted, "the model", "the checkpoint", errors);
    add_patterns(unread_keys(names), "the checkpoint", "the model", errors);
  }
  return errors;
}

}  // namespace lading::planner
