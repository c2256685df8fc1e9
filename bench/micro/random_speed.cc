// How fast random values are made: elements per second on one core, each instruction set that this machine has, and
// what a small call costs. Prints one JSON object.
//
//   random_speed
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "device/random.h"
#include "device/random_test_support.h"

using namespace lading::device;

namespace {

using Clock = std::chrono::steady_clock;

// Seconds per call, the best of several tries.
double seconds_per_call(const SampleParameters& parameters, std::span<float> out) {
  double best = 1e9;
  std::uint64_t calls = 1;
  for (int attempt = 0; attempt < 10;) {
    const auto begin = Clock::now();
    for (std::uint64_t i = 0; i < calls; ++i) sample(parameters, RandomKey{7}, i * out.size(), out);
    const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    if (elapsed < 0.02) {
      calls *= 2;
      continue;
    }
    best = std::min(best, elapsed / static_cast<double>(calls));
    ++attempt;
  }
  return best;
}

constexpr std::pair<std::string_view, RandomRecipe> kRecipes[] = {
    {"uniform", {Distribution::kUniform, 0, 1, -0.1, 0.1}},
    {"normal", {Distribution::kNormal, 0, 0.02, 0, 0}},
    {"truncated_normal", {Distribution::kTruncatedNormal, 0, 0.02, -0.04, 0.04}},
};

}  // namespace

int main() {
  std::vector<float> out(1U << 16);
  fmt::print("{{\"bench\": \"random_speed\", \"targets\": [");
  const char* comma = "";
  for_each_target([&](const char* target) {
    fmt::print("{}\n  {{\"target\": \"{}\"", comma, target);
    for (const auto& [name, recipe] : kRecipes) {
      const auto parameters = prepare_sample(recipe);
      const double seconds = seconds_per_call(*parameters, out);
      fmt::print(", \"{}_m_elems_per_s\": {:.0f}, \"{}_ns_16_elems\": {:.0f}", name,
                 1e-6 * static_cast<double>(out.size()) / seconds, name,
                 1e9 * seconds_per_call(*parameters, std::span(out).first(16)));
    }
    fmt::print("}}");
    comma = ",";
  });
  fmt::print("]}}\n");
}
