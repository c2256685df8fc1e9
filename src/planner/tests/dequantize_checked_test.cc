// Plans that dequantize, as the planner makes them, with planted mistakes: the checker refuses each (R48).
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words
using mapping::Expression;
using mapping::Op;
using plan::ScaleRead;
using plan::Scaling;

// a and b in blocks of 4 x 3 over two ranks, which meet within a block; c is tied to b's other key. The scales lie in a
// file of their own.
World quantized(const Shape& shape = {9, 7}, const Shape& block = {4, 3}, const Shape& scales = {3, 3}) {
  constexpr DType kPayload = DType::kF8E4M3;
  World world{{{"a.weight", shape, kPayload},
               {"a.scales", scales, DType::kF32, 1},
               {"b.weight", shape, kPayload},
               {"b.scales", scales, DType::kF32, 1},
               {"c.weight", shape, kPayload},
               {"c.scales", scales, DType::kF32, 1},
               {"plain", shape, DType::kBF16}},
              {param("a", shape, DType::kBF16), param("b", shape, DType::kF32), param("c", shape, DType::kF32),
               param("plain", shape, DType::kBF16)}};
  for (const char* name : {"a", "b", "c"}) {
    const std::string key(name);
    world.build(key, Expression::dequantize(key + ".weight", key + ".scales", block));
  }
  world.ties = {{"b", "c"}};
  world.mesh({{"x", 2}}).place("*", {shard(0, 0)});
  return world;
}

SourceId source(const Plan& plan, std::string_view key) {
  for (const SourceId i : plan.sources.ids()) {
    if (plan.sources[i].key == key) return i;
  }
  ADD_FAILURE() << key;
  return 0;
}

ScaleRead& scale_read(Plan& plan, std::uint64_t rank, std::string_view key) {
  for (ScaleRead& read : plan.ranks[rank].scale_reads) {
    if (plan.sources[read.source].key == key) return read;
  }
  ADD_FAILURE() << key;
  return plan.ranks[rank].scale_reads.front();
}

Statement& statement(Plan& plan, std::string_view name) {
  for (Statement& s : plan.statements) {
    if (s.name == name) return s;
  }
  ADD_FAILURE() << name;
  return plan.statements.front();
}

// So that no sum gives a change away.
void add_up(Plan& plan) {
  for (RankPlan& rank : plan.ranks) {
    rank.read_bytes = 0;
    for (const auto& read : rank.reads) rank.read_bytes += read.total_bytes();
    for (const ScaleRead& read : rank.scale_reads) rank.read_bytes += read.bytes.size_bytes();
  }
}

class DequantizeChecked : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = quantized().plan();
    ASSERT_TRUE(made) << all_text(made.error());
    plan_ = *std::move(made);
  }

  void expect_refused(std::string_view rule, std::string_view words, const std::function<void(Plan&)>& change) const {
    Plan changed = plan_;
    change(changed);
    const auto verdict = checker::check_plan(changed);
    ASSERT_FALSE(verdict) << "accepted, wanted " << rule << ": " << words;
    bool found = false;
    for (const Error& error : verdict.error()) {
      EXPECT_EQ(error.code, Code::kPlanCheck);
      found = found || (error.rule == rule && error.message.find(words) != std::string::npos);
    }
    EXPECT_TRUE(found) << "wanted " << rule << ": " << words << ", got\n" << all_text(verdict.error());
  }

  Plan plan_;
};

TEST_F(DequantizeChecked, R48_RanksReadTheRowsOfScalesThatTheyNeed) {
  ASSERT_EQ(plan_.ranks.size(), 2U);
  for (std::uint64_t rank : {0U, 1U}) {
    EXPECT_EQ(plan_.ranks[rank].scale_reads.size(), 3U) << "one for each source, the compared key too";
    const std::uint64_t begin = plan_.sources[source(plan_, "a.scales")].bytes.begin;
    const ByteRange bytes = scale_read(plan_, rank, "a.weight").bytes;
    EXPECT_EQ(bytes.begin, begin + rank * 12U) << "rows 0 to 4 are of the block rows 0 and 1, 5 to 8 of 1 and 2";
    EXPECT_EQ(bytes.size_bytes(), 24U);
    EXPECT_EQ(scale_read(plan_, rank, "c.weight").bytes.size_bytes(), 24U);
  }
  EXPECT_TRUE(checker::check_plan(plan_));
}

