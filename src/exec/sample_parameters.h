// A recipe of the model as the device takes it: loads and verifications make the same random values.
#pragma once

#include "device/random.h"
#include "lading/result.h"
#include "model/skeleton.h"

namespace lading::exec {

/// Of a random recipe. Refuses parameters that make no distribution.
[[nodiscard]] inline Result<device::SampleParameters> sample_parameters(const model::Recipe& recipe) {
  device::RandomRecipe random{device::Distribution::kNormal, recipe.mean, recipe.std, recipe.low, recipe.high};
  if (recipe.kind == model::RecipeKind::kUniform) random.distribution = device::Distribution::kUniform;
  if (recipe.kind == model::RecipeKind::kTruncatedNormal) random.distribution = device::Distribution::kTruncatedNormal;
  return device::prepare_sample(random);
}

}  // namespace lading::exec
