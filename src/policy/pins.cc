// Names that stay fp32. HF searches its patterns as regular expressions anywhere in a name, so that "wo"
// also pins word_embeddings; Automodel looks for raw substrings. Whole components are what both mean.
#include <algorithm>

#include "policy/policy.h"

namespace lading::policy {
namespace {

std::string_view first_component(std::string_view name) { return name.substr(0, name.find('.')); }

// Empty when nothing is left.
std::string_view without_first_component(std::string_view name) {
  const auto dot = name.find('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(dot + 1);
}

// Greedy with one step back: after a later "*" no earlier one need be tried again.
bool component_matches(std::string_view pattern, std::string_view component) {
  std::size_t p = 0;
  std::size_t c = 0;
  std::optional<std::size_t> star;
  std::size_t star_took = 0;
  while (c < component.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_took = c;
    } else if (p < pattern.size() && pattern[p] == component[c]) {
      ++p;
      ++c;
    } else if (star) {
      p = *star + 1;
      c = ++star_took;
    } else {
      return false;
    }
  }
  return std::all_of(pattern.begin() + static_cast<std::ptrdiff_t>(p), pattern.end(), [](char x) { return x == '*'; });
}

bool begins_with(std::string_view pattern, std::string_view name) {
  while (!pattern.empty()) {
    if (name.empty() || !component_matches(first_component(pattern), first_component(name))) return false;
    pattern = without_first_component(pattern);
    name = without_first_component(name);
  }
  return true;
}

}  // namespace

bool pin_matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return false;
  for (; !name.empty(); name = without_first_component(name)) {
    if (begins_with(pattern, name)) return true;
  }
  return false;
}

bool pin_withstands(model::PinStrength strength, DType otherwise) {
  // Whoever fears fp16's range or bf16's precision fears float8's more.
  if (otherwise == DType::kF16 || is_float8(otherwise)) return true;
  return otherwise == DType::kBF16 && strength == model::PinStrength::kFloat16AndBFloat16;
}

// A plain pattern is a stretch of whole components, and a name has few of those.
template <class Visit>
void Pins::visit_pins_on(std::string_view name, const Visit& visit) const {
  for (std::string_view rest = name; !rest.empty() && !plain_.empty(); rest = without_first_component(rest)) {
    std::size_t end = 0;
    for (std::size_t count = 1; count <= most_components_; ++count) {
      end = rest.find('.', end);
      if (const auto found = plain_.find(rest.substr(0, end)); found != plain_.end()) {
        for (const std::uint32_t pin : found->second) visit(pin);
      }
      if (end++ == std::string_view::npos) break;
    }
  }
  for (const std::uint32_t pin : wild_) {
    if (pin_matches(pins_[pin].pattern.text, name)) visit(pin);
  }
  if (const auto found = exact_.find(name); found != exact_.end()) {
    for (const std::uint32_t pin : found->second) visit(pin);
  }
}

Pins::Pins(const model::Skeleton& skeleton, const Policy& policy) : pins_(skeleton.pins) {
  pins_.insert(pins_.end(), policy.pins.begin(), policy.pins.end());
  for (std::uint32_t i = 0; i < pins_.size(); ++i) {
    const std::string& pattern = pins_[i].pattern.text;
    if (pins_[i].pattern.is_exact) {
      exact_[pattern].push_back(i);
      continue;
    }
    if (!pins_[i].pattern.is_one_name()) {
      wild_.push_back(i);
      continue;
    }
    plain_[pattern].push_back(i);
    const auto dots = static_cast<std::size_t>(std::count(pattern.begin(), pattern.end(), '.'));
    most_components_ = std::max(most_components_, dots + 1);
  }
  std::vector<bool> matched(pins_.size(), false);
  for (const model::Tensor& tensor : skeleton.tensors) {
    visit_pins_on(tensor.name, [&](std::uint32_t pin) { matched[pin] = true; });
  }
  for (std::size_t i = 0; i < pins_.size(); ++i) {
    if (!matched[i]) unmatched_.push_back(pins_[i].pattern.text);
  }
}

std::optional<model::PinStrength> Pins::of(std::string_view name) const {
  std::optional<model::PinStrength> strongest;
  visit_pins_on(name, [&](std::uint32_t pin) {
    if (strongest != model::PinStrength::kFloat16AndBFloat16) strongest = pins_[pin].strength;
  });
  return strongest;
}

bool Pins::holds(std::string_view name, DType otherwise) const {
  const auto pin = of(name);
  return pin && pin_withstands(*pin, otherwise);
}

}  // namespace lading::policy
