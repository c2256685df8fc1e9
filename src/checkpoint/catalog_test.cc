#include "checkpoint/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

namespace lading::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kIndexFile = "dir/model.safetensors.index.json";

/// A shard whose tensors are 4 bytes each, one behind the other, from byte 100 on.
ShardHeader shard(std::string name, const std::vector<std::string>& tensors) {
  ShardHeader made{std::move(name), 100 + 4 * tensors.size(), {}};
  made.header.data_begin_bytes = 100;
  std::uint64_t begin = 100;
  for (const std::string& tensor : tensors) {
    made.header.tensors.push_back({tensor, DType::kF32, {}, Shape{1}, 0, {begin, begin + 4}});
    begin += 4;
  }
  return made;
}

Index index_of(const std::map<std::string, std::string>& weight_map) {
  Index index;
  for (const auto& [tensor, file] : weight_map) index.shards.push_back(file);
  std::sort(index.shards.begin(), index.shards.end());
  index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());
  std::uint64_t offset = 20;
  // In an order that is not sorted, as files have it.
  for (auto it = weight_map.rbegin(); it != weight_map.rend(); ++it, offset += 10) {
    const auto found = std::lower_bound(index.shards.begin(), index.shards.end(), it->second);
    index.entries.push_back({it->first, static_cast<std::uint32_t>(found - index.shards.begin()), offset});
  }
  return index;
}

Errors errors_of(const std::map<std::string, std::string>& weight_map, std::vector<std::optional<ShardHeader>> shards) {
  auto result = catalog_of_index(index_of(weight_map), std::move(shards), kIndexFile);
  return result ? Errors() : std::move(result).error();
}

TEST(Catalog, OfOneFileIsSortedByName) {
  ShardHeader one = shard("m.safetensors", {"c", "a", "b"});
  one.header.metadata = {{"format", "pt"}};
  one.header.warnings.add(Error(Code::kUnknownDType, "w"));
  const CatalogResult result = catalog_of_file(std::move(one));
  std::vector<std::string> names;
  for (const CatalogTensor& tensor : result.catalog.tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("a", "b", "c"));
  ASSERT_EQ(result.catalog.files.size(), 1U);
  EXPECT_EQ(result.catalog.files[0].name, "m.safetensors");
  EXPECT_EQ(result.catalog.files[0].size_bytes, 112U);
  EXPECT_EQ(result.catalog.files[0].data_begin_bytes, 100U);
  EXPECT_EQ(result.catalog.files[0].tensors, 3U);
  EXPECT_THAT(result.catalog.files[0].metadata, ElementsAre(std::pair("format", "pt")));
  EXPECT_EQ(result.catalog.tensor_bytes(), 12U);
  ASSERT_EQ(result.warnings.size(), 1U);
  EXPECT_EQ(result.warnings.front().code, Code::kUnknownDType);
}

TEST(Catalog, FindFindsEveryNameAndNoOther) {
  const CatalogResult result = catalog_of_file(shard("m.safetensors", {"b", "a.b", "a", "c", ""}));
  for (const char* name : {"", "a", "a.b", "b", "c"}) {
    const CatalogTensor* found = result.catalog.find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->name, name);
  }
  EXPECT_EQ(result.catalog.find("a")->bytes, (ByteRange{108, 112}));
  for (const char* name : {"A", "aa", "a.", "d", " ", "a.b.c"}) EXPECT_EQ(result.catalog.find(name), nullptr) << name;
  EXPECT_EQ(Catalog().find("a"), nullptr);
}

TEST(Catalog, OfAnIndexKnowsWhichFileHoldsWhat) {
  const auto result =
      catalog_of_index(index_of({{"a", "2.safetensors"}, {"b", "1.safetensors"}, {"c", "2.safetensors"}}),
                       {shard("1.safetensors", {"b"}), shard("2.safetensors", {"c", "a"})}, kIndexFile);
  ASSERT_TRUE(result.has_value()) << result.error().front().text();
  const Catalog& catalog = result->catalog;
  EXPECT_EQ(catalog.files[catalog.find("a")->file].name, "2.safetensors");
  EXPECT_EQ(catalog.files[catalog.find("b")->file].name, "1.safetensors");
  EXPECT_EQ(catalog.find("a")->bytes, (ByteRange{104, 108}));
  EXPECT_EQ(catalog.tensor_bytes(), 12U);
  EXPECT_TRUE(result->warnings.empty());
}

