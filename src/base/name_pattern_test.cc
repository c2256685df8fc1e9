#include "base/name_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

namespace lading {
namespace {

using ::testing::HasSubstr;

bool matches(const std::string& pattern, std::string_view name) { return NamePattern(pattern).matches(name); }

/// By trying everything, for short texts.
bool slow_matches(std::string_view pattern, std::string_view name) {
  std::vector<bool> reach(name.size() + 1, false);
  reach[0] = true;
  for (const char c : pattern) {
    std::vector<bool> next(name.size() + 1, false);
    for (std::size_t i = 0; i <= name.size(); ++i) {
      if (c == '*') {
        next[i] = reach[i] || (i > 0 && next[i - 1]);
      } else {
        next[i] = i > 0 && reach[i - 1] && name[i - 1] == c;
      }
    }
    reach = next;
  }
  return reach[name.size()];
}

TEST(Matches, StarStandsForAnyCharacters) {
  EXPECT_TRUE(matches("*.weight", "model.layers.0.weight"));
  EXPECT_TRUE(matches("model.*.q_proj.*", "model.layers.10.q_proj.bias"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("a**b", "ab"));
  EXPECT_TRUE(matches("", ""));
  EXPECT_FALSE(matches("", "a"));
  EXPECT_FALSE(matches("ab*ba", "aba"));
  EXPECT_FALSE(matches("*.weight", "weight"));
  EXPECT_FALSE(matches("a.b", "a_b"));
  EXPECT_FALSE(matches("layers.*", "model.layers.0"));
}

TEST(Matches, AgreesWithTryingEverything) {
  std::mt19937 random(3);
  const auto text = [&](std::string_view alphabet, std::size_t most) {
    std::string made(std::uniform_int_distribution<std::size_t>(0, most)(random), ' ');
    for (char& c : made) c = alphabet[std::uniform_int_distribution<std::size_t>(0, alphabet.size() - 1)(random)];
    return made;
  };
  int matched = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string pattern = text("ab*", 7);
    const std::string name = text("ab", 9);
    ASSERT_EQ(matches(pattern, name), slow_matches(pattern, name)) << pattern << " " << name;
    matched += matches(pattern, name) ? 1 : 0;
  }
  EXPECT_GT(matched, 1000);
}

TEST(Matches, TakesLinearTime) {
  // One find by brute force would need 10^11 steps here.
  const std::string name(1'000'000, 'a');
  std::string pattern = "*" + std::string(300'000, 'a') + "b*";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(matches(pattern, name));
  pattern.clear();
  for (int i = 0; i < 100'000; ++i) pattern += "*a";
  EXPECT_FALSE(matches(pattern + "*b", name));
  EXPECT_TRUE(matches(pattern, name));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(NamePattern, AnExactNameMatchesItselfOnly) {
  for (const char* const name : {"w*", "*", "a?", "[a]", "{x}", "a\\b", "\u00e9\u0301", "a.*.b", " "}) {
    EXPECT_TRUE(NamePattern::exact(name).matches(name)) << name;
    EXPECT_FALSE(NamePattern::exact(name).matches("wa")) << name;
    EXPECT_FALSE(NamePattern::exact(name).matches(std::string(name) + "x")) << name;
    EXPECT_TRUE(NamePattern::exact(name).is_one_name());
  }
  EXPECT_FALSE(NamePattern("w*").is_one_name());
  EXPECT_FALSE(NamePattern("w*") == NamePattern::exact("w*"));
}

struct Reading {
  NamePattern pattern;
  Errors errors;
};

template <class Read>
Reading read_json(const std::string& text, const Read& read) {
  const auto document = JsonDocument::parse(JsonBuffer::copy_of(text));
  LADING_CHECK(document.has_value());
  Reading reading;
  read(document->root(), reading);
  return reading;
}

Reading read_element(const std::string& text) {
  return read_json(text, [](const JsonValue& value, Reading& reading) {
    reading.pattern = read_name_pattern(value, "$", reading.errors);
  });
}

Reading read_fields(const std::string& text) {
  return read_json(text, [](const JsonValue& value, Reading& reading) {
    JsonFields fields(value, "$", reading.errors);
    read_name_fields(fields, reading.pattern);
    fields.finish();
  });
}

TEST(NamePattern, BothFormsAreReadAndWritten) {
  EXPECT_EQ(read_element(R"("w*")").pattern, NamePattern("w*"));
  EXPECT_EQ(read_element(R"({"name": "w*"})").pattern, NamePattern::exact("w*"));
  EXPECT_EQ(read_fields(R"({"pattern": "w*"})").pattern, NamePattern("w*"));
  EXPECT_EQ(read_fields(R"({"name": "w*"})").pattern, NamePattern::exact("w*"));
  for (const NamePattern& pattern : {NamePattern("w*"), NamePattern::exact("w*")}) {
    JsonWriter element;
    write_name_pattern(element, pattern);
    EXPECT_EQ(read_element(element.take()).pattern, pattern);
    JsonWriter fields;
    fields.begin_object();
    write_name_fields(fields, pattern);
    EXPECT_EQ(read_fields(fields.end_object().take()).pattern, pattern);
  }
}

TEST(NamePattern, WhatIsNeitherFormIsRefused) {
  for (const char* const text :
       {"1", "[]", "null", R"({"name": 1})", R"({"pattern": "a"})", R"({"name": "a", "x": 1})"})
    EXPECT_FALSE(read_element(text).errors.empty()) << text;
  for (const char* const text : {"{}", R"({"name": 1})", R"({"pattern": []})", R"({"name": "a", "pattern": "a"})"})
    EXPECT_EQ(read_fields(text).errors.size(), 1U) << text;
  EXPECT_THAT(read_fields("{}").errors.front().message, HasSubstr("$.pattern: the field is missing"));
}

}  // namespace
}  // namespace lading
