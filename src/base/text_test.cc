#include "base/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <initializer_list>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace lading {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string encode(char32_t c) {
  const auto byte = [](char32_t value) { return static_cast<char>(static_cast<unsigned char>(value)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 + c / 64), byte(0x80 + c % 64)};
  if (c < 0x10000) return {byte(0xE0 + c / 4096), byte(0x80 + c / 64 % 64), byte(0x80 + c % 64)};
  return {byte(0xF0 + c / 262144), byte(0x80 + c / 4096 % 64), byte(0x80 + c / 64 % 64), byte(0x80 + c % 64)};
}

// The oracle does not decode: a text is valid if it is made of encodings of characters that exist.
const std::set<std::string, std::less<>>& all_characters() {
  static const auto all = [] {
    std::set<std::string, std::less<>> made;
    for (char32_t c = 0; c <= 0x10FFFF; ++c) {
      if (c < 0xD800 || c > 0xDFFF) made.insert(encode(c));
    }
    return made;
  }();
  return all;
}

std::optional<std::size_t> brute_force_invalid(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    std::size_t length = 1;
    while (length <= 4 && (i + length > text.size() || !all_characters().contains(text.substr(i, length)))) ++length;
    if (length > 4) return i;
    i += length;
  }
  return std::nullopt;
}

std::vector<std::string> all_one_and_two_byte_strings() {
  std::vector<std::string> strings;
  for (int a = 0; a < 256; ++a) {
    strings.push_back({static_cast<char>(a)});
    for (int b = 0; b < 256; ++b) strings.push_back({static_cast<char>(a), static_cast<char>(b)});
  }
  return strings;
}

TEST(FindInvalidUtf8, EmptyIsValid) { EXPECT_EQ(find_invalid_utf8(""), std::nullopt); }

TEST(FindInvalidUtf8, AgreesWithBruteForceOnAllOneAndTwoByteStrings) {
  for (const std::string& text : all_one_and_two_byte_strings()) {
    ASSERT_EQ(find_invalid_utf8(text), brute_force_invalid(text)) << ::testing::PrintToString(text);
  }
}

TEST(FindInvalidUtf8, AgreesWithBruteForceOnLongerStringsAtEveryEdge) {
  // Each byte where a range of UTF-8's table begins or ends, and its neighbours.
  const std::array edges = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0,
                            0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF8, 0xFF};
  std::size_t valid = 0;
  for (const int a : edges) {
    for (const int b : edges) {
      for (const int c : edges) {
        const std::string three = {static_cast<char>(a), static_cast<char>(b), static_cast<char>(c)};
        ASSERT_EQ(find_invalid_utf8(three), brute_force_invalid(three)) << ::testing::PrintToString(three);
        for (const int d : edges) {
          const std::string four = three + static_cast<char>(d);
          const auto found = find_invalid_utf8(four);
          ASSERT_EQ(found, brute_force_invalid(four)) << ::testing::PrintToString(four);
          valid += found ? 0U : 1U;
        }
      }
    }
  }
  EXPECT_GT(valid, 100U);
}

TEST(FindInvalidUtf8, Fault3_SurrogatesOverlongFormsAndBeyondUnicode) {
  EXPECT_EQ(find_invalid_utf8("ab\xED\xA0\x80"), 2U) << "U+D800";
  EXPECT_EQ(find_invalid_utf8("\xED\xBF\xBF"), 0U) << "U+DFFF";
  EXPECT_EQ(find_invalid_utf8("\xED\x9F\xBF\xEE\x80\x80"), std::nullopt) << "U+D7FF U+E000";
  EXPECT_EQ(find_invalid_utf8("\xC0\x80"), 0U) << "overlong NUL";
  EXPECT_EQ(find_invalid_utf8("\xE0\x9F\xBF"), 0U) << "overlong U+07FF";
  EXPECT_EQ(find_invalid_utf8("\xF0\x8F\xBF\xBF"), 0U) << "overlong U+FFFF";
  EXPECT_EQ(find_invalid_utf8("\xF4\x8F\xBF\xBF"), std::nullopt) << "U+10FFFF";
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0U) << "U+110000";
  EXPECT_EQ(find_invalid_utf8("abc\xE2\x82"), 3U) << "cut short";
}

