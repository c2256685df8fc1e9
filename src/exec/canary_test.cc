// Destinations are filled with noise first. Afterwards every byte that the plan defines is right, and every byte that
// it leaves alone, guards included, is as it was.
#include <gtest/gtest.h>

#include "exec/random_load_for_tests.h"
#include "support/sanitizers.h"

namespace lading::exec {
namespace {

TEST(Canary, R3_R11_NoNoiseSurvivesWhereAPlanWritesAndAllElsewhere) {
  std::uint64_t bytes = 0;
  std::uint64_t differing_ties = 0;
  for (std::uint64_t seed = 0; seed < test::random_cases(12'000); ++seed) {
    RandomLoad load(seed);
    Options options;
    options.threads = 1 + static_cast<std::uint32_t>(seed % 3);
    options.staging_buffer_bytes = std::uint64_t{64} << (seed % 6);
    options.poison = seed % 2 == 0 ? Poison::kOn : Poison::kOff;
    const Inputs inputs = load.inputs();
    const Outcome outcome = execute(inputs, options);
    if (load.ties_differ()) {
      ASSERT_FALSE(outcome.errors.empty()) << "seed " << seed;
      EXPECT_EQ(outcome.errors.front().code, Code::kValuesDiffer) << "seed " << seed;
      EXPECT_EQ(outcome.errors.front().rule, "R50");
      ++differing_ties;
      continue;
    }
    ASSERT_TRUE(outcome.errors.empty()) << "seed " << seed << ": " << outcome.errors.front().text();
    ASSERT_TRUE(load.is_right()) << "seed " << seed;
    ASSERT_EQ(outcome.outcomes.size(), load.digests().size());
    for (std::size_t t = 0; t < outcome.outcomes.size(); ++t) {
      ASSERT_EQ(outcome.outcomes[t].digest, load.digests()[t]) << "seed " << seed << ", destination " << t;
      bytes += outcome.outcomes[t].written_bytes;
    }
  }
  EXPECT_GT(bytes, test::random_cases(1'000'000));
  RecordProperty("bytes_written", std::to_string(bytes));
  RecordProperty("differing_ties", std::to_string(differing_ties));
}

TEST(Canary, CatchesATransferThatIsMissing) {
  int missed = 0;
  int tried = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    RandomLoad load(seed);
    plan::Plan broken = load.plan();
    plan::Transfer* dropped = nullptr;
    for (plan::RankPlan& rank : broken.ranks) {
      for (plan::Destination& d : rank.destinations) {
        if (!d.transfers.empty() && d.comparisons.empty()) dropped = &d.transfers.back();
      }
    }
    if (dropped == nullptr || dropped->is_fill() || load.ties_differ()) continue;
    dropped->run_elems = 0;
    Inputs whole = load.inputs();
    const Inputs inputs{broken, whole.memory, whole.open, whole.value};
    const Outcome outcome = execute(inputs, {});
    ++tried;
    if (outcome.errors.empty() || outcome.errors.front().code != Code::kIncomplete) ++missed;
  }
  EXPECT_GT(tried, 50);
  EXPECT_EQ(missed, 0);
}

}  // namespace
}  // namespace lading::exec
