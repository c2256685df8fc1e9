// What a new checkpoint holds: keys, dtypes, files; and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checker/save/check_save.h"
#include "planner/save/output_files.h"
#include "planner/save/plan_save.h"
#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words
using mapping::Expression;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// A model in memory, and perhaps the base that it is saved as.
struct Saved {
  World world;
  saving::Options options = {};
  bool has_base = true;
  std::string index_name = {};

  [[nodiscard]] Result<SaveDecisions, Errors> plan() const {
    const model::Skeleton skeleton = *model::make_skeleton(world.tensors, world.ties, world.pins);
    const checkpoint::Catalog base = world.catalog();
    auto made = plan_save({has_base ? &base : nullptr, index_name, skeleton, world.layout, world.mapping, options});
    if (made) {
      const auto proof = checker::check_save(made->plan);
      EXPECT_TRUE(proof.has_value()) << all_text(proof.error());
    }
    return made;
  }
};

std::string refusal(const Saved& saved) {
  const auto made = saved.plan();
  return made ? "accepted" : all_text(made.error());
}

// "model.safetensors: w F32 [2]": what stands in which file, in its order.
std::vector<std::string> contents(const Result<SaveDecisions, Errors>& made) {
  if (!made) return {all_text(made.error())};
  const plan::Plan& load = made->plan.load;
  std::vector<std::string> lines;
  for (const plan::FileId file : load.files.ids()) {
    std::vector<const plan::Source*> sources;
    for (const plan::Source& source : load.sources) {
      if (source.file == file) sources.push_back(&source);
    }
    std::sort(sources.begin(), sources.end(),
              [](const auto* a, const auto* b) { return a->bytes.begin < b->bytes.begin; });
    for (const plan::Source* source : sources) {
      lines.push_back(
          fmt::format("{}: {} {} {}", load.files[file].name, source->key, name(source->dtype), source->shape.text()));
    }
  }
  return lines;
}

TEST(SaveDecisions, TheBasesKeysDTypesAndFiles) {
  const Saved saved{{{{"a", {4}, DType::kBF16, 1}, {"b", {2, 2}, DType::kF32, 0}, {"c", {2}, DType::kF32, 1}},
                     {param("a", {4}, DType::kBF16), param("b", {2, 2}), buffer("c", {2})}}};
  const auto made = saved.plan();
  EXPECT_THAT(contents(made), ElementsAre("model-1.safetensors: a BF16 [4]", "model-1.safetensors: c F32 [2]",
                                          "model-0.safetensors: b F32 [2, 2]"));
  EXPECT_EQ(made->plan.index_name, "model.safetensors.index.json");
  EXPECT_THAT(made->plan.index, HasSubstr("\"total_size\": 32"));
}

TEST(SaveDecisions, WithoutABaseTheModelsOwnNamesEachTieOnce) {
  const Saved saved{
      {{}, {param("a", {4}), param("b", {4}), table("derived", {2}), param("c", {2}, DType::kBF16)}, {{"a", "b"}}},
      {},
      false};
  const auto made = saved.plan();
  EXPECT_THAT(contents(made), ElementsAre("model.safetensors: a F32 [4]", "model.safetensors: c BF16 [2]"));
  EXPECT_THAT(made->not_saved, ElementsAre("derived"));
  // The header that the safetensors package writes for these tensors.
  EXPECT_EQ(made->plan.headers.front().substr(8),
            R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
            R"("c":{"dtype":"BF16","shape":[2],"data_offsets":[16,20]}}  )");
}

TEST(SaveDecisions, FilesAreFilledAsHuggingfaceHubFillsThem) {
  std::vector<OutputKey> keys;
  for (const auto& [name, elems] :
       std::vector<std::pair<std::string, std::uint64_t>>{{"a", 3}, {"b", 2}, {"large", 9}, {"c", 1}, {"d", 5}}) {
    keys.push_back({name, DType::kI8, Shape{elems}});
  }
  std::vector<std::string> lines;
  for (const OutputShard& shard : fill_shards(keys, 5, {})) {
    for (const OutputKey& key : shard.keys) lines.push_back(shard.name + ": " + key.key);
  }
  // "a" and "b" fill one, "large" has its own before they are closed, and "d" does not fit to "c".
  EXPECT_THAT(lines, ElementsAre("model-00001-of-00004.safetensors: large", "model-00002-of-00004.safetensors: a",
                                 "model-00002-of-00004.safetensors: b", "model-00003-of-00004.safetensors: c",
                                 "model-00004-of-00004.safetensors: d"));
}

