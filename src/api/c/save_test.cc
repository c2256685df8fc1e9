// The C ABI's part for saving: two ranks, step by step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lading/lading_c.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct FreeHandle {
  void operator()(lading_handle* handle) const { lading_free(handle); }
};
using SaveHandle = std::unique_ptr<lading_handle, FreeHandle>;

std::string text_of(const SaveHandle& handle) { return lading_text(handle.get(), nullptr); }

// w = [1, 2, 3, 4], by rows on two ranks.
std::string plan_request(int rank) {
  return R"({"schema": "lading.request/1", "mesh": "dp=2", "strategy": "fsdp2", "ranks": [)" + std::to_string(rank) +
         R"(], "skeleton": {"schema": "lading.skeleton/1", "tensors": [
           {"name": "w", "kind": "parameter", "shape": [4], "dtype": "F32"}]}})";
}

class CApiSave : public ::testing::Test {
 protected:
  [[nodiscard]] std::string step(const std::string& more = "") const {
    return R"({"schema": "lading.request/1", "directory": ")" + dir_.path("out") + "\"" + more + "}";
  }
  // What prepare answered, as a field of the next steps.
  static std::string temporary_of(const SaveHandle& prepared) {
    const std::string text = text_of(prepared);
    const std::size_t begin = text.find(".lading-save.");
    return R"(, "temporary": ")" + text.substr(begin, text.find('"', begin) - begin) + "\"";
  }

  test::TempDir dir_;
  std::array<std::array<float, 2>, 2> parts_ = {{{1, 2}, {3, 4}}};
};

TEST_F(CApiSave, R69_FromThePlanToTheRename) {
  std::vector<SaveHandle> plans;
  for (int rank = 0; rank < 2; ++rank) plans.emplace_back(lading_save_plan(plan_request(rank).c_str()));
  ASSERT_EQ(lading_exit_code(plans[0].get()), 0) << text_of(plans[0]);
  EXPECT_THAT(text_of(plans[0]),
              AllOf(HasSubstr(R"("kind": "save_plan")"), HasSubstr(R"("data_bytes": 16)"),
                    HasSubstr(R"("bytes_proved": 16)"), HasSubstr(R"("name": "model.safetensors")")));
  const SaveHandle prepared(lading_save_prepare(plans[0].get(), step().c_str()));
  ASSERT_EQ(lading_exit_code(prepared.get()), 0) << text_of(prepared);
  const std::string temporary = temporary_of(prepared);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::uint64_t count = 0;
    const lading_destination* destinations = lading_destinations(plans[rank].get(), &count);
    ASSERT_EQ(count, 1U);
    EXPECT_EQ(destinations[0].rank, rank);
    std::uint64_t replicas = 0;
    EXPECT_EQ(*lading_replicas(plans[rank].get(), 0, &replicas), rank);
    const lading_memory memory = {parts_[rank].data(), 8};
    const SaveHandle written(lading_save_write(plans[rank].get(), &memory, 1, step(temporary).c_str(), nullptr));
    ASSERT_EQ(lading_exit_code(written.get()), 0) << text_of(written);
    EXPECT_THAT(text_of(written), HasSubstr(R"("written_bytes": 8)"));
  }
  const SaveHandle finished(lading_save_finish(plans[0].get(), step(temporary).c_str()));
  ASSERT_EQ(lading_exit_code(finished.get()), 0) << text_of(finished);
  EXPECT_THAT(text_of(finished), HasSubstr(R"("ledger": "lading.ledger.json")"));
  const SaveHandle committed(lading_save_commit(step(temporary).c_str()));
  ASSERT_EQ(lading_exit_code(committed.get()), 0) << text_of(committed);
  const std::string file = dir_.read("out/model.safetensors");
  EXPECT_EQ(file.substr(file.size() - 16), std::string(reinterpret_cast<const char*>(parts_.data()), 16));
  const SaveHandle again(lading_save_plan(plan_request(0).c_str()));
  const SaveHandle refused(lading_save_prepare(again.get(), step().c_str()));
  EXPECT_EQ(lading_exit_code(refused.get()), 2);
  EXPECT_THAT(text_of(refused), HasSubstr("stands at this path already"));
}

TEST_F(CApiSave, WhatCannotBeAskedIsRefused) {
  const auto refusal = [](lading_handle* handle) {
    const SaveHandle owned(handle);
    EXPECT_EQ(lading_exit_code(owned.get()), 2);
    return text_of(owned);
  };
  EXPECT_THAT(refusal(lading_save_plan(nullptr)), HasSubstr("NULL"));
  EXPECT_THAT(refusal(lading_save_plan(R"({"schema": "lading.request/1", "dtype": "I32", "treads": 1})")),
              AllOf(HasSubstr("not a choice of dtypes"), HasSubstr("treads")));
  EXPECT_THAT(refusal(lading_save_plan(R"({"schema": "lading.request/1"})")), HasSubstr("skeleton"));
  EXPECT_THAT(refusal(lading_save_prepare(nullptr, step().c_str())), HasSubstr("not a planned save"));
  EXPECT_THAT(refusal(lading_save_commit(step(R"(, "temporary": "../out")").c_str())), HasSubstr("temporary"));
  const SaveHandle plan(lading_save_plan(plan_request(0).c_str()));
  EXPECT_THAT(refusal(lading_save_write(plan.get(), nullptr, 0, step().c_str(), nullptr)),
              HasSubstr("number of memories"));
}

TEST_F(CApiSave, ACancelledSaveSaysSoAndCanBeDiscarded) {
  const SaveHandle plan(lading_save_plan(plan_request(0).c_str()));
  const SaveHandle prepared(lading_save_prepare(plan.get(), step().c_str()));
  const std::string temporary = temporary_of(prepared);
  const int cancelled = 1;
  lading_callbacks callbacks{};
  callbacks.cancelled = &cancelled;
  const lading_memory memory = {parts_[0].data(), 8};
  const SaveHandle written(lading_save_write(plan.get(), &memory, 1, step(temporary).c_str(), &callbacks));
  EXPECT_EQ(lading_exit_code(written.get()), 5);
  EXPECT_THAT(text_of(written), HasSubstr("cancelled"));
  const SaveHandle discarded(lading_save_discard(step(temporary).c_str()));
  EXPECT_THAT(text_of(discarded), HasSubstr(R"("removed": true)"));
  const SaveHandle twice(lading_save_discard(step(temporary).c_str()));
  EXPECT_THAT(text_of(twice), HasSubstr(R"("removed": false)"));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

}  // namespace
}  // namespace lading
