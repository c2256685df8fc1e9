// Verify, and what its files and the machine do to it: files and keys that are gone or changed, threads, memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>

#include "exec/verify/verify.h"
#include "exec/verify/verify_for_tests.h"

namespace lading::exec {
namespace {

using namespace verifying;
using testing::HasSubstr;

TEST(Verify, R62_TheAnswerDoesNotDependOnThreads) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  loaded.flip_bit("a", 3);
  loaded.flip_bit("plain", 11);
  const VerifyReport one = loaded.report({.threads = 1});
  const VerifyReport four = loaded.report({.threads = 4});
  EXPECT_EQ(all_text(one.differences), all_text(four.differences));
  EXPECT_FALSE(one.agrees());
  EXPECT_EQ(one.tensors_verified, four.tensors_verified);
  EXPECT_EQ(one.read_bytes, four.read_bytes);
}

TEST(Verify, R45_ATruncatedFileIsAnError) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  std::filesystem::resize_file(loaded.path(1), loaded.catalog.files[1].size_bytes - 8);
  const auto result = loaded.verify();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().front().code, Code::kFileTruncated) << all_text(result.error());
  EXPECT_EQ(result.error().front().file, "model-1.safetensors");
  EXPECT_TRUE(result.error().front().tensor);
}

TEST(Verify, R45_AFileOfAnotherSizeIsNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {}));
  loaded.load();
  loaded.bill.files[0].size_bytes += 1;
  const VerifyReport report = loaded.report();
  ASSERT_EQ(report.differences.size(), 1U);
  EXPECT_EQ(report.differences.front().code, Code::kFileChanged);
  EXPECT_EQ(report.differences.front().file, "model-0.safetensors");
  EXPECT_EQ(report.tensors_verified, 1U);
}

TEST(Verify, R45_WhereValuesDifferAFileThatWasWrittenToIsNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {}));
  loaded.load();
  loaded.bill.files[0].identity->mtime_ns ^= 1;
  EXPECT_TRUE(loaded.report().agrees()) << "a file that was only touched is as good";
  loaded.flip_bit("w", 3);
  EXPECT_THAT(loaded.report().differences.front().remedy, HasSubstr("\"model-0.safetensors\": it was modified after"));
  loaded.bill.files[0].identity->mtime_ns ^= 1;
  EXPECT_EQ(loaded.report().differences.front().remedy, "") << "by inode and time it is the same file";
  loaded.bill.files[0].identity.reset();
  EXPECT_EQ(loaded.report().differences.front().remedy, "") << "nobody knows";
}

TEST(Verify, R45_WhereValuesDifferACopyIsNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {}));
  loaded.load();
  loaded.bill.files[0].identity->inode ^= 1;
  EXPECT_TRUE(loaded.report().agrees()) << "a copy is as good";
  loaded.flip_bit("w", 3);
  EXPECT_THAT(loaded.report().differences.front().remedy, HasSubstr("a copy or a replacement"));
}

// The values are read right, and agree; that somebody writes is found out after the last read of the file.
TEST(Verify, R45_AFileThatChangesMeanwhileIsRefusedAsInALoad) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  for (const std::uint32_t threads : {1U, 4U}) {
    std::atomic<int> opened = 0;
    const auto result = loaded.verify({.threads = threads}, [&](std::uint32_t file) {
      auto found = loaded.open(file);
      if (file == 1) {
        ++opened;
        std::filesystem::last_write_time(loaded.path(1),
                                         std::filesystem::last_write_time(loaded.path(1)) + std::chrono::seconds(1));
      }
      return found;
    });
    EXPECT_EQ(opened, 1) << "from the first read to the last";
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().front().code, Code::kFileChanged) << all_text(result.error());
    EXPECT_EQ(result.error().front().file, "model-1.safetensors");
    EXPECT_TRUE(result.error().front().tensor);
  }
}

TEST(Verify, R45_AFileThatCannotBeOpenedIsAnError) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  const auto result = loaded.verify({}, [&](std::uint32_t file) -> Result<io::File> {
    if (file == 0) return fail(Error(Code::kFileChanged, "replaced").in_file("model-0.safetensors"));
    return loaded.open(file);
  });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().front().code, Code::kFileChanged);
  EXPECT_TRUE(result.error().front().tensor);
}

TEST(Verify, R38_AKeyThatIsGoneIsNamed) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  std::erase_if(loaded.catalog.tensors, [](const auto& tensor) { return tensor.name == "b"; });
  const VerifyReport report = loaded.report();
  EXPECT_EQ(only(report), "values_differ built rank -1: \"b\": the checkpoint no longer has the key");
  EXPECT_EQ(report.tensors_verified, 6U);
  EXPECT_EQ(report.not_verified.front().tensor, "built");
}

TEST(Verify, AKeyOfAnotherShapeOrPlaceIsNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {}));
  loaded.load();
  loaded.catalog.tensors[0].shape = Shape{4, 8};
  EXPECT_EQ(only(loaded.report()), "values_differ w rank -1: \"w\": the key has another dtype or shape");
  loaded.catalog.tensors[0].shape = Shape{8, 4};
  loaded.bill.tensors[0].sources[0].bytes.begin -= 1;
  loaded.bill.tensors[0].sources[0].bytes.end -= 1;
  EXPECT_EQ(only(loaded.report()), "values_differ w rank -1: \"w\": the key is at other bytes");
}

TEST(Verify, R64_ATensorThatTakesTooMuchMemoryIsNotVerified) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  const VerifyReport report = loaded.report({.most_tensor_bytes = 100});
  EXPECT_THAT(only(report), HasSubstr("unverified built"));
  EXPECT_EQ(report.tensors_verified, 6U);
}

TEST(Verify, R64_OnlySoMuchIsMadeThatNoFileHolds) {
  World world;
  world.tensors = {init(param("a", {10}), fill(1)), init(param("b", {10}), fill(1)), init(param("c", {10}), fill(1))};
  world.policy.allow_missing = {"*"};
  Loaded loaded(world);
  loaded.load();
  EXPECT_EQ(loaded.report({.most_tensor_bytes = 40}).tensors_verified, 3U);
  EXPECT_EQ(loaded.report({.most_tensor_bytes = 39}).tensors_verified, 0U);
  const VerifyReport report = loaded.report({.most_made_bytes = 100});
  EXPECT_EQ(report.tensors_verified, 2U);
  EXPECT_THAT(only(report),
              HasSubstr("unverified c rank -1: the records of the tensor claim too many bytes that no file has"));
}

TEST(Verify, LittleMemoryOnlyTakesTurns) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  EXPECT_EQ(loaded.report({.threads = 4, .memory_bytes = 1}).tensors_verified, 7U);
}

TEST(Verify, CancelledIsAnError) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  const std::atomic<bool> cancelled = true;
  const auto result = loaded.verify({.cancelled = &cancelled});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().front().code, Code::kCancelled);
}

}  // namespace
}  // namespace lading::exec