TEST(Escape, LeavesReadableTextAlone) {
  const std::string text = "model.layers.0.weight 'x' <b> \u00e9 \u65e5\u672c \U0001F600 ~";
  EXPECT_EQ(escape(text), text);
}

TEST(Escape, Fault16_ControlAndAnsi) {
  EXPECT_EQ(escape("a\nb\rc\td"), "a\\nb\\rc\\td");
  EXPECT_EQ(escape(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(escape("\x1b[31m"), "\\x1b[31m");
  EXPECT_EQ(escape("\x7f\b\a"), "\\x7f\\x08\\x07");
  const std::string c1 = escape(encode(0x9B) + "2J");  // CSI in one character
  EXPECT_THAT(c1, Not(HasSubstr(encode(0x9B))));
  EXPECT_EQ(c1.front(), '\\');
}

TEST(Escape, QuotesAndBackslashesAreMarked) {
  EXPECT_EQ(escape(R"(a\b)"), R"(a\\b)");
  EXPECT_EQ(escape(R"(a"b)"), R"(a\"b)");
  EXPECT_NE(escape("\n"), escape("\\n"));
}

TEST(Escape, BidirectionalCharacters) {
  EXPECT_EQ(escape("\u202e"), "\\u202e");
  for (const char32_t c : std::initializer_list<char32_t>{0x061C, 0x200E, 0x200F, 0x202A, 0x202B, 0x202C, 0x202D,
                                                          0x202E, 0x2066, 0x2067, 0x2068, 0x2069}) {
    EXPECT_THAT(escape(encode(c)), Not(HasSubstr(encode(c)))) << std::hex << static_cast<unsigned>(c);
  }
}

// What Unicode calls Default_Ignorable_Code_Point: characters that show nothing.
TEST(Escape, InvisibleCharacters) {
  for (const char32_t c :
       std::initializer_list<char32_t>{0x00AD, 0x034F, 0x115F,  0x1160,  0x17B4,  0x17B5,  0x180B,  0x180E,  0x200B,
                                       0x200C, 0x200D, 0x2060,  0x2061,  0x206F,  0x3164,  0xFE00,  0xFE0F,  0xFEFF,
                                       0xFFA0, 0xFFF0, 0x1BCA0, 0x1D173, 0xE0001, 0xE0020, 0xE007F, 0xE0100, 0xE01EF}) {
    EXPECT_THAT(escape(encode(c)), Not(HasSubstr(encode(c)))) << std::hex << static_cast<unsigned>(c);
  }
}

TEST(Escape, InvalidBytesComeOutAsHex) {
  EXPECT_EQ(escape("a\xFF\x80z"), "a\\xff\\x80z");
  EXPECT_EQ(escape("\xE2\x82"), "\\xe2\\x82");
  EXPECT_EQ(escape("\xED\xA0\x80"), "\\xed\\xa0\\x80");
}

// Reversible means that no two names look the same.
TEST(Escape, DifferentTextsStayDifferent) {
  std::map<std::string, std::string> original_of;
  std::vector<std::string> texts = all_one_and_two_byte_strings();
  for (const char* text : {R"(\n)", R"(\x1b)", R"(\u202e)", R"(\\)", R"(\")", R"(\x85)", "\u202e", "\xE2\x80"}) {
    texts.emplace_back(text);
  }
  int collisions = 0;
  for (const std::string& text : texts) {
    const auto [place, is_new] = original_of.emplace(escape(text), text);
    if (is_new || place->second == text) continue;
    if (++collisions == 1) {
      ADD_FAILURE() << ::testing::PrintToString(text) << " and " << ::testing::PrintToString(place->second)
                    << " both come out as " << place->first;
    }
  }
  EXPECT_EQ(collisions, 0);
}

TEST(Escape, OutputIsPrintableUtf8WhateverComesIn) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (std::uint64_t n = random() % 20; n > 0; --n) text += static_cast<char>(random());
    const std::string escaped = escape(text);
    ASSERT_EQ(find_invalid_utf8(escaped), std::nullopt) << escaped;
    for (const char c : escaped) ASSERT_FALSE(static_cast<unsigned char>(c) < 0x20 || c == 0x7F) << escaped;
  }
}

TEST(Shorten, CutsInTheMiddleAndEscapes) {
  EXPECT_EQ(shorten("a\n"), "a\\n");
  const std::string real(200, 'n');
  EXPECT_EQ(shorten(real), real);
  const std::string cut = shorten("begin\x1b" + std::string(1'000'000, 'm') + "end");
  EXPECT_TRUE(cut.starts_with("begin\\x1bmmm"));
  EXPECT_TRUE(cut.ends_with("mmmend"));
  EXPECT_THAT(cut, HasSubstr("\u2026"));
  EXPECT_LT(cut.size(), 300U);
}

TEST(Shorten, TextThatIsAllContinuationBytesStillEnds) {
  EXPECT_EQ(find_invalid_utf8(shorten(std::string(5000, '\x80'))), std::nullopt);
}

TEST(Quote, ShortTextIsShownWhole) {
  EXPECT_EQ(quote(""), "\"\"");
  EXPECT_EQ(quote("a\"b\n"), "\"a\\\"b\\n\"");
  const std::string real(120, 'n');
  EXPECT_EQ(quote(real), "\"" + real + "\"");
}

TEST(Quote, LongTextKeepsBothEndsAndSaysHowLongItIs) {
  const std::string quoted = quote("begin" + std::string(1'000'000, 'm') + "end");
  EXPECT_TRUE(quoted.starts_with("\"begin"));
  EXPECT_THAT(quoted, HasSubstr("end\""));
  EXPECT_THAT(quoted, HasSubstr("1000008 bytes"));
  EXPECT_LT(quoted.size(), 300U);
}

TEST(Quote, CutTextIsStillUtf8) {
  for (const std::string character : {"\u00e9", "\u65e5", "\U0001F600"}) {
    for (std::size_t shift = 0; shift < 8; ++shift) {
      std::string text(shift, 'a');
      while (text.size() < 320) text += character;
      text += std::string(shift % 3, 'z');
      EXPECT_EQ(find_invalid_utf8(quote(text)), std::nullopt);
    }
  }
}

// Half a character would be told as "\xe6": bytes that are not wrong in the name.
TEST(Quote, DoesNotCutThroughACharacter) {
  for (const std::string character : {"\u00e9", "\u65e5", "\U0001F600"}) {
    for (std::size_t shift = 0; shift < 4; ++shift) {
      std::string text(shift, 'a');
      while (text.size() < 320) text += character;
      EXPECT_THAT(quote(text), Not(HasSubstr("\\x"))) << "shifted by " << shift;
    }
  }
}

TEST(HumanBytes, Edges) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(1500), "1.50 kB");
  EXPECT_EQ(human_bytes(999'994), "999.99 kB");
  EXPECT_EQ(human_bytes(999'995), "1.00 MB");
  EXPECT_EQ(human_bytes(999'999), "1.00 MB");
  EXPECT_EQ(human_bytes(1'000'000), "1.00 MB");
  EXPECT_EQ(human_bytes(999'994'999), "999.99 MB");
  EXPECT_EQ(human_bytes(999'995'000), "1.00 GB");
  EXPECT_EQ(human_bytes(1'500'000'000), "1.50 GB");
  EXPECT_EQ(human_bytes(2'000'000'000'000), "2.00 TB");
  EXPECT_EQ(human_bytes(3'000'000'000'000'000), "3.00 PB");
  EXPECT_EQ(human_bytes(~std::uint64_t{0}), "18.45 EB");
}

TEST(WithCommas, Edges) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(999'999), "999,999");
  EXPECT_EQ(with_commas(1'234'567), "1,234,567");
  EXPECT_EQ(with_commas(~std::uint64_t{0}), "18,446,744,073,709,551,615");
}

}  // namespace
}  // namespace lading
