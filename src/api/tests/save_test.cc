// Saves in one process, from the checkpoint on a disk to another one there.
#include "lading/save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lading/verify.h"
#include "planner/tests/save_world_for_tests.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

using planner::SaveWorld;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string all_problems(const Errors& errors) {
  std::string text;
  for (const Error& error : errors) text += error.text() + "\n";
  return text;
}

// The files of a world's base, with random values; those of ties are equal.
void write_base(const SaveWorld& world, const test::TempDir& dir, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const checkpoint::Catalog& base = world.base();
  std::string index;
  std::string of_ties;
  for (std::uint32_t f = 0; f < base.files.size(); ++f) {
    std::string header;
    std::string data;
    for (const checkpoint::CatalogTensor& tensor : base.tensors) {
      if (tensor.file != f) continue;
      std::string value(tensor.bytes.size_bytes(), '\0');
      for (std::size_t i = 0; i < value.size(); i += 2) {
        value[i] = static_cast<char>(random());
        value[i + 1] = static_cast<char>(random() & 0x3F);  // finite
      }
      if (tensor.name == "u" || tensor.name == "v") value = of_ties.empty() ? of_ties = value : of_ties;
      header += fmt::format(R"(,"{}":{{"dtype":"F16","shape":[{}],"data_offsets":[{},{}]}})", tensor.name,
                            fmt::join(tensor.shape, ","), data.size(), data.size() + value.size());
      index += fmt::format(R"({}"{}":"{}")", index.empty() ? "" : ",", tensor.name, base.files[f].name);
      data += value;
    }
    header = R"({"__metadata__":{"format":"pt"})" + header + "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    if (!data.empty() || header.find("dtype") != std::string::npos) {
      dir.write("base/" + base.files[f].name, test::safetensors_bytes(header, data));
    }
  }
  dir.write("base/model.safetensors.index.json", R"({"weight_map":{)" + index + "}}");
}

LoadRequest load_request(const SaveWorld& world, const test::TempDir& dir) {
  LoadRequest request;
  request.plan.checkpoint.path = dir.path("base/model.safetensors.index.json");
  request.plan.skeleton = world.skeleton();
  request.plan.mapping = world.mapping();
  request.plan.layout = world.layout();
  request.plan.ranks.reset();
  return request;
}

SaveRequest save_request(const SaveWorld& world, const test::TempDir& dir, DType memory) {
  SaveRequest request;
  request.base = CheckpointRef{dir.path("base/model.safetensors.index.json")};
  model::Skeleton skeleton = world.skeleton();
  for (model::Tensor& tensor : skeleton.tensors) tensor.dtype = memory;
  request.skeleton = skeleton;
  request.mapping = world.mapping();
  request.layout = world.layout();
  request.options.dtypes = saving::FileDTypes::kBase;
  return request;
}

// The memory of what was loaded.
SaveWriting writing_of(const LoadReport& loaded) {
  std::map<std::pair<std::uint64_t, std::string>, std::span<const std::byte>> memory;
  for (const LoadedTensor& tensor : loaded.tensors) {
    memory[{tensor.destination.rank, tensor.destination.name}] = tensor.memory;
  }
  SaveWriting writing;
  writing.memory = [memory](const DestinationInfo& d) -> Result<std::span<const std::byte>> {
    return memory.at({d.rank, d.name});
  };
  return writing;
}

std::uint64_t round_trips() {
  const char* wanted_cases = std::getenv("LADING_ORACLE_CASES");
  return wanted_cases == nullptr ? 60 : std::strtoull(wanted_cases, nullptr, 10);
}

void expect_same_files(const test::TempDir& dir, std::uint64_t seed) {
  for (const auto& entry : std::filesystem::directory_iterator(dir.path("base"))) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(".safetensors")) continue;
    ASSERT_EQ(dir.read("out/" + name), dir.read("base/" + name)) << "seed " << seed << " " << name;
  }
}

