#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "api/answers.h"
#include "base/json_reader.h"
#include "lading/version.h"

namespace lading {
namespace {

using ::testing::ElementsAre;

Inspection sample() {
  Inspection inspection;
  inspection.path = "/dir/model.safetensors.index.json";
  inspection.index_path = inspection.path;
  inspection.shards.push_back({"1.safetensors", "/dir/1.safetensors", 500, 1, {{"k", "v"}}, HashState::kVerified});
  inspection.shards.push_back({"2.safetensors", "/dir/2.safetensors", 600, 2, {}, HashState::kUnknown});
  inspection.tensors.push_back({"a", DType::kF32, "F32", Shape{2, 3}, 1, {100, 124}});
  inspection.tensors.push_back({"b", DType::kBF16, "BF16", Shape{}, 0, {200, 202}});
  inspection.tensors.push_back({"c", std::nullopt, "X9", Shape{0}, 1, {124, 124}});
  inspection.tensor_bytes = 26;
  return inspection;
}

Result<JsonDocument, Errors> parse(const std::string& text) { return JsonDocument::parse(JsonBuffer::copy_of(text)); }

std::vector<std::string> keys_of(const JsonValue& object) {
  std::vector<std::string> keys;
  for (const JsonMember member : object) keys.emplace_back(member.key);
  return keys;
}

std::vector<std::uint64_t> numbers_of(const JsonValue& array) {
  std::vector<std::uint64_t> numbers;
  for (const JsonMember member : array) numbers.push_back(member.value.as_uint64().value());
  return numbers;
}

std::vector<JsonValue> members_of(const JsonValue& array) {
  std::vector<JsonValue> values;
  for (const JsonMember member : array) values.push_back(member.value);
  return values;
}

// docs/schema/inspect.md, member by member.
TEST(InspectAnswer, FollowsItsSchema) {
  const auto document = parse(answer_of(sample(), ListTensors::kYes));
  ASSERT_TRUE(document.has_value());
  const JsonValue root = document->root();
  EXPECT_THAT(keys_of(root), ElementsAre("schema", "lading", "kind", "ok", "exit_code", "path", "index", "tensor_count",
                                         "tensor_bytes", "shards", "dtypes", "tensors", "warnings", "problems"));
  EXPECT_EQ(root.find("schema")->text(), "lading.inspect/1");
  EXPECT_EQ(root.find("lading")->text(), version());
  EXPECT_EQ(root.find("ok")->kind(), JsonKind::kTrue);
  EXPECT_EQ(root.find("path")->text(), "/dir/model.safetensors.index.json");
  EXPECT_EQ(root.find("tensor_count")->as_uint64(), 3U);
  EXPECT_EQ(root.find("tensor_bytes")->as_uint64(), 26U);
  EXPECT_EQ(root.find("warnings")->size(), 0U);
  EXPECT_EQ(root.find("problems")->size(), 0U);
}

TEST(InspectAnswer, Shards) {
  const auto document = parse(answer_of(sample(), ListTensors::kNo));
  ASSERT_TRUE(document.has_value());
  const auto shards = members_of(*document->root().find("shards"));
  ASSERT_EQ(shards.size(), 2U);
  EXPECT_EQ(shards[0].find("name")->text(), "1.safetensors");
  EXPECT_EQ(shards[0].find("path")->text(), "/dir/1.safetensors");
  EXPECT_EQ(shards[0].find("size_bytes")->as_uint64(), 500U);
  EXPECT_EQ(shards[0].find("tensors")->as_uint64(), 1U);
  EXPECT_EQ(shards[0].find("hash")->text(), "verified");
  EXPECT_EQ(shards[0].find("metadata")->find("k")->text(), "v");
  EXPECT_EQ(shards[1].find("hash")->text(), "unknown");
  Inspection not_checked = sample();
  not_checked.shards[0].hash = HashState::kNotChecked;
  const auto again = parse(answer_of(not_checked, ListTensors::kNo));
  EXPECT_EQ(members_of(*again->root().find("shards"))[0].find("hash")->text(), "not_checked");
}

TEST(InspectAnswer, Tensors) {
  const auto document = parse(answer_of(sample(), ListTensors::kYes));
  ASSERT_TRUE(document.has_value());
  const auto tensors = members_of(*document->root().find("tensors"));
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors[0].find("name")->text(), "a");
  EXPECT_EQ(tensors[0].find("dtype")->text(), "F32");
  EXPECT_THAT(numbers_of(*tensors[0].find("shape")), ElementsAre(2, 3));
  EXPECT_EQ(tensors[0].find("shard")->text(), "2.safetensors");
  EXPECT_THAT(numbers_of(*tensors[0].find("bytes")), ElementsAre(100, 124));
  EXPECT_EQ(tensors[1].find("shape")->size(), 0U);
  EXPECT_EQ(tensors[2].find("dtype")->text(), "X9") << "a type that we do not know keeps its name";
}

TEST(InspectAnswer, Dtypes) {
  Inspection inspection = sample();
  inspection.tensors.push_back({"d", DType::kF32, "F32", Shape{1}, 1, {124, 128}});
  const auto document = parse(answer_of(inspection, ListTensors::kNo));
  ASSERT_TRUE(document.has_value());
  const auto dtypes = members_of(*document->root().find("dtypes"));
  ASSERT_EQ(dtypes.size(), 3U);
  EXPECT_EQ(dtypes[0].find("dtype")->text(), "BF16");
  EXPECT_EQ(dtypes[1].find("dtype")->text(), "F32");
  EXPECT_EQ(dtypes[1].find("tensors")->as_uint64(), 2U);
  EXPECT_EQ(dtypes[1].find("bytes")->as_uint64(), 28U);
  EXPECT_EQ(dtypes[2].find("dtype")->text(), "X9");
}

TEST(InspectAnswer, AbsentWithoutAnIndexOrAList) {
  Inspection inspection = sample();
  inspection.index_path.reset();
  const auto document = parse(answer_of(inspection, ListTensors::kNo));
  ASSERT_TRUE(document.has_value());
  EXPECT_FALSE(document->root().find("index").has_value());
  EXPECT_FALSE(document->root().find("tensors").has_value());
}

TEST(InspectAnswer, WarningsAreWarningsNotProblems) {
  Inspection inspection = sample();
  inspection.warnings.add(Error(Code::kStrayShard, "stray").in_file("/dir/x.safetensors"));
  const auto document = parse(answer_of(inspection, ListTensors::kNo));
  ASSERT_TRUE(document.has_value());
  ASSERT_EQ(document->root().find("warnings")->size(), 1U);
  EXPECT_EQ((*document->root().find("warnings")->begin()).value.find("code")->text(), "stray_shard");
  EXPECT_EQ(document->root().find("problems")->size(), 0U);
}

TEST(InspectAnswer, NamesThatAreNoUtf8StillGiveJson) {
  Inspection inspection = sample();
  inspection.path = "/dir/\xFF";
  inspection.shards[0].name = "\x80.safetensors";
  EXPECT_TRUE(parse(answer_of(inspection, ListTensors::kYes)).has_value());
}

TEST(InspectAnswer, RefusalHasOnlyProblems) {
  Errors problems;
  for (std::size_t i = 0; i < Errors::kMaxListed + 2; ++i) problems.add(Error(Code::kHeaderHole, "hole"));
  const auto document = parse(answer_of({"inspect", Stage::kCheckpoint, false, Exit::kCheckpoint}, problems));
  ASSERT_TRUE(document.has_value());
  EXPECT_THAT(keys_of(document->root()), ElementsAre("schema", "lading", "kind", "ok", "exit_code", "stage", "begun",
                                                     "warnings", "problems", "problems_not_listed"));
  EXPECT_EQ(document->root().find("ok")->kind(), JsonKind::kFalse);
  EXPECT_EQ(document->root().find("problems")->size(), Errors::kMaxListed);
  EXPECT_EQ(document->root().find("problems_not_listed")->as_uint64(), 2U);
}

}  // namespace
}  // namespace lading