TEST(Catalog, S5_Fault19_TensorThatNoShardHas) {
  const Errors errors = errors_of({{"a", "1.safetensors"}, {"gone", "1.safetensors"}, {"zz", "1.safetensors"}},
                                  {shard("1.safetensors", {"a"})});
  ASSERT_EQ(errors.size(), 2U) << "all are listed";
  for (const Error& error : errors) {
    EXPECT_EQ(error.code, Code::kIndexMissingTensor);
    EXPECT_EQ(error.rule, "S5");
    EXPECT_EQ(error.file, kIndexFile);
  }
  EXPECT_EQ(errors.list()[0].tensor, "gone");
  EXPECT_EQ(errors.list()[0].bytes->begin, 30U) << "where its entry stands in the index";
  EXPECT_EQ(errors.list()[1].tensor, "zz");
  EXPECT_EQ(errors.list()[1].bytes->begin, 20U);
}

TEST(Catalog, S5_Fault19_TensorInAnotherShardThanTheIndexSays) {
  const Errors errors = errors_of({{"a", "2.safetensors"}, {"b", "1.safetensors"}},
                                  {shard("1.safetensors", {"a"}), shard("2.safetensors", {"b"})});
  ASSERT_EQ(errors.size(), 2U) << "the shards are swapped";
  EXPECT_EQ(errors.front().code, Code::kIndexMissingTensor);
  EXPECT_EQ(errors.front().tensor, "a");
  EXPECT_THAT(errors.front().expected, HasSubstr("2.safetensors"));
  EXPECT_THAT(errors.front().found, HasSubstr("1.safetensors"));
}

TEST(Catalog, S5_TensorThatTheIndexDoesNotName) {
  const Errors errors = errors_of({{"m", "1.safetensors"}}, {shard("1.safetensors", {"a", "m", "z"})});
  ASSERT_EQ(errors.size(), 2U);
  for (const Error& error : errors) {
    EXPECT_EQ(error.code, Code::kIndexUnlistedTensor);
    EXPECT_EQ(error.rule, "S5");
    EXPECT_EQ(error.file, "dir/1.safetensors") << "as the user would find it";
  }
  EXPECT_EQ(errors.list()[0].tensor, "a");
  EXPECT_EQ(errors.list()[0].bytes, (ByteRange{100, 104}));
  EXPECT_EQ(errors.list()[1].tensor, "z");
  EXPECT_EQ(errors.list()[1].bytes, (ByteRange{108, 112}));
}

TEST(Catalog, R45_Fault20_TensorInTwoShards) {
  const Errors errors = errors_of(
      {{"a", "1.safetensors"}, {"b", "2.safetensors"}, {"c", "3.safetensors"}},
      {shard("1.safetensors", {"a"}), shard("2.safetensors", {"a", "b"}), shard("3.safetensors", {"c", "a"})});
  ASSERT_EQ(errors.size(), 1U) << "told once";
  const Error& error = errors.front();
  EXPECT_EQ(error.code, Code::kIndexDuplicateTensor);
  EXPECT_EQ(error.rule, "R45");
  EXPECT_EQ(error.tensor, "a");
  for (const char* name : {"1.safetensors", "2.safetensors", "3.safetensors"})
    EXPECT_THAT(error.found, HasSubstr(name));
}

TEST(Catalog, R45_Fault20_UnlistedDuplicateIsStillADuplicate) {
  const Errors errors = errors_of({{"a", "1.safetensors"}, {"b", "2.safetensors"}},
                                  {shard("1.safetensors", {"a", "x"}), shard("2.safetensors", {"b", "x"})});
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().code, Code::kIndexDuplicateTensor);
  EXPECT_EQ(errors.front().tensor, "x");
}

TEST(Catalog, S5_EveryKindOfProblemAtOnce) {
  const Errors errors = errors_of({{"a", "1.safetensors"}, {"gone", "2.safetensors"}, {"moved", "1.safetensors"}},
                                  {shard("1.safetensors", {"a", "extra"}), shard("2.safetensors", {"a", "moved"})});
  std::map<std::string, Code> found;
  for (const Error& error : errors) found[error.tensor.value_or("none")] = error.code;
  EXPECT_EQ(errors.size(), 4U);
  EXPECT_EQ(found, (std::map<std::string, Code>{{"a", Code::kIndexDuplicateTensor},
                                                {"extra", Code::kIndexUnlistedTensor},
                                                {"gone", Code::kIndexMissingTensor},
                                                {"moved", Code::kIndexMissingTensor}}));
}

