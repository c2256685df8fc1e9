#include "exec/verify/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exec/verify/verify_for_tests.h"
#include "support/label_oracle.h"

namespace lading::exec {
namespace {

using namespace verifying;
using mapping::Expression;
using testing::HasSubstr;

TEST(Verify, R1_EverythingThatWasLoadedAgrees) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  const VerifyReport report = loaded.report();
  EXPECT_TRUE(report.agrees()) << all_text(report.differences);
  EXPECT_EQ(report.tensors_verified, 7U);
  EXPECT_EQ(report.tensors_partly_verified, 0U);
  EXPECT_EQ(report.records_verified, 4U * (7 + 1));
  EXPECT_GT(report.read_bytes, 0U);
  ASSERT_EQ(report.not_verified.size(), 2U);
  EXPECT_EQ(report.not_verified[0].tensor, "kept");
  EXPECT_THAT(report.not_verified[0].reason, HasSubstr("kept"));
  EXPECT_EQ(report.not_verified[1].tensor, "rope");
  EXPECT_THAT(report.not_verified[1].reason, HasSubstr("supplied it"));
}

// The way of the executor and this one are different; random expressions must come to the same digests.
TEST(Verify, RandomExpressionsAgree) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    mapping::oracle::Generator generator(seed);
    const auto [expression, dims] = generator.make(static_cast<int>(1 + seed % 3));
    World world;
    for (const auto& [key, shape] : generator.shapes) {
      world.keys.push_back(
          {key, shape, seed % 2 == 0 ? DType::kF32 : DType::kF16, static_cast<std::uint32_t>(seed % 2)});
    }
    world.keys.push_back({"zz", {1}, DType::kF32, 0});
    world.tensors = {param("t", Shape(dims)), param("zz", {1})};
    world.mesh({{"dp", 3}}).build("t", expression);
    world.policy.unexpected = policy::Strictness::kReport;
    world.policy.dtype = DType::kF32;
    if (!dims.empty() && seed % 3 == 0) world.place("t", {shard(0, seed % dims.size())});
    if (seed % 3 == 1) world.place("t", {flat({0})});
    Loaded loaded(world, seed);
    loaded.load();
    if (testing::Test::HasFatalFailure()) return;
    const VerifyReport report = loaded.report({.window_bytes = 1 + seed % 64});
    EXPECT_TRUE(report.agrees()) << seed << " " << expression.text() << "\n" << all_text(report.differences);
    EXPECT_EQ(report.tensors_verified, 2U) << seed;
  }
}

TEST(Verify, LongTensorsStreamInSeveralPieces) {
  World world = world_of({"w", {1024, 3001}, DType::kBF16}, {{"tp", 2}}, {shard(0, 1)});
  world.tensors.push_back(init(param("random", {1'500'001}, DType::kBF16), normal(1)));
  world.policy.allow_missing = {"random"};
  world.policy.dtype = DType::kF32;
  Loaded loaded(world);
  loaded.load();
  const VerifyReport report = loaded.report();
  EXPECT_TRUE(report.agrees()) << all_text(report.differences);
  EXPECT_EQ(report.tensors_verified, 2U);
  EXPECT_EQ(report.read_bytes, 1024U * 3001 * 2);
  loaded.flip_bit("w", 1024 * 3001 * 2 - 1);
  EXPECT_THAT(only(loaded.report()), HasSubstr("values_differ w rank 1: rank 1 and the files"));
}

TEST(Verify, R45_OneFlippedBitIsFoundWhereItIs) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"r", 2}, {"dp", 4}}, {shard(1, 0)}));
  loaded.load();
  loaded.flip_bit("w", 5 * 16 + 2);  // row 5: the third quarter
  const VerifyReport report = loaded.report();
  EXPECT_EQ(only(report), "values_differ w rank 2: ranks 2, 6 and the files have different values");
  EXPECT_EQ(report.tensors_verified, 0U);
  EXPECT_EQ(report.records_verified, 6U);
}

TEST(Verify, AWrongDigestIsNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 4}}, {shard(0, 0)}));
  loaded.load();
  const std::string right = loaded.record(3, "w").digest->text();
  loaded.record(3, "w").digest->lanes[1] ^= 1;
  const VerifyReport report = loaded.report();
  EXPECT_EQ(only(report), "values_differ w rank 3: rank 3 and the files have different values");
  EXPECT_EQ(report.differences.front().expected, right);
  EXPECT_EQ(report.differences.front().found, loaded.record(3, "w").digest->text());
}

// The sum over the tensor would still be right.
TEST(Verify, DigestsThatChangedPlacesAreFound) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {shard(0, 0)}));
  loaded.load();
  std::swap(loaded.record(0, "w").digest, loaded.record(1, "w").digest);
  EXPECT_EQ(loaded.report().differences.size(), 2U);
}

TEST(Verify, R1_AMissingRecordIsNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 4}}, {}));
  loaded.load();
  loaded.bill.records.erase(loaded.bill.records.begin() + 2);
  EXPECT_EQ(only(loaded.report()), "incomplete w rank 2: the ledger has no record of the tensor on this rank");
}

TEST(Verify, ReplicasThatDisagreeAreNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"r", 3}}, {}));
  loaded.load();
  loaded.record(1, "w").digest->lanes[0] += 5;
  const VerifyReport report = loaded.report();
  ASSERT_EQ(report.differences.size(), 2U) << all_text(report.differences);
  EXPECT_THAT(report.differences.list()[0].found, HasSubstr("on ranks 0, 2"));
  EXPECT_EQ(report.differences.list()[1].rank, 1);
}

TEST(Verify, R11_ARecordThatIsNotCompleteIsNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {shard(0, 0)}));
  loaded.load();
  loaded.record(1, "w").written_bytes = 60;
  loaded.record(1, "w").complete = false;
  EXPECT_EQ(only(loaded.report()), "incomplete w rank 1: not every byte of the tensor was written");
}

TEST(Verify, WithoutDigestsNothingIsVerified) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {}));
  loaded.load();
  for (Record& record : loaded.bill.records) record.digest.reset();
  const VerifyReport report = loaded.report();
  EXPECT_EQ(only(report), "unverified w rank 0: no digest was taken on ranks 0, 1");
  EXPECT_EQ(report.tensors_verified, 0U);
}

TEST(Verify, SomeRanksAreVerifiedPartByPart) {
  Loaded loaded(world_of({"w", {6, 5}}, {{"dp", 3}, {"tp", 2}}, {shard(1, 1), flat({0})}));
  loaded.load({1, 4});
  const VerifyReport report = loaded.report();
  EXPECT_TRUE(report.agrees()) << all_text(report.differences);
  EXPECT_EQ(report.tensors_verified, 0U);
  EXPECT_EQ(report.tensors_partly_verified, 1U);
  EXPECT_EQ(report.records_verified, 2U);
  loaded.flip_bit("w", 4 * (2 * 5 + 1));  // row 2, column 1: in the middle third of the first half
  EXPECT_TRUE(loaded.report().agrees());
  loaded.flip_bit("w", 4 * (0 * 5 + 4));  // row 0, column 4: in the first third of the second half
  EXPECT_THAT(only(loaded.report()), HasSubstr("values_differ w rank 1"));
}

TEST(Verify, R50_EveryKeyOfATieClassIsRead) {
  World world;
  world.keys = {{"embed", {4, 4}, DType::kF16}, {"head", {4, 4}, DType::kF16}};
  world.tensors = {param("embed", {4, 4}), param("head", {4, 4})};
  world.ties = {{"embed", "head"}};
  Loaded loaded(world, 1, Loaded::Data::kSameInAllKeys);
  loaded.load();
  ASSERT_EQ(loaded.bill.tensors[0].must_equal.size(), 1U);
  const VerifyReport good = loaded.report();
  EXPECT_TRUE(good.agrees()) << all_text(good.differences);
  EXPECT_EQ(good.tensors_verified, 2U);
  EXPECT_EQ(good.read_bytes, 2U * 32);
  loaded.flip_bit(loaded.bill.tensors[0].must_equal[0].key, 7);
  const VerifyReport report = loaded.report();
  ASSERT_EQ(report.differences.size(), 2U) << all_text(report.differences);  // under both names
  EXPECT_EQ(report.differences.front().rule, "R50");
  EXPECT_EQ(report.tensors_verified, 0U);
}

TEST(Verify, R16_RandomValuesAreMadeAgain) {
  World world;
  world.tensors = {init(param("e", {7, 5}, DType::kBF16), normal(0.02)), init(param("c", {9}), fill(0.1))};
  world.tensors[0].init->zero_row = 3;
  world.policy.allow_missing = {"e", "c"};
  world.mesh({{"dp", 2}}).place("e", {shard(0, 0)});
  Loaded loaded(world);
  loaded.load();
  EXPECT_EQ(loaded.report().tensors_verified, 2U);
  EXPECT_EQ(loaded.report().read_bytes, 0U);
  loaded.bill.seed += 1;
  EXPECT_EQ(loaded.report().differences.size(), 2U);  // both ranks of the random one
  loaded.bill.seed -= 1;
  loaded.bill.tensors[1].recipe.zero_row = 4;
  EXPECT_EQ(loaded.report().differences.size(), 2U);
}

TEST(Verify, ALedgerThatNoPlanCouldHaveIsRefused) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {}));
  loaded.load();
  loaded.bill.tensors[0].expression = Expression::slice(Expression::source("w"), 0, 0, 4);
  const VerifyReport report = loaded.report();
  EXPECT_EQ(only(report), "mapping w rank -1: the expression does not make a tensor of this shape");
  EXPECT_EQ(report.not_verified.size(), 1U);
}

TEST(Verify, ValuesOfRecordsThatDoNotFitAreNotCompared) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {shard(0, 0)}));
  loaded.load();
  Record& record = loaded.record(1, "w");
  record.region.runs[0] = {{0, 8}};
  const VerifyReport report = loaded.report();
  EXPECT_EQ(
      only(report),
      "incomplete w rank 1: the record does not describe the part of the tensor that its placement gives to the rank");
  EXPECT_EQ(report.read_bytes, 0U);
  ASSERT_EQ(report.not_verified.size(), 1U);
  EXPECT_THAT(report.not_verified[0].reason, HasSubstr("contradict"));
}

}  // namespace
}  // namespace lading::exec
