#include "checkpoint/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace lading::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kFile = "dir/model.safetensors.index.json";

Result<Index, Errors> parse(std::string_view json) { return parse_index(JsonBuffer::copy_of(json), kFile); }

Errors errors_of(std::string_view json) {
  auto index = parse(json);
  return index ? Errors() : std::move(index).error();
}

TEST(ShardName, S4_GoodNames) {
  for (const char* name : {"model.safetensors", "model-00001-of-00002.safetensors", "sub/dir/x.safetensors",
                           "a b.safetensors", "..a.safetensors", "a..safetensors", ".hidden/x.safetensors",
                           "...safetensors", "\u65e5.safetensors", "a:b.safetensors"}) {
    EXPECT_EQ(why_not_a_shard_name(name), std::nullopt) << name;
  }
  EXPECT_EQ(why_not_a_shard_name(std::string(4095 - 12, 'n') + ".safetensors"), std::nullopt);
}

TEST(ShardName, Fault17_S4_BadNames) {
  for (const char* name : {"",
                           "/",
                           ".",
                           "..",
                           "/etc/x.safetensors",
                           "../x.safetensors",
                           "a/../x.safetensors",
                           "a/../../x.safetensors",
                           "./x.safetensors",
                           "a/./x.safetensors",
                           "a//x.safetensors",
                           "//x.safetensors",
                           "x.safetensors/",
                           "a\\x.safetensors",
                           "..\\x.safetensors",
                           "C:\\x.safetensors",
                           "model.bin",
                           "model.pt",
                           "model.SAFETENSORS",
                           "safetensors",
                           "x.safetensors.bin",
                           "x.safetensors ",
                           "/dev/zero",
                           "x.safetensors/.",
                           "x.safetensors/.."}) {
    EXPECT_NE(why_not_a_shard_name(name), std::nullopt) << name;
  }
  EXPECT_NE(why_not_a_shard_name(std::string_view("a\0.safetensors", 14)), std::nullopt);
  EXPECT_NE(why_not_a_shard_name(std::string(4096 - 12, 'n') + ".safetensors"), std::nullopt);
}

TEST(Index, ReadsEntriesInFileOrderAndShardsSorted) {
  const std::string json =
      R"({"metadata":{"total_size":123},"weight_map":{"z":"b.safetensors","a":"a.safetensors","m":"b.safetensors"}})";
  const auto index = parse(json);
  ASSERT_TRUE(index.has_value()) << index.error().front().text();
  EXPECT_THAT(index->shards, ElementsAre("a.safetensors", "b.safetensors"));
  ASSERT_EQ(index->entries.size(), 3U);
  EXPECT_EQ(index->entries[0].tensor, "z");
  EXPECT_EQ(index->entries[0].shard, 1U);
  EXPECT_EQ(index->entries[0].offset, json.find("\"z\""));
  EXPECT_EQ(index->entries[1].tensor, "a");
  EXPECT_EQ(index->entries[1].shard, 0U);
  EXPECT_EQ(index->entries[2].tensor, "m");
  EXPECT_EQ(index->entries[2].shard, 1U);
  EXPECT_EQ(index->total_size_bytes, 123U);
  EXPECT_TRUE(index->warnings.empty());
}

TEST(Index, MetadataMayBeAbsentOrHoldOtherThings) {
  for (const char* metadata :
       {"", R"("metadata":{},)", R"("metadata":{"total_parameters":5,"format":"pt"},)", R"("format":{"x":[1]},)"}) {
    const auto index = parse("{" + std::string(metadata) + R"("weight_map":{"a":"a.safetensors"}})");
    ASSERT_TRUE(index.has_value()) << metadata;
    EXPECT_EQ(index->total_size_bytes, std::nullopt);
    EXPECT_TRUE(index->warnings.empty()) << metadata;
  }
}

// "A wrong total_size is a warning, never silent": whatever stands there, the tensors can still be read.
TEST(Index, Fault22_OddTotalSizeIsAWarning) {
  for (const char* total : {"\"123\"", "-1", "1.5", "1e3", "true", "null", "[]", "{}", "-0", "18446744073709551616",
                            "123456789012345678901234567890", "-9223372036854775809"}) {
    const std::string json =
        R"({"metadata":{"total_size":)" + std::string(total) + R"(},"weight_map":{"a":"a.safetensors"}})";
    const auto index = parse(json);
    ASSERT_TRUE(index.has_value()) << total << ": " << index.error().front().text();
    EXPECT_EQ(index->total_size_bytes, std::nullopt) << total;
    ASSERT_EQ(index->warnings.size(), 1U) << total;
    const Error& warning = index->warnings.front();
    EXPECT_EQ(warning.code, Code::kIndexTotalSize);
    EXPECT_EQ(warning.file, kFile);
    EXPECT_EQ(warning.bytes->begin, json.find(total)) << total;
  }
}