TEST(Catalog, S5_ShardsThatWereReadAreComparedEvenIfOneWasNot) {
  const Errors errors = errors_of({{"a", "1.safetensors"}, {"b", "2.safetensors"}, {"gone", "1.safetensors"}},
                                  {shard("1.safetensors", {"a", "extra"}), std::nullopt});
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors.list()[0].tensor, "extra");
  EXPECT_EQ(errors.list()[1].tensor, "gone") << "not b: why its shard was not read is told elsewhere";
}

TEST(Catalog, ThereIsNoCatalogWithoutAllShards) {
  const auto result = catalog_of_index(index_of({{"a", "1.safetensors"}, {"b", "2.safetensors"}}),
                                       {shard("1.safetensors", {"a"}), std::nullopt}, kIndexFile);
  EXPECT_FALSE(result.has_value());
}

TEST(Catalog, Fault22_WrongTotalSizeIsAWarning) {
  Index index = index_of({{"a", "1.safetensors"}, {"b", "1.safetensors"}});
  index.total_size_bytes = 9;
  const auto wrong = catalog_of_index(index, {shard("1.safetensors", {"a", "b"})}, kIndexFile);
  ASSERT_TRUE(wrong.has_value());
  ASSERT_EQ(wrong->warnings.size(), 1U);
  EXPECT_EQ(wrong->warnings.front().code, Code::kIndexTotalSize);
  EXPECT_EQ(wrong->warnings.front().file, kIndexFile);
  index.total_size_bytes = 8;
  const auto right = catalog_of_index(index, {shard("1.safetensors", {"a", "b"})}, kIndexFile);
  ASSERT_TRUE(right.has_value());
  EXPECT_TRUE(right->warnings.empty());
}

TEST(Catalog, WarningsOfIndexAndShardsAreKept) {
  Index index = index_of({{"a", "1.safetensors"}});
  index.warnings.add(Error(Code::kIndexTotalSize, "from the index"));
  ShardHeader one = shard("1.safetensors", {"a"});
  one.header.warnings.add(Error(Code::kUnknownDType, "from the shard"));
  std::vector<std::optional<ShardHeader>> shards;
  shards.push_back(std::move(one));
  const auto result = catalog_of_index(std::move(index), std::move(shards), kIndexFile);
  ASSERT_TRUE(result.has_value());
  std::vector<std::string> messages;
  for (const Error& warning : result->warnings) messages.push_back(warning.message);
  EXPECT_THAT(messages, ::testing::UnorderedElementsAre("from the index", "from the shard"));
}

TEST(Catalog, R65_AnAdapterStandsBehindTheBaseWithKeysOfItsOwn) {
  const auto catalog_of = [](std::vector<std::string> names) {
    Header header;
    std::uint64_t begin = 0;
    for (std::string& name : names) {
      header.tensors.push_back({std::move(name), DType::kU8, "", Shape{1}, 0, {begin, begin + 1}});
      ++begin;
    }
    return catalog_of_file({"model.safetensors", begin, std::move(header)}).catalog;
  };
  Catalog catalog = catalog_of({"b", "a"});
  catalog.append(catalog_of({"z", "a"}));
  catalog.append(catalog_of({"a"}));
  EXPECT_EQ(catalog.checkpoints(), 3U);
  EXPECT_EQ(catalog.find("a")->file, 0U);
  EXPECT_EQ(catalog.find("a", 1)->file, 1U);
  EXPECT_EQ(catalog.find("a", 2)->file, 2U);
  EXPECT_EQ(catalog.find("z"), nullptr);
  EXPECT_EQ(catalog.find("b", 1), nullptr);
  EXPECT_EQ(catalog.find("z", 2), nullptr);
  EXPECT_EQ(catalog.tensors_of(1).size(), 2U);
  for (std::uint32_t file = 0; file < 3; ++file) EXPECT_EQ(catalog.files[file].checkpoint, file);
}

}  // namespace
}  // namespace lading::checkpoint