TEST(SaveDecisions, TheCallerMaySayWhichFileHasAKey) {
  Saved saved{{{}, {param("a", {4}), param("b", {2}), param("c", {2})}}};
  saved.has_base = false;
  saved.options.keys = {
      {{"a", {4}, {}, "two.safetensors"}, {"b", {2}, {}, "one.safetensors"}, {"c", {2}, {}, "two.safetensors"}}};
  saved.options.index_metadata = {{"total_parameters", 8}};
  const auto made = saved.plan();
  EXPECT_THAT(contents(made),
              ElementsAre("two.safetensors: a F32 [4]", "two.safetensors: c F32 [2]", "one.safetensors: b F32 [2]"));
  EXPECT_EQ(made->plan.index, R"({
  "metadata": {
    "total_parameters": 8,
    "total_size": 32
  },
  "weight_map": {
    "a": "two.safetensors",
    "b": "one.safetensors",
    "c": "two.safetensors"
  }
}
)");
}

TEST(SaveDecisions, R68_AFileHasAPlainName) {
  for (const std::string name : {"../w.safetensors", "sub/w.safetensors", "w.bin", ""}) {
    Saved saved{{{}, {param("a", {4}), param("b", {2})}}};
    saved.has_base = false;
    saved.options.keys = {{{"a", {4}, {}, "w.safetensors"}, {"b", {2}, {}, name}}};
    EXPECT_THAT(refusal(saved), AllOf(HasSubstr("\"b\": the key has no name of a file"), HasSubstr("R68"))) << name;
  }
}

TEST(SaveDecisions, R69_EveryTensorThatCannotBeSavedIsNamedAtOnce) {
  const Saved saved{
      {{{"w", {2}}, {"gone", {2}}, {"old", {2}}}, {param("w", {2}), param("lora_A", {2}), buffer("stat", {2})}}};
  EXPECT_THAT(refusal(saved),
              AllOf(HasSubstr("\"lora_A\": the parameter has no key"), HasSubstr("\"stat\""),
                    HasSubstr("\"gone\": no tensor of the model makes this key"), HasSubstr("\"old\"")));
}

TEST(SaveDecisions, WhatIsLeftOutAndWhatIsDropped) {
  Saved saved{{{{"w", {2}}, {"gone", {2}}, {"head", {2}}},
               {param("w", {2}), param("lora_A", {2}), param("head", {2}), table("derived", {2})}}};
  saved.options.leave_out = {"lora_*", "head"};
  saved.options.unmapped = saving::UnmappedKeys::kDrop;
  const auto made = saved.plan();
  EXPECT_THAT(contents(made), ElementsAre("model-0.safetensors: w F32 [2]"));
  EXPECT_THAT(made->left_out, ElementsAre("head", "lora_A"));
  EXPECT_THAT(made->dropped_keys,
              ElementsAre(Pair("gone", HasSubstr("no tensor")), Pair("head", HasSubstr("left out"))));
}

// The base's bytes, in its dtype and at its place, as tensors that one rank has in host memory.
TEST(SaveDecisions, R69_WhatIsKeptHasOneRankThatHoldsIt) {
  Saved saved{{{{"w", {4}}, {"gone", {2}, DType::kI16}, {"head", {6}}, {"old", {3}}},
               {param("w", {4}), param("head", {6}), buffer("base:gone", {1})}}};
  saved.options.unmapped = saving::UnmappedKeys::kKeep;
  saved.options.leave_out = {"head", "base:gone"};
  saved.world.mesh({{"dp", 2}});
  const auto made = saved.plan();
  EXPECT_THAT(contents(made), ElementsAre("model-0.safetensors: gone I16 [2]", "model-0.safetensors: old F32 [3]",
                                          "model-0.safetensors: w F32 [4]"));
  EXPECT_THAT(made->dropped_keys, ElementsAre(Pair("head", HasSubstr("left out"))));
  ASSERT_EQ(made->kept_keys.size(), 2U);
  EXPECT_EQ(made->kept_keys[0].tensor, "base:base:gone");
  EXPECT_EQ(made->kept_keys[1].tensor, "base:old");
  std::vector<std::string> held;
  for (const plan::RankPlan& rank : made->plan.load.ranks) {
    for (const plan::Destination& d : rank.destinations) {
      const std::string& name = made->plan.load.statements[d.statement].name;
      if (name.starts_with("base:") && d.buffer_bytes > 0) held.push_back(name + " " + d.device);
    }
  }
  EXPECT_THAT(held, ::testing::UnorderedElementsAre("base:base:gone cpu", "base:old cpu"));
}

