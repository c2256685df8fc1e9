#include "base/error_json.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json_reader.h"

namespace lading {
namespace {

Result<JsonDocument, Errors> written(const Errors& errors) {
  JsonWriter json;
  json.begin_object();
  write_errors(json, "problems", errors);
  json.end_object();
  return JsonDocument::parse(JsonBuffer::copy_of(json.take()));
}

TEST(ErrorJson, EveryFieldIsThereUnescaped) {
  const auto document = written(Error(Code::kHeaderSize, "m")
                                    .in_file("f\n")
                                    .of_tensor("t\"")
                                    .at({18446744073709551614U, 18446744073709551615U})
                                    .on_rank(3)
                                    .by_rule("R45")
                                    .wanted("e")
                                    .got("g")
                                    .try_this("r"));
  ASSERT_TRUE(document.has_value());
  const JsonValue problems = *document->root().find("problems");
  ASSERT_EQ(problems.size(), 1U);
  const JsonValue error = (*problems.begin()).value;
  EXPECT_EQ(error.find("code")->text(), "header_size");
  EXPECT_EQ(error.find("message")->text(), "m");
  EXPECT_EQ(error.find("file")->text(), "f\n");
  EXPECT_EQ(error.find("tensor")->text(), "t\"");
  EXPECT_EQ(error.find("rank")->as_uint64(), 3U);
  EXPECT_EQ(error.find("rule")->text(), "R45");
  EXPECT_EQ(error.find("expected")->text(), "e");
  EXPECT_EQ(error.find("found")->text(), "g");
  EXPECT_EQ(error.find("remedy")->text(), "r");
  std::vector<std::uint64_t> bytes;
  const JsonValue range = *error.find("bytes");
  for (const JsonMember member : range) bytes.push_back(member.value.as_uint64().value());
  EXPECT_EQ(bytes, (std::vector<std::uint64_t>{18446744073709551614U, 18446744073709551615U}));
}

TEST(ErrorJson, AbsentFieldsAreLeftOut) {
  const auto document = written(Error(Code::kUsage, "m"));
  ASSERT_TRUE(document.has_value());
  const JsonValue error = (*document->root().find("problems")->begin()).value;
  EXPECT_EQ(error.size(), 2U) << "code and message";
}

TEST(ErrorJson, ATensorWithoutANameIsThere) {
  const auto document = written(Error(Code::kUsage, "m").of_tensor(""));
  ASSERT_TRUE(document.has_value());
  const auto tensor = (*document->root().find("problems")->begin()).value.find("tensor");
  ASSERT_TRUE(tensor.has_value());
  EXPECT_EQ(tensor->text(), "");
}

TEST(ErrorJson, NoErrorsAreAnEmptyList) {
  const auto document = written({});
  ASSERT_TRUE(document.has_value());
  ASSERT_TRUE(document->root().find("problems")->is_array());
  EXPECT_EQ(document->root().find("problems")->size(), 0U);
  EXPECT_FALSE(document->root().find("problems_not_listed").has_value());
}

TEST(ErrorJson, WhatIsNotListedIsCounted) {
  Errors errors;
  for (std::size_t i = 0; i < Errors::kMaxListed + 7; ++i) errors.add(Error(Code::kUsage, std::to_string(i)));
  const auto document = written(errors);
  ASSERT_TRUE(document.has_value());
  EXPECT_EQ(document->root().find("problems")->size(), Errors::kMaxListed);
  EXPECT_EQ(document->root().find("problems_not_listed")->as_uint64(), 7U);
}

}  // namespace
}  // namespace lading