TEST(Index, LargestTotalSizeIsANumber) {
  const auto index = parse(R"({"metadata":{"total_size":18446744073709551615},"weight_map":{"a":"a.safetensors"}})");
  ASSERT_TRUE(index.has_value());
  EXPECT_EQ(index->total_size_bytes, ~std::uint64_t{0});
  EXPECT_TRUE(index->warnings.empty());
}

TEST(Index, R45_WeightMapMustBeThereAndBeAnObject) {
  const std::pair<const char*, std::uint64_t> cases[] = {{"{}", 0},
                                                         {"7", 0},
                                                         {"[]", 0},
                                                         {"  {}", 2},
                                                         {R"({"weight_map":[]})", 14},
                                                         {R"({"weight_map":"a.safetensors"})", 14},
                                                         {R"({"weight_map":null})", 14},
                                                         {R"({"Weight_map":{"a":"a.safetensors"}})", 0}};
  for (const auto& [json, offset] : cases) {
    const Errors errors = errors_of(json);
    ASSERT_EQ(errors.size(), 1U) << json;
    EXPECT_EQ(errors.front().code, Code::kIndexInvalid);
    EXPECT_EQ(errors.front().bytes->begin, offset) << json;
    EXPECT_EQ(errors.front().file, kFile);
  }
}

TEST(Index, EmptyWeightMapIsRefused) {
  const Errors errors = errors_of(R"({"weight_map":{}})");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().code, Code::kIndexInvalid);
}

TEST(Index, EveryBadEntryIsListed) {
  const std::string json =
      R"({"weight_map":{"a":1,"b":"../x.safetensors","c":null,"d":"/x.safetensors","e":"../x.safetensors","f":"f.safetensors"}})";
  const Errors errors = errors_of(json);
  ASSERT_EQ(errors.size(), 4U) << "two that are no strings, two bad names";
  std::vector<std::tuple<Code, std::string, std::uint64_t>> found;
  for (const Error& error : errors) found.emplace_back(error.code, error.tensor.value_or("none"), error.bytes->begin);
  EXPECT_THAT(found, ::testing::UnorderedElementsAre(std::tuple(Code::kIndexInvalid, "a", json.find("1,")),
                                                     std::tuple(Code::kIndexInvalid, "c", json.find("null")),
                                                     std::tuple(Code::kIndexShardName, "b", json.find("\"../x")),
                                                     std::tuple(Code::kIndexShardName, "d", json.find("\"/x"))));
}

TEST(Index, S4_BadShardNameNamesRuleTensorAndCount) {
  const Errors errors = errors_of(R"({"weight_map":{"a":"x.bin","b":"x.bin"}})");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().rule, "S4");
  EXPECT_EQ(errors.front().tensor, "a");
  EXPECT_THAT(errors.front().text(), HasSubstr("x.bin"));
  EXPECT_THAT(errors.front().text(), HasSubstr("2 tensor"));
}

TEST(Index, Fault17_NulThroughAnEscapeIsRefused) {
  const Errors errors = errors_of(R"({"weight_map":{"a":"a\u0000.safetensors"}})");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().code, Code::kIndexShardName);
}

TEST(Index, Fault5_DuplicateTensorIsRefused) {
  const Errors errors = errors_of(R"({"weight_map":{"a":"a.safetensors","\u0061":"b.safetensors"}})");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().code, Code::kJsonDuplicateKey);
  EXPECT_EQ(errors.front().tensor, "a");
  EXPECT_EQ(errors.front().file, kFile);
  EXPECT_EQ(errors.front().bytes->begin, 35U);
}

TEST(Index, DuplicateWeightMapIsRefused) {
  const Errors errors = errors_of(R"({"weight_map":{"a":"a.safetensors"},"weight_map":{"b":"b.safetensors"}})");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().code, Code::kJsonDuplicateKey);
}

TEST(Index, BrokenJsonNamesTheFile) {
  const Errors errors = errors_of(R"({"weight_map":{)");
  ASSERT_FALSE(errors.empty());
  EXPECT_EQ(errors.front().file, kFile);
  EXPECT_EQ(errors.front().code, Code::kJsonSyntax);
}

}  // namespace
}  // namespace lading::checkpoint