TEST_F(DequantizeChecked, R48_ScaleReads) {
  expect_refused("R48", "reads no scales", [](Plan& plan) {
    plan.ranks[1].scale_reads.pop_back();
    add_up(plan);
  });
  expect_refused("R48", "reads no scales", [](Plan& plan) {
    plan.ranks[0].scale_reads.clear();
    add_up(plan);
  });
  expect_refused("R48", "twice", [](Plan& plan) {
    plan.ranks[1].scale_reads.push_back(scale_read(plan, 1, "a.weight"));
    add_up(plan);
  });
  for (const char* key : {"a.weight", "b.weight", "c.weight"}) {
    const auto change = [&](const std::function<void(ByteRange&)>& bytes) {
      expect_refused("R48", "does not read the scales", [&](Plan& plan) {
        bytes(scale_read(plan, 1, key).bytes);
        add_up(plan);
      });
    };
    change([](ByteRange& bytes) { bytes.begin += 4; });
    change([](ByteRange& bytes) { bytes.end -= 4; });
    change([](ByteRange& bytes) { bytes.begin += 1; });
    change([](ByteRange& bytes) { bytes.end = bytes.begin + bytes.size_bytes() / 2; });
    change([](ByteRange& bytes) { bytes.begin -= 4; });
    change([](ByteRange& bytes) { bytes = {bytes.begin - 4, bytes.end - 4}; });
  }
  expect_refused("R48", "does not read the scales", [](Plan& plan) {  // the other rank's
    scale_read(plan, 0, "a.weight").bytes = scale_read(plan, 1, "a.weight").bytes;
  });
  expect_refused("R45", "goes beyond them", [](Plan& plan) {  // another source's
    scale_read(plan, 0, "a.weight").bytes = scale_read(plan, 0, "b.weight").bytes;
  });
  expect_refused("R45", "goes beyond them", [](Plan& plan) {
    scale_read(plan, 1, "c.weight").bytes.end += 4;
    add_up(plan);
  });
  expect_refused("R45", "is empty", [](Plan& plan) {
    ByteRange& bytes = scale_read(plan, 0, "a.weight").bytes;
    bytes.end = bytes.begin;
    add_up(plan);
  });
  expect_refused("R64", "do not add up", [](Plan& plan) { plan.ranks[0].read_bytes -= 24; });
}

TEST_F(DequantizeChecked, R48_ScaleReadsOfOtherSources) {
  const auto retarget = [&](std::string_view rule, std::string_view words, SourceId to) {
    expect_refused(rule, words, [&](Plan& plan) { scale_read(plan, 0, "a.weight").source = to; });
  };
  retarget("R48", "has none", source(plan_, "plain"));
  retarget("R48", "has none", source(plan_, "a.scales"));
  retarget("R48", "has none", SourceId(plan_.sources.size()));
  retarget("R48", "has none", SourceId::none());
  retarget("R45", "goes beyond them", source(plan_, "b.weight"));
  expect_refused("R48", "takes nothing of", [](Plan& plan) {  // of a source that only the other rank has
    plan.ranks[0].destinations.clear();
    plan.ranks[0].reads.clear();
    for (Statement& s : plan.statements) {
      layout::Cut cut = owner(0, {1});
      s.placement.slots.front().cuts.insert(s.placement.slots.front().cuts.begin(), cut);
      s.placement.slots.front().cuts.pop_back();
    }
    plan.ranks.pop_back();
    plan.ranks[0].regions.clear();
    plan.ranks[0].owned_bytes = 0;
    add_up(plan);
  });
}

