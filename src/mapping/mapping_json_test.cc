#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <sstream>

#include <fmt/format.h>

#include "mapping/resolve_for_tests.h"

namespace lading::mapping {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Result<Mapping, Errors> parse(std::string_view text) { return parse_mapping(json(text)); }

std::string problems_of(std::string_view rule) {
  const auto mapping = parse(fmt::format(R"({{"schema": "lading.mapping/1", "rules": [{}]}})", rule));
  return mapping ? "none" : all_text(mapping.error());
}

std::string problems_of_expression(std::string_view expression) {
  return problems_of(fmt::format(R"({{"id": "x", "kind": "build", "to": "t", "expression": {}}})", expression));
}

TEST(MappingJson, RoundTrip) {
  constexpr std::string_view kText = R"json({"schema": "lading.mapping/1", "rules": [
    {"id": "a", "kind": "rename", "from": "x", "to": "y"},
    {"id": "b", "kind": "rename_pattern", "from": "model\\.(.*)", "to": "\\1", "optional": true},
    {"id": "c", "kind": "ignore", "from": ".*\\.inv_freq"},
    {"id": "d", "kind": "build", "to": "layers.{l}.{{odd}}", "expression":
      {"concat": {"dim": 1, "parts": [
        {"stack": {"dim": 0, "over": "e", "first": 2, "count": 4, "of": "layers.{l}.experts.{e}"}},
        {"stack": {"dim": 0, "parts": ["p", "q"]}},
        {"slice": {"dim": 0, "begin": 1, "end": 3, "of": "p"}},
        {"permute": {"order": [1, 0], "of": "p"}},
        {"rearrange": {"dim": 0, "factors": [2, 3], "order": [1, 0], "of": "p"}},
        {"reshape": {"shape": [2, 3], "of": "p"}},
        {"pad": {"dim": 0, "end": 9, "fill": -0.5, "of": "p"}},
        {"pad": {"dim": 0, "end": 9, "fill": "-inf", "of": "p"}},
        {"chunk": {"dim": 0, "index": 1, "count": 3, "of": "p"}},
        {"transpose": {"dims": [0, 1], "of": "p"}},
        {"interleave": {"dim": 0, "inverse": true, "of": "p"}},
        {"rope": {"heads": 8, "dim": 1, "of": "p"}}]}}},
    {"id": "e", "kind": "ignore_key", "from": "w.*"}]})json";
  const auto mapping = parse(kText);
  ASSERT_TRUE(mapping) << all_text(mapping.error());
  ASSERT_EQ(mapping->rules.size(), 5U);
  const std::string written = mapping_json(*mapping);
  const auto again = parse(written);
  ASSERT_TRUE(again) << all_text(again.error());
  EXPECT_EQ(mapping_json(*again), written);
  EXPECT_EQ(*again->rules[3].expression, *mapping->rules[3].expression);
  for (std::size_t r = 0; r < 5; ++r) {
    EXPECT_EQ(again->rules[r].id, mapping->rules[r].id);
    EXPECT_EQ(again->rules[r].kind, mapping->rules[r].kind);
    EXPECT_EQ(again->rules[r].from, mapping->rules[r].from);
    EXPECT_EQ(again->rules[r].to, mapping->rules[r].to);
    EXPECT_EQ(again->rules[r].optional, mapping->rules[r].optional);
  }
  EXPECT_EQ(mapping->rules[3].expression->parts[7].fill, -std::numeric_limits<double>::infinity());
}