TEST(SaveDecisions, R46_AKeyOfANonPersistentBufferIsWrittenIfItsValueFits) {
  Saved saved{{{{"w", {2}}, {"rope.inv_freq", {2}}}, {param("w", {2}), table("rope.inv_freq", {2})}}};
  EXPECT_THAT(contents(saved.plan()),
              ElementsAre("model-0.safetensors: rope.inv_freq F32 [2]", "model-0.safetensors: w F32 [2]"));
  for (const auto& [dtype, shape] : {std::pair(DType::kBF16, Shape{2}), std::pair(DType::kF32, Shape{3})}) {
    saved.options.unmapped = saving::UnmappedKeys::kRefuse;
    saved.world.keys[1].dtype = dtype;
    saved.world.keys[1].shape = shape;
    EXPECT_THAT(refusal(saved), AllOf(HasSubstr("\"rope.inv_freq\": no tensor of the model makes this key"),
                                      HasSubstr("non-persistent buffer \"rope.inv_freq\", which is F32 [2]")));
    saved.options.unmapped = saving::UnmappedKeys::kDrop;
    const auto made = saved.plan();
    EXPECT_THAT(contents(made), ElementsAre("model-0.safetensors: w F32 [2]"));
    EXPECT_THAT(made->dropped_keys, ElementsAre(Pair("rope.inv_freq", HasSubstr("no tensor"))));
  }
}

TEST(SaveDecisions, R41_AKeyOfAnotherShapeIsRefused) {
  EXPECT_THAT(refusal({{{{"w", {3}}}, {param("w", {2})}}}),
              AllOf(HasSubstr("shape"), HasSubstr("[3] from"), HasSubstr("without this base")));
}

TEST(SaveDecisions, NoKeyHasTheNameOfTheMetadata) {
  const Saved saved{{{}, {param("__metadata__", {2}), param("w", {2})}}, {}, false};
  EXPECT_THAT(refusal(saved), AllOf(HasSubstr("\"__metadata__\""), HasSubstr("Rename")));
}

TEST(SaveDecisions, R24_ACastThatLosesBitsIsOnlyMadeOnRequest) {
  Saved saved{{{{"w", {2}, DType::kBF16}, {"n", {2}, DType::kF32}}, {param("w", {2}), param("n", {2}, DType::kBF16)}}};
  EXPECT_THAT(refusal(saved), HasSubstr("could lose bits"));
  saved.options.dtypes = saving::FileDTypes::kBase;
  EXPECT_THAT(contents(saved.plan()), ElementsAre("model-0.safetensors: n F32 [2]", "model-0.safetensors: w BF16 [2]"));
  saved.options.dtypes = saving::FileDTypes::kMemory;
  EXPECT_THAT(contents(saved.plan()), ElementsAre("model-0.safetensors: n BF16 [2]", "model-0.safetensors: w F32 [2]"));
  saved.options.dtypes = saving::FileDTypes::kGiven;
  saved.options.dtype = DType::kF16;
  EXPECT_THAT(contents(saved.plan()), ElementsAre("model-0.safetensors: n F16 [2]", "model-0.safetensors: w F16 [2]"));
  saved.world.keys[0].dtype = DType::kI32;
  EXPECT_THAT(refusal(saved), HasSubstr("cannot be saved in the file's dtype"));
}

