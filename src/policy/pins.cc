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

Pins::Pins(const model::Skeleton& skeleton, const Policy& policy) : pins_(skeleton.pins) {
  pins_.insert(pins_.end(), policy.pins.begin(), policy.pins.end());
  for (const model::Pin& pin : pins_) {
    const bool matched =
        std::any_of(skeleton.tensors.begin(), skeleton.tensors.end(),
                    [&](const model::Tensor& tensor) { return pin_matches(pin.pattern, tensor.name); });
    if (!matched) unmatched_.push_back(pin.pattern);
  }
}

std::optional<model::PinStrength> Pins::of(std::string_view name) const {
  std::optional<model::PinStrength> strongest;
  for (const model::Pin& pin : pins_) {
    if (strongest == model::PinStrength::kFloat16AndBFloat16) break;
    if (pin_matches(pin.pattern, name)) strongest = pin.strength;
  }
  return strongest;
}

bool Pins::holds(std::string_view name, DType otherwise) const {
  const auto pin = of(name);
  return pin && pin_withstands(*pin, otherwise);
}

}  // namespace lading::policy
