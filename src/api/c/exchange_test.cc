// The C ABI: ranks that read for each other. Loads from real files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "api/c/c_api_for_tests.h"

namespace lading {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ExchangeInC = CApiTest;

// Two ranks that hold the same, one after the other: the second gets from the first what that one has read.
TEST_F(ExchangeInC, RanksReadForEachOther) {
  const Answer plan(lading_plan(request(R"(, "mesh": "dp=2", "strategy": "ddp", "ranks": [1])").c_str()));
  ASSERT_EQ(plan.exit_code(), 0) << plan.text();
  std::uint64_t count = 0;
  const std::uint64_t* const ranks = lading_replicas(plan.get(), 1, &count);
  ASSERT_EQ(count, 2U);
  EXPECT_EQ(ranks[0], 0U);
  EXPECT_EQ(ranks[1], 1U);
  EXPECT_EQ(lading_replicas(plan.get(), 2, &count), nullptr);
  EXPECT_EQ(lading_replicas(nullptr, 0, nullptr), nullptr);
  const Answer together(lading_owners(plan.get(), R"({"schema": "lading.request/1", "nodes": ["n", "n"]})"));
  EXPECT_THAT(together.text(), AllOf(HasSubstr(R"("owners": [0, 0])"), HasSubstr(R"("exchange": "yes")")));
  const Answer apart(lading_owners(plan.get(), R"({"schema": "lading.request/1", "nodes": ["n", "m"]})"));
  EXPECT_THAT(apart.text(), HasSubstr(R"("owners": [null, null])"));

  auto memories = memories_for(plan);
  const std::vector<std::int64_t> owners = {-1, 0};
  const lading_exchange exchange{owners.data(), &memories, [](void* user) {
                                   auto& of_caller = *static_cast<std::vector<lading_memory>*>(user);
                                   const std::vector<float> received = {30, 40, 50};
                                   std::memcpy(of_caller[1].data, received.data(), of_caller[1].size_bytes);
                                   return 0;
                                 }};
  const Answer report(lading_load_exchanged(plan.get(), memories.data(), memories.size(), nullptr, &exchange));
  ASSERT_EQ(report.exit_code(), 0) << report.text();
  EXPECT_THAT(floats_["a"], ElementsAre(1, 2));
  EXPECT_THAT(floats_["b"], ElementsAre(30, 40, 50));
  EXPECT_THAT(report.text(), HasSubstr(R"("read_bytes": 8,)"));
  const Answer ledger(lading_ledger(report.get()));
  EXPECT_THAT(ledger.text(), HasSubstr(R"("received_from": 0)"));
}

// Speeds are measured only where the answer asks for them.
TEST_F(ExchangeInC, APlanSaysWhetherRanksExchange) {
  const Answer plan(lading_plan(request(R"(, "mesh": "dp=2", "strategy": "ddp", "ranks": [1])").c_str()));
  ASSERT_EQ(plan.exit_code(), 0) << plan.text();
  const auto answer = [&](const std::string& more) {
    const std::string asked = R"({"schema": "lading.request/1", "nodes": ["n", "m"], )" + more + "}";
    return Answer(lading_owners(plan.get(), asked.c_str())).text();
  };
  const std::string is_auto = R"("exchange": "auto", "least_bytes": 0)";
  EXPECT_THAT(answer(R"("exchange": "never")"),
              AllOf(HasSubstr(R"("exchange": "no")"), HasSubstr(R"("owners": [null, null])")));
  EXPECT_THAT(answer(R"("exchange": "job")"),
              AllOf(HasSubstr(R"("nodes": ["", ""])"), HasSubstr(R"("owners": [0, 0])")));
  EXPECT_THAT(answer(R"("exchange": "auto")"), HasSubstr("too little to read"));
  EXPECT_THAT(answer(is_auto), HasSubstr(R"("exchange": "measure")"));
  EXPECT_THAT(answer(is_auto + R"(, "read_speeds": [1e6, 2], "sent_speeds": [1e9, 1.5e9])"),
              AllOf(HasSubstr(R"("exchange": "yes")"), HasSubstr("by measurement"), HasSubstr(R"("owners": [0, 0])")));
  for (const char* bad : {R"(, "read_speeds": [1])", R"(, "read_speeds": [1, 0])", R"(, "sent_speeds": [1, "fast"])"}) {
    EXPECT_THAT(answer(is_auto + bad), HasSubstr(R"("ok": false)")) << bad;
  }
  const Answer speed(lading_read_speed(plan.get()));
  EXPECT_THAT(speed.text(), ContainsRegex(R"("bytes_per_second": [0-9])"));
  EXPECT_EQ(Answer(lading_read_speed(nullptr)).exit_code(), 2);
}

TEST_F(ExchangeInC, AnExchangeThatFailsOrMakesNoSenseIsTold) {
  const Answer plan(lading_plan(request(R"(, "mesh": "dp=2", "strategy": "ddp", "ranks": [1])").c_str()));
  const auto memories = memories_for(plan);
  const std::vector<std::int64_t> owners = {0, 0};
  const auto load = [&](const lading_exchange& exchange) {
    const Answer report(lading_load_exchanged(plan.get(), memories.data(), memories.size(), nullptr, &exchange));
    return report.text();
  };
  const auto fails = [](void*) {
    lading_set_error("the net is gone");
    return 1;
  };
  EXPECT_THAT(load({owners.data(), nullptr, fails}),
              AllOf(HasSubstr("the net is gone"), HasSubstr(R"("begun": true)")));
  EXPECT_THAT(load({owners.data(), nullptr, [](void*) { return 1; }}), HasSubstr("could not be received"));
  EXPECT_THAT(load({owners.data(), nullptr, nullptr}), AllOf(HasSubstr("usage"), HasSubstr(R"("begun": false)")));
  EXPECT_THAT(load({nullptr, nullptr, fails}), HasSubstr("usage"));
  for (const char* bad : {R"({"schema": "lading.request/1"})", R"({"schema": "lading.request/1", "nodes": ["a"]})",
                          R"({"schema": "lading.request/1", "nodes": ["a", 1]})"}) {
    EXPECT_EQ(Answer(lading_owners(plan.get(), bad)).exit_code(), 2) << bad;
  }
  EXPECT_EQ(Answer(lading_owners(nullptr, R"({"schema": "lading.request/1", "nodes": []})")).exit_code(), 2);
}

}  // namespace
}  // namespace lading
