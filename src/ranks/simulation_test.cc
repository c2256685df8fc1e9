// The coordinator in simulated worlds, one per seed: what docs/how-it-works/reliability.md promises, and that a broken
// coordinator is found.
//
//   LADING_SIM_SEEDS=100000 build/dev/ranks_tests --gtest_filter='Simulation.R44_Promises*'
//   LADING_SIM_FIRST=4711 LADING_SIM_SEEDS=1 …       replays one seed
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "ranks/scenario_for_tests.h"
#include "support/sanitizers.h"

namespace lading::ranks::test {
namespace {

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(Simulation, R44_PromisesHoldInEveryWorld) {
  const std::uint64_t first = number_from("LADING_SIM_FIRST", 1);
  const std::uint64_t seeds = number_from("LADING_SIM_SEEDS", lading::test::random_cases(2000));
  std::map<std::string, std::uint64_t> seen;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    const Scenario scenario = make_scenario(seed);
    const Played run = play<Coordinator>(scenario);
    const auto broken = broken_promises(scenario, run);
    ASSERT_TRUE(broken.empty()) << "seed " << seed << ": " << broken.front() << "\n" << describe(scenario, run);
    ++seen[ending(run)];
  }
  for (const auto& [what, count] : seen)
    std::printf("  %-40s %8llu\n", what.c_str(), static_cast<unsigned long long>(count));
  if (seeds >= 500) {
    // A campaign that never sees one of these tries nothing.
    for (const char* what : {"all well", "all failed alike", "some cut off from the store"})
      EXPECT_GT(seen[what], 5U) << what;
  }
}

TEST(Simulation, TheSameSeedIsTheSameRun) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Scenario scenario = make_scenario(seed);
    EXPECT_EQ(describe(scenario, play<Coordinator>(scenario)), describe(scenario, play<Coordinator>(scenario)));
  }
}

// ---- coordinators with one mistake each

struct LastWriterWins : Coordinator {
  using Coordinator::Coordinator;
  Reply end_step(const std::string& key, const std::string& verdict) override {
    channel().put(key, verdict);
    return Reply::ready({verdict});
  }
};

struct DoesNotWaitForAll : Coordinator {
  using Coordinator::Coordinator;
  [[nodiscard]] std::vector<std::uint64_t> awaited() const override {
    auto ranks = Coordinator::awaited();
    if (!ranks.empty()) ranks.pop_back();
    return ranks;
  }
};

struct NobodyWatchesTheFirst : Coordinator {
  using Coordinator::Coordinator;
  [[nodiscard]] std::vector<std::uint64_t> watched() const override {
    auto ranks = Coordinator::watched();
    std::erase(ranks, 0U);
    return ranks;
  }
};

struct NobodyWatches : Coordinator {
  using Coordinator::Coordinator;
  [[nodiscard]] std::vector<std::uint64_t> watched() const override { return {}; }
};

struct Impatient : Coordinator {
  using Coordinator::Coordinator;
  [[nodiscard]] Time silence_limit() const override { return interval(); }
};

struct TooPatient : Coordinator {
  using Coordinator::Coordinator;
  [[nodiscard]] Time silence_limit() const override { return 3 * options().deadline; }
};

struct SleepsSoundly : Coordinator {
  using Coordinator::Coordinator;
  [[nodiscard]] bool has_overslept(Time) const override { return false; }
};

struct LeavesFirst : Coordinator {
  using Coordinator::Coordinator;
  [[nodiscard]] bool stays_for_others() const override { return false; }
};

struct KeepsFailuresToItself : Coordinator {
  using Coordinator::Coordinator;
  Reply end_step(const std::string& key, const std::string& verdict) override {
    const auto decoded = decode_verdict(verdict);
    return decoded && decoded->failed() ? Reply::ready({verdict}) : Coordinator::end_step(key, verdict);
  }
};

template <class Broken>
void expect_found(const char* name) {
  constexpr std::uint64_t kSeeds = 3000;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Scenario scenario = make_scenario(seed);
    const auto broken = broken_promises(scenario, play<Broken>(scenario));
    if (broken.empty()) continue;
    std::printf("  %-24s seed %4llu: %s\n", name, static_cast<unsigned long long>(seed), broken.front().c_str());
    return;
  }
  ADD_FAILURE() << name << " was not found in " << kSeeds << " worlds";
}

TEST(Simulation, EveryPlantedMistakeIsFound) {
  expect_found<LastWriterWins>("last writer wins");
  expect_found<DoesNotWaitForAll>("does not wait for all");
  expect_found<NobodyWatchesTheFirst>("nobody watches the first");
  expect_found<NobodyWatches>("nobody watches");
  expect_found<Impatient>("impatient");
  expect_found<TooPatient>("too patient");
  expect_found<SleepsSoundly>("sleeps soundly");
  expect_found<LeavesFirst>("leaves first");
  expect_found<KeepsFailuresToItself>("keeps failures to itself");
}

}  // namespace
}  // namespace lading::ranks::test