TEST_F(DequantizeChecked, R48_ScalingsOfSources) {
  const auto scaling = [](Plan& plan) -> std::optional<Scaling>& {
    return plan.sources[source(plan, "a.weight")].scaling;
  };
  const auto drop_reads = [](Plan& plan) {
    for (RankPlan& rank : plan.ranks) {
      std::erase_if(rank.scale_reads,
                    [&](const ScaleRead& read) { return plan.sources[read.source].key == "a.weight"; });
    }
    add_up(plan);
  };
  expect_refused("R41", "dequantized", [&](Plan& plan) {
    scaling(plan).reset();
    drop_reads(plan);
  });
  expect_refused("R41", "dequantized", [&](Plan& plan) {  // the expression is a plain key, and the source is scaled
    statement(plan, "a").expression = Expression::source("a.weight");
  });
  expect_refused("R41", "dequantized", [&](Plan& plan) { scaling(plan)->scales = source(plan, "b.scales"); });
  expect_refused("R41", "dequantized", [&](Plan& plan) { statement(plan, "a").expression.scales = "b.scales"; });
  expect_refused("R41", "dequantized", [&](Plan& plan) { statement(plan, "a").expression.shape = Shape{3, 3}; });
  expect_refused("R48", "not one for each block", [&](Plan& plan) { scaling(plan)->block = Shape{3, 4}; });
  expect_refused("R41", "dequantized", [&](Plan& plan) { scaling(plan)->block = Shape{3, 3}; });
  expect_refused("R48", "another number of dims", [&](Plan& plan) { scaling(plan)->block = Shape{4, 3, 1}; });
  expect_refused("R48", "another number of dims", [&](Plan& plan) { scaling(plan)->block = Shape{4}; });
  expect_refused("R48", "empty blocks", [&](Plan& plan) { scaling(plan)->block = Shape{4, 0}; });
  expect_refused("R48", "not in the plan", [&](Plan& plan) { scaling(plan)->scales = SourceId(plan.sources.size()); });
  expect_refused("R48", "not in the plan", [&](Plan& plan) { scaling(plan)->scales = SourceId::none(); });
  expect_refused("R48", "have scales themselves",
                 [&](Plan& plan) { scaling(plan)->scales = source(plan, "b.weight"); });
  expect_refused("R48", "not one for each block", [&](Plan& plan) { scaling(plan)->scales = source(plan, "plain"); });
  expect_refused("R48", "have scales themselves", [&](Plan& plan) {
    plan.sources[source(plan, "a.scales")].scaling = Scaling{source(plan, "b.scales"), Shape{1, 1}, {}};
  });
  expect_refused("R48", "belong to another checkpoint",
                 [&](Plan& plan) { plan.files[plan.sources[source(plan, "a.scales")].file].checkpoint = 1; });
}

TEST_F(DequantizeChecked, R48_ScalesOfAnotherShapeThanTheGrid) {
  const auto reshaped = [&](Shape shape) {
    expect_refused("R48", "not one for each block",
                   [&](Plan& plan) { plan.sources[source(plan, "a.scales")].shape = shape; });
  };
  reshaped({9});
  reshaped({9, 1});
  reshaped({1, 9});
  Plan with_ones = plan_;
  with_ones.sources[source(with_ones, "a.scales")].shape = Shape{1, 3, 1, 3};
  EXPECT_TRUE(checker::check_plan(with_ones)) << "dims of one element say nothing";
}

TEST_F(DequantizeChecked, R23_DTypesThatAreNotMultiplied) {
  const auto with_dtype = [&](std::string_view key, DType dtype) {
    return [key, dtype](Plan& plan) { plan.sources[source(plan, key)].dtype = dtype; };
  };
  expect_refused("R23", "cannot be cast", with_dtype("a.weight", DType::kI8));
  expect_refused("R23", "cannot be cast", with_dtype("a.weight", DType::kF8E8M0));
  expect_refused("R23", "cannot be cast", with_dtype("a.scales", DType::kI32));
  expect_refused("R23", "cannot be cast", [](Plan& plan) {
    Statement& s = statement(plan, "a");
    s.storage = s.compute = DType::kF8E4M3;
  });
}

