#include "plan/exchange_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/planner_support.h"

namespace lading::plan {
namespace {

using namespace planner::world;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Verdict = ExchangeChoice::Verdict;

constexpr std::uint64_t kBytes = 4 * 64;

// 64 numbers of four bytes, whole on each of four ranks.
Plan four_ranks() {
  World world{{{"w", {64}}}, {param("w", {64})}};
  world.mesh({{"dp", 4}});
  return world.plan().value();
}

ExchangeFacts facts_of(ExchangeScope scope) {
  ExchangeFacts facts;
  facts.scope = scope;
  facts.nodes = {"a", "a", "b", "b"};
  facts.least_bytes = kBytes;
  return facts;
}

ExchangeFacts measured(std::vector<double> read, std::vector<double> sent) {
  ExchangeFacts facts = facts_of(ExchangeScope::kAuto);
  facts.read_speeds = std::move(read);
  facts.sent_speeds = std::move(sent);
  return facts;
}

TEST(ExchangeChoice, TheCallersWordDecides) {
  const Plan plan = four_ranks();
  EXPECT_EQ(choose_exchange(plan, facts_of(ExchangeScope::kNever)).verdict, Verdict::kNo);
  const auto node = choose_exchange(plan, facts_of(ExchangeScope::kNode));
  EXPECT_EQ(node.verdict, Verdict::kYes);
  EXPECT_THAT(node.nodes, ElementsAre("a", "a", "b", "b"));
  const auto job = choose_exchange(plan, facts_of(ExchangeScope::kJob));
  EXPECT_EQ(job.verdict, Verdict::kYes);
  EXPECT_THAT(job.nodes, ElementsAre("", "", "", ""));
  EXPECT_THAT(job.note, IsEmpty());
}

TEST(ExchangeChoice, OneRankHasNobodyToExchangeWith) {
  World world{{{"w", {64}}}, {param("w", {64})}};
  ExchangeFacts facts = facts_of(ExchangeScope::kJob);
  facts.nodes = {"a"};
  EXPECT_EQ(choose_exchange(world.plan().value(), facts).verdict, Verdict::kNo);
}

TEST(ExchangeChoice, RanksWithDifferentKindsOfDevicesDoNotExchange) {
  Plan plan = four_ranks();
  plan.devices.list = {layout::parse_device("cuda:0").value(), layout::parse_device("cuda:1").value(),
                       layout::parse_device("cpu").value(), layout::parse_device("cpu").value()};
  for (const auto scope : {ExchangeScope::kNode, ExchangeScope::kJob, ExchangeScope::kAuto}) {
    const auto choice = choose_exchange(plan, facts_of(scope));
    EXPECT_EQ(choice.verdict, Verdict::kNo);
    EXPECT_THAT(choice.note, HasSubstr("different devices (cpu, cuda)"));
  }
  for (auto& device : plan.devices.list) device = layout::parse_device("cuda:3").value();
  EXPECT_EQ(choose_exchange(plan, facts_of(ExchangeScope::kJob)).verdict, Verdict::kYes);
}

TEST(ExchangeChoice, AutoAsksForSpeedsWhereThereIsEnoughToRead) {
  const Plan plan = four_ranks();
  ExchangeFacts facts = facts_of(ExchangeScope::kAuto);
  EXPECT_EQ(choose_exchange(plan, facts).verdict, Verdict::kMeasure);
  facts.read_speeds = {1, 1, 1, 1};  // half of a measurement is none
  EXPECT_EQ(choose_exchange(plan, facts).verdict, Verdict::kMeasure);
  ++facts.least_bytes;
  const auto small = choose_exchange(plan, facts);
  EXPECT_EQ(small.verdict, Verdict::kNo);
  EXPECT_THAT(small.note, HasSubstr("too little"));
}

// Four ranks: 1/(4 r) + 1/s < 0.7/r, which is s > r / 0.45.
TEST(ExchangeChoice, AutoExchangesWhereItIsClearlyFaster) {
  const Plan plan = four_ranks();
  const auto verdict = [&](double sent) {
    return choose_exchange(plan, measured({1e9, 1e9, 1e9, 1e9}, {9e9, sent, 9e9, 9e9})).verdict;
  };
  EXPECT_EQ(verdict(2.3e9), Verdict::kYes);
  EXPECT_EQ(verdict(2.2e9), Verdict::kNo);
}

TEST(ExchangeChoice, OneSlowReaderIsNotTheMeasureButOneSlowConnectionIs) {
  const Plan plan = four_ranks();
  const auto yes = choose_exchange(plan, measured({1e9, 1e6, 1e9, 1e9}, {5e9, 5e9, 5e9, 5e9}));
  EXPECT_EQ(yes.verdict, Verdict::kYes);
  EXPECT_THAT(yes.nodes, ElementsAre("", "", "", ""));
  EXPECT_THAT(yes.note, HasSubstr("yes, by measurement: 1.00 GB/s from files on each rank, 5.00 GB/s between ranks"));
  const auto no = choose_exchange(plan, measured({1e9, 1e9, 1e9, 1e9}, {5e9, 5e6, 5e9, 5e9}));
  EXPECT_EQ(no.verdict, Verdict::kNo);
  EXPECT_THAT(no.note, HasSubstr("no, by measurement"));
}

}  // namespace
}  // namespace lading::plan
