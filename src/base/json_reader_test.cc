#include "base/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <tuple>

namespace lading {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;

Result<JsonDocument, Errors> parse(std::string_view text) { return JsonDocument::parse(JsonBuffer::copy_of(text)); }

Errors errors_of(std::string_view text) {
  auto result = parse(text);
  return result ? Errors() : std::move(result).error();
}

/// The only error of a text: its code and first byte.
struct Refusal {
  Code code;
  std::uint64_t offset;
  friend bool operator==(const Refusal&, const Refusal&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Refusal& refusal) {
    return out << word(refusal.code) << " at " << refusal.offset;
  }
};

std::vector<Refusal> refusals_of(std::string_view text) {
  std::vector<Refusal> refusals;
  for (const Error& error : errors_of(text)) {
    refusals.push_back({error.code, error.bytes ? error.bytes->begin : ~std::uint64_t{0}});
  }
  return refusals;
}

std::string nested(std::size_t depth, std::string_view inside = {}) {
  return std::string(depth, '[') + std::string(inside) + std::string(depth, ']');
}

class JsonAccepted : public ::testing::TestWithParam<const char*> {};

TEST_P(JsonAccepted, Text) {
  const auto result = parse(GetParam());
  EXPECT_TRUE(result.has_value()) << GetParam() << "\n" << (result ? "" : result.error().front().text());
}

INSTANTIATE_TEST_SUITE_P(Grammar, JsonAccepted,
                         ::testing::Values("{}", "[]", " \t\r\n{ } \t\r\n", "[ ]", "[1]", "[1,2]", "[ 1 , 2 ]",
                                           R"({"a":1})", R"( { "a" : 1 , "b" : [ ] } )", R"({"":{}})", R"([""])",
                                           "[true,false,null]",
                                           "[0,-0,1,-1,10,1.5,-1.5,0.0,1e3,1E3,1e+3,1e-3,1.5e10,-0.0e-0]",
                                           R"(["\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00"])", "[\"\x7f\"]",
                                           "[\"\u00e9\u65e5\U0001F600\"]", R"(["\u0000"])", R"(["\uFFFF\uD7FF\uE000"])",
                                           R"([[],{},[[]],{"a":{}}])", R"({"a":{"x":1},"b":{"x":1}})",
                                           "[18446744073709551615,-9223372036854775808]",
                                           "[18446744073709551616,-9223372036854775809,1e400,-1e-400,0.1e+0001]"));

class JsonRefused : public ::testing::TestWithParam<const char*> {};

TEST_P(JsonRefused, Text) {
  const std::string text = GetParam();
  const Errors errors = errors_of(text);
  ASSERT_FALSE(errors.empty()) << text;
  for (const Error& error : errors) {
    EXPECT_THAT(error.code, AnyOf(Code::kJsonSyntax, Code::kJsonUtf8)) << error.text();
    ASSERT_TRUE(error.bytes.has_value()) << error.text();
    EXPECT_LE(error.bytes->begin, text.size());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Structure, JsonRefused,
    ::testing::Values("", " ", "\n", "{", "[", "}", "]", "[1", "[1,", R"({"a")", R"({"a":)", R"({"a":1)", R"({"a":1,)",
                      "[1}", R"({"a":1])", "[[1]", R"({"a":[1})", "[1,]", "[,1]", "[,]", "[1,,2]", "[1 2]",
                      R"({"a":1,})", R"({,"a":1})", R"({"a" 1})", R"({"a"})", R"({"a":})", R"({"a"::1})", R"({:1})",
                      R"({"a":1 "b":2})", R"({"a":1;"b":2})", "{1:2}", "{a:1}", "{null:1}", R"(["a":1])", R"({"a",1})",
                      "[1]]", "[]]", "{}}", "[] []", "{} x", "{},", "[]\f", "\v[]", "[\f]", "\xEF\xBB\xBF{}", "[1]//c",
                      "[/*c*/1]", ":", ",", "[1:2]", "[{]}", "[\"a\"\"b\"]", "[1\"a\"]", "[true false]", "[[] []]",
                      R"({"a":"b":1})", R"({"a":{"b":"c":null,0},"d":1}})", R"(["a":1,2])", R"([["a":1,2],3])"));

INSTANTIATE_TEST_SUITE_P(Scalars, JsonRefused,
                         ::testing::Values("[01]", "[00]", "[-01]", "[-]", "[+1]", "[.5]", "[1.]", "[1.e1]", "[1e]",
                                           "[1e+]", "[1E-]", "[0x10]", "[1_0]", "[1a]", "[--1]", "[- 1]", "[1.5.2]",
                                           "[1e1.5]", "[NaN]", "[Infinity]", "[-Infinity]", "[tru]", "[truee]",
                                           "[True]", "[TRUE]", "[nul]", "[nulll]", "[fals]", "[t]", "[undefined]",
                                           "['a']", "[`a`]", "[\\u0031]", "[\x01]"));

INSTANTIATE_TEST_SUITE_P(Strings, JsonRefused,
                         ::testing::Values(R"(["a)", R"(["a\"])", R"(["\q"])", R"(["\x41"])", R"(["\u12"])",
                                           R"(["\u12G4"])", R"(["\U00000041"])", R"(["\'"])", "[\"a\nb\"]",
                                           "[\"a\tb\"]", "[\"\x1f\"]", "[\"\x01\"]", R"({"\q":1})", "{\"a\nb\":1}"));

TEST(JsonReader, NulBytesAreRefused) {
  using std::string_view_literals::operator""sv;
  for (const std::string_view text : {"[\"a\0b\"]"sv, "[1\0]"sv, "[]\0"sv, "\0[]"sv, "[true\0]"sv, "\0"sv}) {
    EXPECT_FALSE(errors_of(text).empty()) << ::testing::PrintToString(text);
  }
}

TEST(JsonReader, ScalarsAtTheRootAreValues) {
  const std::tuple<const char*, JsonKind, const char*, std::uint64_t> cases[] = {
      {"1", JsonKind::kNumber, "1", 0},     {" -1.5e3 ", JsonKind::kNumber, "-1.5e3", 1},
      {"true", JsonKind::kTrue, "true", 0}, {"\nfalse", JsonKind::kFalse, "false", 1},
      {"null", JsonKind::kNull, "null", 0}, {R"( "a\n" )", JsonKind::kString, "a\n", 1}};
  for (const auto& [text, kind, value, offset] : cases) {
    const auto document = parse(text);
    ASSERT_TRUE(document.has_value()) << text;
    EXPECT_EQ(document->root().kind(), kind) << text;
    EXPECT_EQ(document->root().text(), value) << text;
    EXPECT_EQ(document->root().offset(), offset) << text;
    EXPECT_EQ(document->root().size(), 0U) << text;
  }
  for (const char* text : {"x", "1 2", "null null", "01", "\"a\" 1", "\"a\"x", "\"a\" \"b\"", "1,", "\"a\":1", "1]",
                           "\"a", "true]", "-", "nul", "1 []", "\"a\"[]", "\"\\ud800\"", "\"\\q\""}) {
    EXPECT_EQ(refusals_of(text).size(), 1U) << text;
  }
}

TEST(JsonReader, EmptyInputIsRefused) { EXPECT_THAT(refusals_of(""), ElementsAre(Refusal{Code::kJsonSyntax, 0})); }

TEST(JsonReader, TrailingTextIsRefusedWhereItStands) {
  EXPECT_THAT(refusals_of("{} {}"), ElementsAre(Refusal{Code::kJsonSyntax, 3}));
  EXPECT_THAT(refusals_of("[1, 2]  true"), ElementsAre(Refusal{Code::kJsonSyntax, 8}));
}

TEST(JsonReader, Fault3_InvalidUtf8IsRefusedAtItsByte) {
  EXPECT_THAT(refusals_of("{\"a\": \"\xFF\"}"), ElementsAre(Refusal{Code::kJsonUtf8, 7}));
  EXPECT_THAT(refusals_of("{\"\xED\xA0\x80\": 1}"), ElementsAre(Refusal{Code::kJsonUtf8, 2}));
  EXPECT_THAT(refusals_of("[] \xC0\x80"), ElementsAre(Refusal{Code::kJsonUtf8, 3}));
}

TEST(JsonReader, Fault3_LoneSurrogatesAreRefusedAtTheirString) {
  for (const char* string : {R"("\ud800")", R"("\udc00")", R"("\ud800x")", R"("\ud800\n")", R"("\ud800\ud800")",
                             R"("\udc00\ud800")", R"("\ud83d\u0041")", R"("\uDBFF\uE000")", R"("a\udfff")"}) {
    EXPECT_THAT(refusals_of("[1, " + std::string(string) + "]"), ElementsAre(Refusal{Code::kJsonUtf8, 4})) << string;
    EXPECT_THAT(refusals_of("{ " + std::string(string) + ":1}"), ElementsAre(Refusal{Code::kJsonUtf8, 2})) << string;
  }
}

TEST(JsonReader, SurrogatePairsBecomeOneCharacter) {
  const auto document = parse(R"(["\ud83d\ude00", "\uD800\uDC00", "\udbff\udfff"])");
  ASSERT_TRUE(document.has_value());
  std::vector<std::string> texts;
  for (const JsonMember member : document->root()) texts.emplace_back(member.value.text());
  EXPECT_THAT(texts, ElementsAre("\U0001F600", "\U00010000", "\U0010FFFF"));
}

std::string escape_of(unsigned unit) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string escape = "\\u";
  for (const unsigned shift : {12U, 8U, 4U, 0U}) escape += kDigits[unit >> shift & 0xF];
  return escape;
}

TEST(JsonReader, Fault3_OneEscapeIsAcceptedUnlessItIsASurrogate) {
  std::string all = "[";
  std::size_t count = 0;
  for (unsigned unit = 0; unit <= 0xFFFF; ++unit) {
    if (unit < 0xD800 || unit > 0xDFFF) {
      all += (count++ > 0 ? ",\"" : "\"") + escape_of(unit) + "\"";
    } else {
      ASSERT_FALSE(errors_of("[\"" + escape_of(unit) + "\"]").empty()) << escape_of(unit);
    }
  }
  const auto document = parse(all + "]");
  ASSERT_TRUE(document.has_value()) << document.error().front().text();
  EXPECT_EQ(document->root().size(), count);
}

TEST(JsonReader, Fault3_APairIsAcceptedOnlyIfItsSecondHalfIsALowSurrogate) {
  for (const unsigned high : {0xD800U, 0xD9ABU, 0xDBFFU}) {
    for (unsigned second = 0; second <= 0xFFFF; second += 61) {
      const bool low = second >= 0xDC00 && second <= 0xDFFF;
      const std::string text = "[\"" + escape_of(high) + escape_of(second) + "\"]";
      ASSERT_EQ(errors_of(text).empty(), low) << text;
    }
  }
}

TEST(JsonReader, Fault5_DuplicateKeyIsRefused) {
  EXPECT_THAT(refusals_of(R"({"a":1,"b":2,"a":3})"), ElementsAre(Refusal{Code::kJsonDuplicateKey, 13}));
}

TEST(JsonReader, Fault5_DuplicateKeyThroughEscapeIsRefused) {
  EXPECT_THAT(refusals_of(R"({"a":1, "\u0061":3})"), ElementsAre(Refusal{Code::kJsonDuplicateKey, 8}));
  EXPECT_THAT(refusals_of("{\"\\ud83d\\ude00\":1,\"\U0001F600\":3}"),
              ElementsAre(Refusal{Code::kJsonDuplicateKey, 18}));
  EXPECT_THAT(refusals_of(R"({"\/":1,"/":3})"), ElementsAre(Refusal{Code::kJsonDuplicateKey, 8}));
  EXPECT_THAT(refusals_of(R"({"":1,"":3})"), ElementsAre(Refusal{Code::kJsonDuplicateKey, 6}));
}

TEST(JsonReader, Fault6_AllDuplicatesAreListedNestedOnesToo) {
  const auto refusals = refusals_of(R"({"a":{"x":1,"x":2},"a":[{"y":0,"y":0,"y":0}]})");
  EXPECT_THAT(refusals, ::testing::UnorderedElementsAre(
                            Refusal{Code::kJsonDuplicateKey, 12}, Refusal{Code::kJsonDuplicateKey, 19},
                            Refusal{Code::kJsonDuplicateKey, 31}, Refusal{Code::kJsonDuplicateKey, 37}));
}

TEST(JsonReader, EqualKeysInDifferentObjectsAndNearlyEqualKeysAreFine) {
  EXPECT_TRUE(parse(R"({"a":{"a":{"a":1}},"A":1,"a ":1,"aa":1,"\u0000":1,"\u0000\u0000":1})").has_value());
}

TEST(JsonReader, ManyKeysWithOneDuplicateAreFoundFast) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += "\"key" + std::to_string(i) + "\":0,";
  text += "\"key77777\":1}";
  const auto start = std::chrono::steady_clock::now();
  const auto refusals = refusals_of(text);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_THAT(refusals, ElementsAre(Refusal{Code::kJsonDuplicateKey, text.size() - 13}));
}

TEST(JsonReader, ASyntaxErrorBehindADuplicateIsFound) {
  EXPECT_THAT(refusals_of(R"([{"a":1,"a":2}, tru])"), ::testing::Contains(Refusal{Code::kJsonSyntax, 16}));
}

TEST(JsonReader, KeptDuplicatesSayWhereTheyAre) {
  JsonDuplicates duplicates;
  const JsonBuffer buffer = JsonBuffer::copy_of(R"({"x":[{"y":{"a":1,"b":2,"a":3}}],"x":0})");
  const auto document = JsonDocument::parse_keeping_duplicates(buffer, duplicates);
  ASSERT_TRUE(document.has_value());
  ASSERT_EQ(duplicates.list.size(), 2U);
  EXPECT_EQ(duplicates.not_listed, 0U);
  const JsonDuplicate& inner = duplicates.list[0];
  EXPECT_THAT(*inner.path, ElementsAre("x", "y"));
  EXPECT_EQ(inner.key, "a");
  EXPECT_EQ(inner.first_offset, 12U);
  EXPECT_EQ(inner.offset, 24U);
  EXPECT_EQ(inner.error(8).bytes, (ByteRange{32, 33}));
  EXPECT_EQ(inner.error(8).code, Code::kJsonDuplicateKey);
  EXPECT_THAT(*duplicates.list[1].path, ElementsAre());
  EXPECT_EQ(duplicates.list[1].key, "x");
  EXPECT_EQ(document->root().size(), 2U) << "the document has the keys twice";
}

TEST(JsonReader, ADocumentThatMovesKeepsItsText) {
  auto parsed =
      JsonDocument::parse(JsonBuffer::copy_of(R"({"plain":"a","e\u0073caped":"b\n","n":[-1.5e3,true,null]})"));
  ASSERT_TRUE(parsed.has_value());
  const JsonDocument document = *std::move(parsed);
  const JsonValue root = document.root();
  EXPECT_EQ(root.find("plain")->text(), "a");
  EXPECT_EQ(root.find("escaped")->text(), "b\n");
  std::vector<std::string> texts;
  const JsonValue numbers = *root.find("n");
  for (const JsonMember element : numbers) texts.emplace_back(element.value.text());
  EXPECT_THAT(texts, ElementsAre("-1.5e3", "true", "null"));
}

TEST(JsonReader, TooMuchIsRefusedBeforeItIsRead) {
  const auto refused_at = [](std::string_view text, const JsonLimits& limits) -> std::int64_t {
    const auto document = JsonDocument::parse(JsonBuffer::copy_of(text), limits);
    if (document) return -1;
    EXPECT_EQ(document.error().front().code, Code::kHeaderTooLarge);
    EXPECT_FALSE(document.error().front().remedy.empty());
    return static_cast<std::int64_t>(document.error().front().bytes->begin);
  };
  const auto members = [](std::size_t count) { return JsonLimits{count, 1000, Code::kHeaderTooLarge}; };
  EXPECT_EQ(refused_at("[1,2,3]", members(3)), -1);
  EXPECT_EQ(refused_at("[1,2,3]", members(2)), 4);
  EXPECT_EQ(refused_at(R"({"a":1,"b":[1,2],"c":{"d":1}})", members(3)), -1) << "of one container, not of all";
  EXPECT_EQ(refused_at(R"({"a":[0],"b":[1,2,3]})", members(2)), 17);
  EXPECT_EQ(refused_at(R"(["a,b,c\",[,","d"])", members(2)), -1) << "not within strings";
  EXPECT_EQ(refused_at("[[1,2],[3,4],[5,6]]", members(3)), -1);
  const auto values = [](std::size_t count) { return JsonLimits{1000, count, Code::kHeaderTooLarge}; };
  EXPECT_EQ(refused_at(R"({"a":[1,2]})", values(3)), -1) << "two more for 11 bytes";
  EXPECT_EQ(refused_at(R"({"a":[1,2]})", values(2)), 7);
  EXPECT_EQ(refused_at(std::string(500, '[') + std::string(500, ']'), values(200)), 399);
}

TEST(JsonReader, DuplicatesPastTheCapAreCounted) {
  std::string text = "{\"a\":0";
  for (std::size_t i = 0; i < Errors::kMaxListed + 5; ++i) text += ",\"a\":0";
  const Errors errors = errors_of(text + "}");
  EXPECT_EQ(errors.size(), Errors::kMaxListed);
  EXPECT_EQ(errors.not_listed(), 5U);
}

// A name of 200 kB over a thousand duplicates must not cost 200 MB: a bad file may cost 64 MiB at most.
TEST(JsonReader, Fault16_ALongPathIsNotKeptOncePerDuplicate) {
  std::string text = "{\"" + std::string(200'000, 'n') + "\":{\"a\":0";
  for (int i = 0; i < 1000; ++i) text += ",\"a\":0";
  JsonDuplicates duplicates;
  const JsonBuffer buffer = JsonBuffer::copy_of(text + "}}");
  ASSERT_TRUE(JsonDocument::parse_keeping_duplicates(buffer, duplicates).has_value());
  ASSERT_GT(duplicates.list.size(), 100U);
  for (const JsonDuplicate& duplicate : duplicates.list) EXPECT_EQ(duplicate.path, duplicates.list.front().path);
}

TEST(JsonReader, AFaultKnowsTheKeysThatLeadToIt) {
  JsonDuplicates duplicates;
  const JsonBuffer buffer = JsonBuffer::copy_of(R"({"a":{"b":1},"c":[{"d":tru}]})");
  const auto document = JsonDocument::parse_keeping_duplicates(buffer, duplicates);
  ASSERT_FALSE(document.has_value());
  EXPECT_THAT(document.error().path, ElementsAre("c", "d"));
  EXPECT_EQ(document.error().error.bytes, (ByteRange{23, 24}));
}

TEST(JsonReader, Depth64IsAcceptedAnd65Refused) {
  EXPECT_TRUE(parse(nested(64)).has_value());
  EXPECT_THAT(refusals_of(nested(65)), ElementsAre(Refusal{Code::kJsonDepth, 64}));
  std::string objects;
  for (int i = 0; i < 65; ++i) objects += "{\"a\":";
  EXPECT_THAT(refusals_of(objects + "1" + std::string(65, '}')), ElementsAre(Refusal{Code::kJsonDepth, 5 * 64}));
}

TEST(JsonReader, DepthCountsContainersNotTheValuesInThem) {
  EXPECT_TRUE(parse(nested(64, "1")).has_value());
  EXPECT_TRUE(parse(nested(64, "\"a\",null")).has_value());
}

TEST(JsonReader, DepthIsMeasuredNotAccumulated) {
  std::string wide = "[";
  for (int i = 0; i < 200; ++i) wide += nested(63) + ",";
  EXPECT_TRUE(parse(wide + "[]]").has_value());
}

TEST(JsonReader, Fault4_AMillionLevelsAreRefusedFast) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(refusals_of(nested(1'000'000)), ElementsAre(Refusal{Code::kJsonDepth, 64}));
  EXPECT_FALSE(errors_of(std::string(1'000'000, '[')).empty());
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"\":";
  EXPECT_FALSE(errors_of(objects).empty());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(JsonReader, Fault4_EveryTruncationOfATextIsRefused) {
  const std::string text = R"({"a":{"dtype":"F32","shape":[1,2.5e1],"n":null},"\u00e9":[true,false,{}]})";
  ASSERT_TRUE(parse(text).has_value());
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(errors_of(text.substr(0, size)).empty()) << text.substr(0, size);
  }
}

TEST(JsonReader, Fault8_AsUint64TakesDigitsOnly) {
  const auto number = [](std::string_view text) -> std::optional<std::uint64_t> {
    const auto document = parse("[" + std::string(text) + "]");
    if (!document) return std::nullopt;
    return (*document->root().begin()).value.as_uint64();
  };
  EXPECT_EQ(number("0"), 0U);
  EXPECT_EQ(number("7"), 7U);
  EXPECT_EQ(number("9223372036854775808"), std::uint64_t{1} << 63);
  EXPECT_EQ(number("18446744073709551615"), ~std::uint64_t{0});
  for (const char* other : {"18446744073709551616", "99999999999999999999999", "-0", "-1", "1.0", "0.0", "1e3", "1E0",
                            "01", "true", "false", "null", "\"1\"", "[1]", "{}"}) {
    EXPECT_EQ(number(other), std::nullopt) << other;
  }
}

TEST(JsonReader, ValuesKnowTheirOffsetsKindsAndTexts) {
  const std::string text = R"( {"k": "v\n", "n" : 12 ,"l":[ true,null , 1.50e2 ],"o":{"\u0041":false}})";
  const auto document = parse(text);
  ASSERT_TRUE(document.has_value());
  const JsonValue root = document->root();
  EXPECT_EQ(root.offset(), 1U);
  EXPECT_TRUE(root.is_object());
  EXPECT_EQ(root.text(), "");
  ASSERT_EQ(root.size(), 4U);
  std::vector<std::string> keys;
  for (const JsonMember member : root) {
    keys.emplace_back(member.key);
    EXPECT_EQ(text.substr(member.key_offset, 3), "\"" + std::string(member.key) + "\"");
  }
  EXPECT_THAT(keys, ElementsAre("k", "n", "l", "o"));
  EXPECT_EQ(root.find("k")->text(), "v\n");
  EXPECT_EQ(root.find("k")->offset(), text.find("\"v"));
  EXPECT_EQ(root.find("n")->text(), "12");
  EXPECT_EQ(root.find("n")->offset(), text.find("12"));
  const JsonValue list = *root.find("l");
  EXPECT_TRUE(list.is_array());
  EXPECT_EQ(list.offset(), text.find('['));
  std::vector<std::pair<JsonKind, std::uint64_t>> elements;
  for (const JsonMember member : list) {
    EXPECT_EQ(member.key, "");
    elements.emplace_back(member.value.kind(), member.value.offset());
  }
  EXPECT_THAT(elements,
              ElementsAre(std::pair(JsonKind::kTrue, text.find("true")), std::pair(JsonKind::kNull, text.find("null")),
                          std::pair(JsonKind::kNumber, text.find("1.50e2"))));
  EXPECT_EQ(root.find("o")->find("A")->kind(), JsonKind::kFalse);
}

TEST(JsonReader, FindIsForObjectsAndTheirOwnKeys) {
  const auto document = parse(R"({"a":{"inner":1},"b":["inner"],"c":"inner"})");
  ASSERT_TRUE(document.has_value());
  const JsonValue root = document->root();
  EXPECT_FALSE(root.find("inner").has_value());
  EXPECT_FALSE(root.find("A").has_value());
  EXPECT_FALSE(root.find("").has_value());
  EXPECT_FALSE(root.find("b")->find("inner").has_value());
  EXPECT_FALSE(root.find("c")->find("inner").has_value());
  EXPECT_TRUE(root.find("a")->find("inner").has_value());
}

TEST(JsonReader, SizeCountsDirectMembersAndScalarsAreEmpty) {
  const auto document = parse(R"([[1,[2,3]],{"a":[4,5,6],"b":{}},7,"x",[]])");
  ASSERT_TRUE(document.has_value());
  std::vector<std::size_t> sizes;
  for (const JsonMember member : document->root()) sizes.push_back(member.value.size());
  EXPECT_THAT(sizes, ElementsAre(2, 2, 0, 0, 0));
}

TEST(JsonReader, DocumentsOutliveTheirBufferAndMove) {
  std::optional<JsonDocument> kept;
  {
    auto document = parse(R"({"key":"a value long enough to live on the heap"})");
    ASSERT_TRUE(document.has_value());
    kept = *std::move(document);
  }
  EXPECT_EQ(kept->root().find("key")->text(), "a value long enough to live on the heap");
}

TEST(JsonReader, FoundIsShortAndEscaped) {
  const auto document =
      parse("[{\"a\":1}, [2], \"x\\n\\u202e\", -1.5, true, null, \"" + std::string(5000, 'n') + "\"]");
  ASSERT_TRUE(document.has_value());
  std::vector<std::string> found;
  for (const JsonMember member : document->root()) found.push_back(member.value.found());
  EXPECT_LT(found.back().size(), 400U);
  found.pop_back();
  EXPECT_THAT(found, ElementsAre("an object", "an array", "the string \"x\\n\\u202e\"", "-1.5", "true", "null"));
}

}  // namespace
}  // namespace lading
