#include "base/json_writer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "base/text.h"

namespace lading {
namespace {

Result<JsonDocument, Errors> parse(const std::string& text) { return JsonDocument::parse(JsonBuffer::copy_of(text)); }

TEST(JsonWriter, WritesTheSameBytesEveryTime) {
  const auto write = [] {
    JsonWriter json;
    json.begin_object();
    json.key("a").begin_array().number(1).number(2).end_array();
    json.key("b").begin_object().end_object();
    json.key("c").begin_array().end_array();
    json.key("d").boolean(true).key("e").boolean(false).key("f").null().key("g").string("x");
    json.end_object();
    return json.take();
  };
  EXPECT_EQ(write(),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {},\n  \"c\": [],\n  \"d\": true,\n  \"e\": false,\n"
            "  \"f\": null,\n  \"g\": \"x\"\n}\n");
  EXPECT_EQ(write(), write());
}

TEST(JsonWriter, NumbersAreExact) {
  JsonWriter json;
  json.begin_array().number(0).number(~std::uint64_t{0}).number((std::uint64_t{1} << 53) + 1).end_array();
  const auto document = parse(json.take());
  ASSERT_TRUE(document.has_value());
  std::vector<std::uint64_t> numbers;
  for (const JsonMember member : document->root()) numbers.push_back(member.value.as_uint64().value());
  EXPECT_EQ(numbers, (std::vector<std::uint64_t>{0, ~std::uint64_t{0}, (std::uint64_t{1} << 53) + 1}));
}

TEST(JsonWriter, FractionsReadBackAsTheSameBits) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 10'000; ++i) {
    const auto value = std::bit_cast<double>(random());
    JsonWriter json;
    const std::string text = json.begin_array().number(value).end_array().take();
    const auto document = parse(text);
    ASSERT_TRUE(document.has_value()) << text;
    const JsonValue written = (*document->root().begin()).value;
    if (!std::isfinite(value)) {
      EXPECT_TRUE(written.is_string()) << text;
      continue;
    }
    EXPECT_EQ(std::bit_cast<std::uint64_t>(std::strtod(std::string(written.text()).c_str(), nullptr)),
              std::bit_cast<std::uint64_t>(value))
        << text;
  }
}

TEST(JsonWriter, FractionsAreShortAndInfinitiesAreStrings) {
  const double infinity = std::numeric_limits<double>::infinity();
  JsonWriter json;
  json.begin_array(JsonWriter::Lines::kOne).number(0.1).number(2.0).number(-0.0).number(infinity).number(-infinity);
  json.number(std::numeric_limits<double>::quiet_NaN()).number(7).end_array();
  EXPECT_EQ(json.take(), "[0.1, 2, -0, \"inf\", \"-inf\", \"nan\", 7]\n");
}

TEST(JsonWriter, AContainerOnOneLineHasItsChildrenThere) {
  JsonWriter json;
  json.begin_object();
  json.key("a").begin_object(JsonWriter::Lines::kOne).key("b").begin_array().number(1).number(2).end_array();
  json.key("c").begin_object().key("d").null().end_object().end_object();
  json.key("e").begin_array(JsonWriter::Lines::kOne).end_array();
  json.key("f").begin_array().number(3).end_array();
  json.end_object();
  EXPECT_EQ(json.take(),
            "{\n  \"a\": {\"b\": [1, 2], \"c\": {\"d\": null}},\n  \"e\": [],\n  \"f\": [\n    3\n  ]\n}\n");
}

TEST(JsonWriter, StringsOfEveryAsciiCharacterRoundTrip) {
  std::string all;
  for (int c = 0; c < 128; ++c) all += static_cast<char>(c);
  JsonWriter json;
  json.begin_object().key(all).string(all).end_object();
  const std::string text = json.take();
  for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= 0x20 && c != 0x7F)) << static_cast<int>(c);
  const auto document = parse(text);
  ASSERT_TRUE(document.has_value());
  ASSERT_TRUE(document->root().find(all).has_value());
  EXPECT_EQ(document->root().find(all)->text(), all);
}

std::string random_valid_text(std::mt19937_64& random) {
  static const std::vector<std::string> pieces = {
      "a",      "\"",         "\\", "/",    "\n",   "\u00e9", "\u202e", "\u65e5", "\uFFFF",
      "\uFFFD", "\U0001F600", "{",  "\x7f", "\x1b", "u0041",  "\\u",    "]",      std::string(1, '\0')};
  std::string text;
  for (std::uint64_t n = random() % 12; n > 0; --n) text += pieces[random() % pieces.size()];
  return text;
}

TEST(JsonWriter, RandomTextsRoundTripThroughTheReader) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::pair<std::string, std::string>> members;
    JsonWriter json;
    json.begin_object();
    for (int i = 0; i < 10; ++i) {
      // Numbered, because two equal keys are no valid document.
      members.emplace_back(std::to_string(i) + random_valid_text(random), random_valid_text(random));
      json.key(members.back().first).string(members.back().second);
    }
    const std::string text = json.end_object().take();
    const auto document = parse(text);
    ASSERT_TRUE(document.has_value()) << text << document.error().front().text();
    std::vector<std::pair<std::string, std::string>> read;
    for (const JsonMember member : document->root()) read.emplace_back(member.key, member.value.text());
    ASSERT_EQ(read, members) << text;
  }
}

TEST(JsonWriter, InvalidBytesBecomeReplacementCharacters) {
  JsonWriter json;
  json.begin_array().string("a\xFFz").string("\xE2\x82").string("\xED\xA0\x80").end_array();
  const auto document = parse(json.take());
  ASSERT_TRUE(document.has_value());
  std::vector<std::string> texts;
  for (const JsonMember member : document->root()) texts.emplace_back(member.value.text());
  EXPECT_EQ(texts[0], "a\uFFFDz");
  EXPECT_EQ(texts[1], "\uFFFD\uFFFD");
  EXPECT_EQ(texts[2], "\uFFFD\uFFFD\uFFFD");
}

TEST(JsonWriter, RandomBytesStillGiveValidJson) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (std::uint64_t n = random() % 30; n > 0; --n) bytes += static_cast<char>(random());
    JsonWriter json;
    json.begin_array().string(bytes).end_array();
    const auto document = parse(json.take());
    ASSERT_TRUE(document.has_value()) << ::testing::PrintToString(bytes);
    if (!find_invalid_utf8(bytes)) {
      ASSERT_EQ((*document->root().begin()).value.text(), bytes);
    }
  }
}

TEST(JsonWriterDeathTest, UnbalancedCallsAreOurBug) {
  EXPECT_DEATH(JsonWriter().end_object(), "internal check failed");
  EXPECT_DEATH(static_cast<void>(JsonWriter().begin_array().take()), "internal check failed");
}

}  // namespace
}  // namespace lading