void expect_that_the_ledger_agrees(const test::TempDir& dir, std::uint64_t seed) {
  VerifyRequest request;
  request.checkpoint.path = dir.path("out");
  request.ledgers = {Document::file(dir.path("out/lading.ledger.json"))};
  const auto verified = verify(request);
  ASSERT_TRUE(verified) << "seed " << seed << " " << all_problems(verified.error().problems);
  EXPECT_TRUE(verified->differences.empty()) << "seed " << seed << " " << all_problems(verified->differences);
  EXPECT_THAT(verified->not_verified, IsEmpty());
}

void round_trip(std::uint64_t seed, DType memory) {
  const test::TempDir dir;
  const SaveWorld world(seed);
  write_base(world, dir, seed);
  LoadRequest load = load_request(world, dir);
  policy::Policy policy;
  policy.dtype = memory;
  load.plan.policy = policy;
  const auto loaded = materialize(load);
  ASSERT_TRUE(loaded) << "seed " << seed << " " << all_problems(loaded.error().problems);
  const auto report = save(save_request(world, dir, memory), {dir.path("out")}, writing_of(*loaded));
  ASSERT_TRUE(report) << "seed " << seed << " " << all_problems(report.error().problems);
  EXPECT_EQ(report->written.written_bytes, report->plan.data_bytes);
  EXPECT_EQ(report->plan.bytes_proved, report->plan.data_bytes);
  expect_same_files(dir, seed);
  if (seed % 8 == 0) expect_that_the_ledger_agrees(dir, seed);
}

TEST(SaveRoundTrip, R69_WhatWasLoadedIsSavedByteForByte) {
  std::uint64_t tried = 0;
  for (std::uint64_t seed = 0; tried < round_trips() && !HasFatalFailure(); ++seed) {
    if (!SaveWorld(seed).can_be_saved()) continue;
    round_trip(seed, DType::kF16);
    ++tried;
  }
}

TEST(SaveRoundTrip, R69_CastsAreUndone) {
  std::uint64_t tried = 0;
  for (std::uint64_t seed = 0; tried < round_trips() / 4 && !HasFatalFailure(); ++seed) {
    if (!SaveWorld(seed).can_be_saved()) continue;
    round_trip(seed, DType::kF32);
    ++tried;
  }
}

// A model of one tensor, w = [1, 2, 3, 4], on two ranks.
class SaveSteps : public ::testing::Test {
 protected:
  void SetUp() override {
    model::Tensor w;
    w.name = "w";
    w.shape = {4};
    request_.skeleton = *model::make_skeleton({w}, {}, {});
    layout::Layout layout;
    layout.mesh = layout::Mesh({{"dp", 2}});
    layout::Placement rows;
    rows.slots = {{.name = "", .cuts = {layout::Cut::shard({0}, 0)}}};
    layout.rules = {{"w", rows}};
    request_.layout = layout;
    place_.directory = dir_.path("out");
  }

  SavePlanReport plan_of(std::uint64_t rank) {
    request_.ranks = {{rank}};
    auto plan = plan_save(request_);
    LADING_CHECK(plan.has_value());
    return *std::move(plan);
  }

  Result<SaveShareReport, Errors> write(std::uint64_t rank, const std::string& temporary) {
    SaveWriting writing;
    writing.memory = [&](const DestinationInfo& d) -> Result<std::span<const std::byte>> {
      EXPECT_EQ(d.rank, rank);
      return std::as_bytes(std::span(values_).subspan(2 * rank, 2));
    };
    return write_save(plan_of(rank), place_, temporary, writing);
  }

  [[nodiscard]] std::vector<std::string> names(const std::string& below = "") const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path(below))) {
      found.push_back(entry.path().filename());
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  test::TempDir dir_;
  SaveRequest request_;
  SavePlace place_;
  std::vector<float> values_ = {1, 2, 3, 4};
};