TEST(MappingJson, ProblemsSayWhere) {
  EXPECT_THAT(problems_of(R"({"id": "x", "kind": "ignore", "from": "("})"), HasSubstr("$.rules[0].from"));
  EXPECT_THAT(problems_of(R"({"id": "x", "kind": "rename_pattern", "from": "(a).", "to": "\\2"})"),
              HasSubstr("$.rules[0].to"));
  EXPECT_THAT(problems_of(R"({"id": "x", "kind": "ignore_key", "from": "a", "to": "b"})"), HasSubstr("$.rules[0].to"));
  EXPECT_THAT(problems_of(R"({"id": "", "kind": "ignore", "from": "a"})"), HasSubstr("$.rules[0].id"));
  EXPECT_THAT(problems_of(R"({"id": "x", "kind": "ignore", "from": "a", "to": "b"})"), HasSubstr("$.rules[0].to"));
  EXPECT_THAT(problems_of(R"({"id": "x", "kind": "guess", "from": "a", "to": "b"})"), HasSubstr("$.rules[0].kind"));
  EXPECT_THAT(problems_of(R"({"id": "x", "kind": "rename", "from": "a"})"), HasSubstr("$.rules[0].to"));
  EXPECT_THAT(problems_of(R"({"id": "x", "kind": "build", "to": "a.{", "expression": "b"})"),
              HasSubstr("$.rules[0].to"));
  EXPECT_THAT(problems_of(R"({"id": "x", "kind": "build", "to": "a", "expression": "b.{i}"})"),
              HasSubstr("$.rules[0].expression"));
  EXPECT_THAT(problems_of(R"({"id": "x", "kind": "ignore", "from": "a"}, {"id": "x", "kind": "ignore", "from": "b"})"),
              HasSubstr("$.rules[1].id"));
}

TEST(MappingJson, ExpressionsAreReadStrictly) {
  for (const char* text :
       {"1", "{}", R"({"slice": {"dim": 0, "begin": 0, "end": 1, "of": "a"}, "pad": {}})",
        R"({"concat": {"dim": 0, "parts": []}})", R"({"concat": {"dim": -1, "parts": ["a"]}})",
        R"({"stack": {"dim": 0, "parts": ["a"], "count": 1}})",
        R"({"stack": {"dim": 0, "over": "e", "parts": ["a.{e}"]}})",
        R"({"stack": {"dim": 0, "over": "e", "count": 0, "of": "a.{e}"}})",
        R"({"chunk": {"dim": 0, "index": 3, "count": 3, "of": "a"}})", R"({"transpose": {"dims": [0], "of": "a"}})",
        R"({"transpose": {"dims": [0, 1], "check_dims": true, "of": "a"}})", R"({"rope": {"heads": 0, "of": "a"}})",
        R"({"pad": {"dim": 0, "end": 4, "fill": "much", "of": "a"}})", R"({"permute": {"order": [0, "1"], "of": "a"}})",
        R"({"slice": {"dim": 0, "begin": 0, "of": "a"}})", R"({"rotate": {"of": "a"}})", R"("")"}) {
    EXPECT_THAT(problems_of_expression(text), HasSubstr("$.rules[0].expression")) << text;
  }
}

TEST(MappingJson, WhatIsNoMovementIsRefusedByName) {
  EXPECT_THAT(problems_of_expression(R"({"quantize": {"of": "a"}})"),
              AllOf(HasSubstr("\"quantize\""), HasSubstr("changes values"), HasSubstr("R48"), HasSubstr("scales")));
  EXPECT_THAT(problems_of_expression(R"({"stack": {"dim": 0, "parts": [{"subtract_one": {"of": "a"}}]}})"),
              AllOf(HasSubstr("\"subtract_one\""), HasSubstr("parts[0]")));
  EXPECT_THAT(problems_of_expression(R"({"cast": {"of": "a"}})"), HasSubstr("policy"));
}

TEST(MappingJson, DocumentedExamplesAreRead) {
  std::string path = __FILE__;
  path = path.substr(0, path.rfind("src/mapping/")) + "docs/schema/mapping.md";
  std::ifstream file(path);
  std::stringstream stream;
  stream << file.rdbuf();
  const std::string text = stream.str();
  int examples = 0;
  constexpr std::string_view kFence = "```json\n";
  for (std::size_t at = text.find(kFence); at != std::string::npos; at = text.find(kFence, at + 1)) {
    const std::size_t begin = at + kFence.size();
    const std::string example = text.substr(begin, text.find("```", begin) - begin);
    ++examples;
    if (example.find("\"schema\"") != std::string::npos) {
      const auto mapping = parse(example);
      EXPECT_TRUE(mapping) << example << all_text(mapping.error());
    } else {
      expression_of(example);
    }
  }
  EXPECT_GE(examples, 4) << path;
}

}  // namespace
}  // namespace lading::mapping