TEST(SaveDecisions, R69_AKeyThatTheModelHasInPartOrTwiceIsRefused) {
  Saved part{{{{"w", {4}}}, {param("half", {2})}}};
  part.world.build("half", Expression::slice(Expression::source("w"), 0, 0, 2));
  EXPECT_THAT(refusal(part), HasSubstr("holds only a part"));
  Saved twice{{{{"w", {2}}}, {param("a", {2}), param("b", {2})}}};
  twice.world.build("a", Expression::source("w")).build("b", Expression::source("w"));
  EXPECT_THAT(refusal(twice), AllOf(HasSubstr("twice"), HasSubstr("\"a\", \"b\"")));
  twice.world.ties = {{"a", "b"}};  // then it is one memory
  EXPECT_THAT(contents(twice.plan()), ElementsAre("model-0.safetensors: w F32 [2]"));
}

TEST(SaveDecisions, R48_ADequantizedModelIsSavedUnquantized) {
  const Saved saved{{{{"x.weight", {256, 256}, DType::kF8E4M3}, {"x.weight_scale_inv", {2, 2}}},
                     {param("x.weight", {256, 256}, DType::kBF16)}}};
  const auto made = saved.plan();
  EXPECT_THAT(contents(made), ElementsAre("model-0.safetensors: x.weight BF16 [256, 256]"));
  EXPECT_THAT(made->dropped_keys, ElementsAre(Pair("x.weight_scale_inv", HasSubstr("not quantized"))));
}

TEST(SaveDecisions, R48_CodesAreNotKeptBesideADequantizedModel) {
  Saved saved{{{{"x.weight", {256, 256}, DType::kF8E4M3},
                {"x.weight_scale_inv", {2, 2}},
                {"mtp.weight", {256, 256}, DType::kF8E4M3},
                {"mtp.weight_scale_inv", {2, 2}}},
               {param("x.weight", {256, 256}, DType::kBF16)}}};
  saved.options.unmapped = saving::UnmappedKeys::kKeep;
  EXPECT_THAT(refusal(saved), HasSubstr("\"mtp.weight\": this key is quantized and cannot be kept"));
}

TEST(SaveDecisions, R24_NumbersOfFewBitsWithoutScalesAreOrdinaryValues) {
  Saved saved{{{{"x.weight", {4}, DType::kF8E4M3}}, {param("x.weight", {4})}}};
  EXPECT_THAT(refusal(saved), AllOf(HasSubstr("could lose bits"), HasSubstr("F8_E4M3 of the key")));
  saved.options.dtypes = saving::FileDTypes::kBase;
  EXPECT_THAT(contents(saved.plan()), ElementsAre("model-0.safetensors: x.weight F8_E4M3 [4]"));
  saved.options.dtypes = saving::FileDTypes::kMemory;
  EXPECT_THAT(contents(saved.plan()), ElementsAre("model-0.safetensors: x.weight F32 [4]"));
  saved.options.dtypes = saving::FileDTypes::kGiven;
  saved.options.dtype = DType::kBF16;
  EXPECT_THAT(contents(saved.plan()), ElementsAre("model-0.safetensors: x.weight BF16 [4]"));
}

TEST(SaveDecisions, ReplicasShareTheWork) {
  Saved saved{{{{"a", {1000}}, {"b", {1000}}, {"c", {1000}}, {"large", {4 << 20}}},
               {param("a", {1000}), param("b", {1000}), param("c", {1000}), param("large", {4 << 20})}}};
  saved.world.mesh({{"dp", 4}});
  const auto made = saved.plan();
  ASSERT_TRUE(made) << all_text(made.error());
  std::vector<std::uint64_t> bytes;
  for (const auto& rank : made->plan.ranks) bytes.push_back(rank.bytes);
  EXPECT_THAT(bytes, ElementsAre((4 << 20) + 4000, (4 << 20) + 4000, (4 << 20) + 4000, 4 << 20));
}

TEST(SaveDecisions, TheDigestIsOfEverythingInThePlan) {
  Saved saved{{{{"w", {64}}}, {param("w", {64})}}};
  saved.world.mesh({{"dp", 2}});
  const auto made = saved.plan();
  const std::string digest = plan::digest(made->plan);
  EXPECT_EQ(plan::digest(saved.plan()->plan), digest);
  plan::SavePlan other = made->plan;
  std::swap(other.ranks[0].writes, other.ranks[1].writes);
  EXPECT_NE(plan::digest(other), digest);
  other = made->plan;
  other.headers.front().back() = 'x';
  EXPECT_NE(plan::digest(other), digest);
}

}  // namespace
}  // namespace lading::planner