TEST_F(SaveSteps, EachRankWritesItsPart) {
  EXPECT_EQ(plan_of(0).digest, plan_of(1).digest);
  const auto prepared = prepare_save(plan_of(0), place_);
  ASSERT_TRUE(prepared) << prepared.error().text();
  ASSERT_TRUE(write(1, prepared->temporary));
  ASSERT_TRUE(write(0, prepared->temporary));
  const auto finished = finish_save(plan_of(0), place_, prepared->temporary);
  ASSERT_TRUE(finished) << all_problems(finished.error());
  EXPECT_FALSE(std::filesystem::exists(place_.directory));
  ASSERT_TRUE(commit_save(place_, prepared->temporary));
  EXPECT_THAT(names(), ElementsAre("out"));
  EXPECT_THAT(names("out"), ElementsAre("lading.ledger.json", "model.safetensors"));
  std::string data(reinterpret_cast<const char*>(values_.data()), 16);
  EXPECT_EQ(dir_.read("out/model.safetensors"),
            test::safetensors_bytes(
                R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}  )", data));
}

TEST_F(SaveSteps, R69_NothingIsFinishedWithoutEveryRank) {
  const auto prepared = prepare_save(plan_of(0), place_);
  ASSERT_TRUE(prepared) << prepared.error().text();
  ASSERT_TRUE(write(0, prepared->temporary));
  const auto finished = finish_save(plan_of(0), place_, prepared->temporary);
  ASSERT_FALSE(finished);
  EXPECT_THAT(all_problems(finished.error()),
              AllOf(HasSubstr("rank 1"), HasSubstr("a rank has not written its part"), HasSubstr("8 bytes")));
  ASSERT_TRUE(discard_save(place_, prepared->temporary));
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(SaveSteps, R69_ThePartOfAnotherSaveIsRefused) {
  const auto prepared = prepare_save(plan_of(0), place_);
  ASSERT_TRUE(prepared) << prepared.error().text();
  ASSERT_TRUE(write(0, prepared->temporary));
  request_.options.metadata = saving::Metadata{{"format", "pt"}};
  ASSERT_TRUE(write(1, prepared->temporary));
  EXPECT_TRUE(finish_save(plan_of(0), place_, prepared->temporary)) << "the same plan in other words";
  ASSERT_TRUE(discard_save(place_, prepared->temporary));

  const auto again = prepare_save(plan_of(0), place_);
  ASSERT_TRUE(write(0, again->temporary));
  request_.options.metadata = saving::Metadata{{"format", "xx"}};
  ASSERT_TRUE(write(1, again->temporary));
  request_.options.metadata = saving::Metadata{{"format", "pt"}};
  const auto finished = finish_save(plan_of(0), place_, again->temporary);
  ASSERT_FALSE(finished);
  EXPECT_THAT(all_problems(finished.error()), HasSubstr("of another save"));
}

TEST_F(SaveSteps, AnotherDirectoryIsReplacedOnRequest) {
  dir_.write("out/old", "before");
  EXPECT_EQ(prepare_save(plan_of(0), place_).error().code, Code::kUsage);
  place_.existing = ExistingDirectory::kReplace;
  const auto prepared = prepare_save(plan_of(0), place_);
  ASSERT_TRUE(prepared) << prepared.error().text();
  ASSERT_TRUE(write(0, prepared->temporary));
  ASSERT_TRUE(write(1, prepared->temporary));
  ASSERT_TRUE(finish_save(plan_of(0), place_, prepared->temporary));
  EXPECT_EQ(dir_.read("out/old"), "before");
  EXPECT_TRUE(commit_save(place_, prepared->temporary).value());
  EXPECT_THAT(names("out"), ElementsAre("lading.ledger.json", "model.safetensors"));
  EXPECT_THAT(names(), ElementsAre("out"));
}

TEST_F(SaveSteps, MemoryThatIsMissingIsNamed) {
  const auto prepared = prepare_save(plan_of(0), place_);
  ASSERT_TRUE(prepared) << prepared.error().text();
  SaveWriting writing;
  writing.memory = [](const DestinationInfo&) { return std::span<const std::byte>(); };
  const auto written = write_save(plan_of(0), place_, prepared->temporary, writing);
  ASSERT_FALSE(written);
  EXPECT_THAT(all_problems(written.error()), AllOf(HasSubstr("\"w\""), HasSubstr("missing"), HasSubstr("8 bytes")));
}

}  // namespace
}  // namespace lading