TEST_F(DequantizeChecked, R64_StagingMemoryHoldsTheScales) {
  const std::uint64_t needed = plan::scale_memory_bytes(plan_, plan_.ranks[0]);
  EXPECT_EQ(needed, 3U * 6 * 4);
  EXPECT_GE(plan_.ranks[0].staging_bytes, needed);
  expect_refused("R64", "", [&](Plan& plan) { plan.ranks[0].staging_bytes = needed - 1; });
  expect_refused("R64", "", [&](Plan& plan) { plan.ranks[0].staging_bytes = 0; });
}

// Of each tensor a rank has 8 MiB of scales, a quarter of the budget.
World with_many_scales() {
  World world = quantized({1 << 16, 1 << 10}, {1, 16}, {1 << 16, 1 << 6});
  world.policy.budget_bytes = 32 << 20;
  return world;
}

constexpr std::uint64_t kScalesOfATensor = 8 << 20;

// A batch for each tensor: the scales of two are in memory at a time, never those of three.
TEST(DequantizeBatches, R64_ScalesThatAreTooManyAreReadBatchByBatch) {
  const World world = with_many_scales();
  auto made = world.plan();
  ASSERT_TRUE(made) << all_text(made.error());
  for (const RankPlan& rank : made->ranks) {
    EXPECT_EQ(rank.reads.size(), 4U);
    EXPECT_EQ(rank.batch_ends, (std::vector<std::uint32_t>{1, 3, 4})) << "plain, which has no scales, goes with b's";
    EXPECT_EQ(plan::scale_memory_bytes(*made, rank), 2 * kScalesOfATensor);
    EXPECT_LE(rank.staging_bytes, world.policy.budget_bytes);
  }
  const auto refuses = [&](std::string_view words, const std::function<void(RankPlan&)>& change) {
    Plan changed = *made;
    change(changed.ranks[0]);
    const auto verdict = checker::check_plan(changed);
    ASSERT_FALSE(verdict) << words;
    EXPECT_NE(all_text(verdict.error()).find(words), std::string::npos) << all_text(verdict.error());
  };
  refuses("more memory", [](RankPlan& rank) { rank.staging_bytes = 2 * kScalesOfATensor - 1; });
  refuses("more memory", [](RankPlan& rank) { rank.batch_ends.clear(), rank.staging_bytes = 2 * kScalesOfATensor; });
  refuses("do not have all reads", [](RankPlan& rank) { rank.batch_ends.pop_back(); });
  refuses("do not have all reads", [](RankPlan& rank) { ++rank.batch_ends.back(); });
  refuses("is empty", [](RankPlan& rank) { rank.batch_ends.insert(rank.batch_ends.begin(), 0); });
  refuses("is empty", [](RankPlan& rank) { rank.batch_ends.insert(rank.batch_ends.begin(), 1); });
}

TEST(DequantizeBatches, R64_ABudgetThatTheScalesOfTwoTensorsDoNotFitInIsRefused) {
  const auto made = quantized({1 << 18, 1 << 10}, {1, 16}, {1 << 18, 1 << 6}).plan();
  ASSERT_TRUE(made) << all_text(made.error());
  World small = quantized({1 << 18, 1 << 10}, {1, 16}, {1 << 18, 1 << 6});
  small.policy.budget_bytes = with_many_scales().policy.budget_bytes;
  const auto refused = small.plan();
  ASSERT_FALSE(refused);
  EXPECT_NE(all_text(refused.error()).find("R64"), std::string::npos) << all_text(refused.error());
}

}  // namespace
}  // namespace lading::planner
