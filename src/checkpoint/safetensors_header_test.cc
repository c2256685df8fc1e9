#include "checkpoint/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/safetensors_bytes.h"

namespace lading::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

Result<Header, Errors> parse(std::string_view json, std::uint64_t data_bytes,
                             TrailingBytes trailing = TrailingBytes::kRefuse) {
  return parse_header(JsonBuffer::copy_of(json), {"f.safetensors", 8 + json.size() + data_bytes, trailing});
}

/// Code, first byte in the file, rule.
struct Refusal {
  Code code;
  std::uint64_t byte;
  std::string rule = "R45";
  friend bool operator==(const Refusal&, const Refusal&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Refusal& refusal) {
    return out << word(refusal.code) << " at " << refusal.byte << " by " << refusal.rule;
  }
};

std::vector<Refusal> refusals(std::string_view json, std::uint64_t data_bytes) {
  const auto header = parse(json, data_bytes);
  std::vector<Refusal> found;
  if (header) return found;
  for (const Error& error : header.error()) {
    EXPECT_EQ(error.file, "f.safetensors") << error.text();
    found.push_back({error.code, error.bytes ? error.bytes->begin : ~std::uint64_t{0}, error.rule});
  }
  return found;
}

// Where `what` stands in the file whose header is `json`.
std::uint64_t at(std::string_view json, std::string_view what) { return 8 + json.find(what); }

std::string entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return R"({"dtype":)" + std::string(dtype) + R"(,"shape":)" + std::string(shape) + R"(,"data_offsets":)" +
         std::string(offsets) + "}";
}

std::string only(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return R"({"t":)" + entry(dtype, shape, offsets) + "}";
}

TEST(HeaderLength, Fault1_FilesUnderEightBytesAreRefused) {
  for (std::size_t size = 0; size < 8; ++size) {
    const auto length = header_length_bytes(std::string(size, '\0'), {"f", size, {}});
    ASSERT_FALSE(length.has_value()) << size;
    EXPECT_EQ(length.error().code, Code::kHeaderTruncated);
    EXPECT_EQ(length.error().file, "f");
    EXPECT_EQ(length.error().rule, "R45");
  }
}

TEST(HeaderLength, IsLittleEndian) {
  EXPECT_EQ(header_length_bytes(std::string_view("\x01\x02\0\0\0\0\0\0", 8), {"f", 10'000, {}}).value(), 0x0201U);
}

TEST(HeaderLength, Fault2_LimitsAreExact) {
  const auto code = [](std::uint64_t length, std::uint64_t file) {
    const auto result = header_length_bytes(test::little_endian(length), {"f", file, {}});
    return result ? std::string(result.value() == length ? "ok" : "wrong") : std::string(word(result.error().code));
  };
  EXPECT_EQ(code(2, 10), "ok");
  EXPECT_EQ(code(3, 10), "header_truncated");
  EXPECT_EQ(code(0, 8), "ok");
  EXPECT_EQ(code(1, 8), "header_truncated");
  EXPECT_EQ(code(100'000'000, 200'000'000), "ok");
  EXPECT_EQ(code(100'000'001, 200'000'000), "header_too_large");
  EXPECT_EQ(code(100'000'000, 100'000'007), "header_truncated");
  EXPECT_EQ(code(~std::uint64_t{0}, 100), "header_too_large");
  EXPECT_EQ(code(std::uint64_t{1} << 63, ~std::uint64_t{0}), "header_too_large");
}

TEST(Header, ReadsTensorsAndMetadata) {
  const std::string json = R"({"__metadata__":{"format":"pt","x":""},"b":)" + entry("\"F32\"", "[2]", "[2,10]") +
                           R"(,"a":)" + entry("\"BF16\"", "[]", "[0,2]") + "}";
  const auto header = parse(json, 10);
  ASSERT_TRUE(header.has_value()) << header.error().front().text();
  EXPECT_EQ(header->data_begin_bytes, 8 + json.size());
  EXPECT_THAT(header->metadata, ElementsAre(std::pair("format", "pt"), std::pair("x", "")));
  ASSERT_EQ(header->tensors.size(), 2U);
  EXPECT_EQ(header->tensors[0].name, "a") << "by position, not by order in the header";
  EXPECT_EQ(header->tensors[0].dtype, DType::kBF16);
  EXPECT_EQ(header->tensors[0].shape, Shape{});
  EXPECT_EQ(header->tensors[0].bytes, (ByteRange{8 + json.size(), 10 + json.size()}));
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_EQ(header->tensors[1].shape, Shape{2});
  EXPECT_EQ(header->tensors[1].bytes, (ByteRange{10 + json.size(), 18 + json.size()}));
  EXPECT_TRUE(header->warnings.empty());
}

TEST(Header, Fault14_OddButValidFilesAreAccepted) {
  EXPECT_TRUE(parse("{}", 0).has_value()) << "no tensor";
  EXPECT_TRUE(parse(R"({"__metadata__":{}})", 0).has_value());
  EXPECT_TRUE(parse(" \n {}  ", 0).has_value()) << "spaces around";
  EXPECT_TRUE(parse(only("\"F32\"", "[]", "[0,4]"), 4).has_value()) << "rank 0";
  EXPECT_TRUE(parse(only("\"F32\"", "[3,0]", "[0,0]"), 0).has_value()) << "no element";
  EXPECT_TRUE(parse(only("\"F4\"", "[2,3]", "[0,3]"), 3).has_value()) << "packed";
  EXPECT_TRUE(parse(R"({"":)" + entry("\"U8\"", "[1]", "[0,1]") + "}", 1).has_value()) << "empty name";
  const std::string misaligned =
      R"({"a":)" + entry("\"U8\"", "[1]", "[0,1]") + R"(,"b":)" + entry("\"F64\"", "[1]", "[1,9]") + "}";
  EXPECT_TRUE(parse(misaligned, 9).has_value());
}

TEST(Header, Fault14_ZeroSizeTensorsMayStandAnywhereOnASeam) {
  // The order in the header is the opposite of every order by position.
  const std::string json = R"({"z3":)" + entry("\"U8\"", "[0]", "[8,8]") + R"(,"b":)" +
                           entry("\"U8\"", "[4]", "[4,8]") + R"(,"z2":)" + entry("\"U8\"", "[0]", "[4,4]") +
                           R"(,"a":)" + entry("\"U8\"", "[4]", "[0,4]") + R"(,"z1":)" +
                           entry("\"U8\"", "[0]", "[0,0]") + "}";
  const auto header = parse(json, 8);
  ASSERT_TRUE(header.has_value()) << header.error().front().text();
  EXPECT_EQ(header->tensors.size(), 5U);
  const std::string inside =
      R"({"a":)" + entry("\"U8\"", "[4]", "[0,4]") + R"(,"z":)" + entry("\"U8\"", "[0]", "[2,2]") + "}";
  EXPECT_FALSE(parse(inside, 4).has_value()) << "offsets must be contiguous";
}

TEST(Header, RootMustBeAnObject) {
  EXPECT_THAT(refusals(" 1", 0), ElementsAre(Refusal{Code::kHeaderField, 9}));
  EXPECT_THAT(refusals("[]", 0), ElementsAre(Refusal{Code::kHeaderField, 8}));
  EXPECT_THAT(refusals("  [1]", 0), ElementsAre(Refusal{Code::kHeaderField, 10}));
}

TEST(Header, JsonErrorsAreRelocatedIntoTheFile) {
  EXPECT_THAT(refusals("{\"a\":\"\xFF\"}", 0), ElementsAre(Refusal{Code::kJsonUtf8, 14, ""}));
  EXPECT_THAT(refusals("{} {}", 0), ElementsAre(Refusal{Code::kJsonSyntax, 11, ""}));
  EXPECT_THAT(refusals("", 0), ElementsAre(Refusal{Code::kJsonSyntax, 8, ""}));
}

TEST(Header, Fault5_DuplicateTensorIsRefused) {
  const std::string one = entry("\"U8\"", "[1]", "[0,1]");
  EXPECT_THAT(refusals(R"({"a":)" + one + R"(,"a":)" + one + "}", 1),
              ElementsAre(Refusal{Code::kJsonDuplicateKey, 8 + 5 + one.size() + 1}));
  const std::string escaped = R"({"a":)" + one + R"(,"\u0061":)" + one + "}";
  EXPECT_THAT(refusals(escaped, 1), ElementsAre(Refusal{Code::kJsonDuplicateKey, at(escaped, R"("\u)")}));
}

TEST(Header, Fault6_DuplicateFieldIsRefused) {
  const std::string json = R"({"t":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})";
  EXPECT_THAT(refusals(json, 1), ElementsAre(Refusal{Code::kJsonDuplicateKey, 8 + 19}));
}

TEST(Header, Fault6_DuplicatesNameTheTensorAndHideNoOtherFault) {
  const std::string json = R"({"t":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]},"u":7})";
  const auto header = parse(json, 1);
  ASSERT_FALSE(header.has_value());
  ASSERT_EQ(header.error().size(), 2U);
  EXPECT_EQ(header.error().list()[0].code, Code::kJsonDuplicateKey);
  EXPECT_EQ(header.error().list()[0].tensor, "t");
  EXPECT_EQ(header.error().list()[1].code, Code::kHeaderField);
  EXPECT_EQ(header.error().list()[1].tensor, "u");
  const auto metadata = parse(R"({"__metadata__":{"k":"1","k":"2"}})", 0);
  ASSERT_FALSE(metadata.has_value());
  EXPECT_EQ(metadata.error().front().tensor, std::nullopt) << "__metadata__ is no tensor";
}

TEST(Header, SyntaxErrorInAnEntryNamesItsTensor) {
  const auto header = parse(R"({"a":{},"t":{"shape":[01]}})", 0);
  ASSERT_FALSE(header.has_value());
  EXPECT_EQ(header.error().front().code, Code::kJsonSyntax);
  EXPECT_EQ(header.error().front().tensor, "t");
}

TEST(Header, Metadata) {
  EXPECT_THAT(refusals(R"({"__metadata__":[]})", 0), ElementsAre(Refusal{Code::kHeaderMetadata, 8 + 16}));
  const std::string json = R"({"__metadata__":{"a":1,"b":"x","c":null,"d":{}}})";
  EXPECT_THAT(refusals(json, 0), ElementsAre(Refusal{Code::kHeaderMetadata, at(json, "1")},
                                             Refusal{Code::kHeaderMetadata, at(json, "null")},
                                             Refusal{Code::kHeaderMetadata, at(json, "{}")}));
}

TEST(Header, EntriesMustBeObjectsWithThreeFields) {
  EXPECT_THAT(refusals(R"({"t":[1]})", 0), ElementsAre(Refusal{Code::kHeaderField, 8 + 5}));
  EXPECT_THAT(refusals(R"({"t":null})", 0), ElementsAre(Refusal{Code::kHeaderField, 8 + 5}));
  const auto bare = parse(R"({"t":{}})", 0);
  ASSERT_FALSE(bare.has_value());
  ASSERT_EQ(bare.error().size(), 3U) << "one for each field that is missing";
  for (const Error& error : bare.error()) {
    EXPECT_EQ(error.code, Code::kHeaderField);
    EXPECT_EQ(error.tensor, "t");
    EXPECT_EQ(error.bytes, (ByteRange{13, 14}));
  }
}

TEST(Header, S1_UnknownFieldIsRefused) {
  const std::string json = R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":1}})";
  EXPECT_THAT(refusals(json, 1), ElementsAre(Refusal{Code::kHeaderField, at(json, "\"extra\""), "S1"}));
  EXPECT_FALSE(parse(R"({"t":{"Dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1).has_value());
}

TEST(Header, S2_RankIsAtMost64) {
  const auto ones = [](int count) {
    std::string shape = "[1";
    for (int i = 1; i < count; ++i) shape += ",1";
    return only("\"U8\"", shape + "]", "[0,1]");
  };
  EXPECT_TRUE(parse(ones(64), 1).has_value());
  const std::string json = ones(65);
  EXPECT_THAT(refusals(json, 1), ElementsAre(Refusal{Code::kHeaderShape, at(json, "]") - 1, "S2"}));
  EXPECT_THAT(refusals(ones(100'000), 1), ElementsAre(Refusal{Code::kHeaderShape, at(json, "]") - 1, "S2"}));
}

TEST(Header, S3_ElementsOverflow) {
  for (const char* shape : {"[9223372036854775808]", "[4294967296,4294967296]", "[0,9223372036854775808]",
                            "[4294967296,0,4294967296]", "[18446744073709551615,18446744073709551615]"}) {
    const std::string json = only("\"U8\"", shape, "[0,0]");
    EXPECT_THAT(refusals(json, 0), ElementsAre(Refusal{Code::kHeaderShape, at(json, shape), "S3"})) << shape;
  }
}

TEST(Header, Fault9_BytesOverflow) {
  const std::string json = only("\"F64\"", "[2305843009213693952]", "[0,0]");  // 2^61 elements, 2^64 bytes
  EXPECT_THAT(refusals(json, 0), ElementsAre(Refusal{Code::kHeaderSize, at(json, "[2305")}));
}

TEST(Header, Fault8_DimsMustBeWholeNumbers) {
  for (const char* dim : {"18446744073709551616", "1e400", "-1", "1.0", "1e3", "true", "null", "\"1\"", "[1]", "-0"}) {
    const std::string json = only("\"U8\"", "[1," + std::string(dim) + "]", "[0,1]");
    EXPECT_THAT(refusals(json, 1), ElementsAre(Refusal{Code::kHeaderShape, at(json, "[1,") + 3})) << dim;
  }
  const std::string json = only("\"U8\"", "1", "[0,1]");
  EXPECT_THAT(refusals(json, 1), ElementsAre(Refusal{Code::kHeaderShape, at(json, "1,")}));
}

TEST(Header, Fault8_OffsetsMustBeARangeOfWholeNumbers) {
  for (const char* number : {"18446744073709551616", "-1", "1.0", "1e0", "true", "null", "\"1\""}) {
    const std::string json = only("\"U8\"", "[1]", "[0," + std::string(number) + "]");
    EXPECT_THAT(refusals(json, 1), ElementsAre(Refusal{Code::kHeaderOffsets, at(json, "[0,") + 3})) << number;
  }
  for (const char* pair :
       {"[]", "[0]", "[0,1,2]", "{}", "\"0,1\"", "[1,0]", "[0,9223372036854775807]",
        "[9223372036854775808,9223372036854775808]", "[18446744073709551615,18446744073709551615]"}) {
    const std::string json = only("\"U8\"", "[7]", pair);
    EXPECT_THAT(refusals(json, 1), ElementsAre(Refusal{Code::kHeaderOffsets, at(json, pair)})) << pair;
  }
}

TEST(Header, Fault10_ShapeTimesDtypeMustBeTheSpan) {
  for (const char* shape : {"[3]", "[1]", "[0]", "[2,2]"}) {
    const std::string json = only("\"F16\"", shape, "[0,4]");
    EXPECT_THAT(refusals(json, 4), ElementsAre(Refusal{Code::kHeaderSize, at(json, shape)})) << shape;
  }
  EXPECT_TRUE(parse(only("\"F16\"", "[2]", "[0,4]"), 4).has_value());
}

TEST(Header, Fault11_PackedTypesMustFillBytes) {
  const std::string json = only("\"F4\"", "[3]", "[0,2]");
  EXPECT_THAT(refusals(json, 2), ElementsAre(Refusal{Code::kHeaderSize, at(json, "[3]")}));
  EXPECT_FALSE(parse(only("\"F6_E2M3\"", "[2]", "[0,1]"), 1).has_value());
  EXPECT_TRUE(parse(only("\"F6_E2M3\"", "[4]", "[0,3]"), 3).has_value());
}

TEST(Header, Fault12_UnknownDtypeIsAWarning) {
  const std::string json = only("\"F7_X\"", "[3]", "[0,5]");
  const auto header = parse(json, 5);
  ASSERT_TRUE(header.has_value());
  EXPECT_EQ(header->tensors.front().dtype, std::nullopt);
  EXPECT_EQ(header->tensors.front().unknown_dtype, "F7_X");
  ASSERT_EQ(header->warnings.size(), 1U);
  EXPECT_EQ(header->warnings.front().code, Code::kUnknownDType);
  EXPECT_EQ(header->warnings.front().tensor, "t");
  EXPECT_EQ(header->warnings.front().bytes->begin, at(json, "\"F7"));
  EXPECT_FALSE(parse(json, 4).has_value()) << "its place in the file is still checked";
  EXPECT_FALSE(parse(only("\"F7_X\"", "[0]", "[0,1]"), 1).has_value()) << "bytes without elements";
  EXPECT_FALSE(parse(only("\"F7_X\"", "[3]", "[0,0]"), 0).has_value()) << "elements without bytes";
  EXPECT_FALSE(parse(only("\"F7_X\"", "[17]", "[0,1]"), 1).has_value()) << "less than a bit for each";
  EXPECT_TRUE(parse(only("\"F7_X\"", "[8]", "[0,1]"), 1).has_value()) << "a bit for each";
  EXPECT_THAT(refusals(only("32", "[3]", "[0,3]"), 3), ElementsAre(Refusal{Code::kHeaderField, 8 + 14}));
}

TEST(Header, Fault7_HoleOverlapAndFirstOffset) {
  const auto two = [](std::string_view a, std::string_view b) {
    return R"({"a":)" + entry("\"U8\"", "[4]", a) + R"(,"b":)" + entry("\"U8\"", "[4]", b) + "}";
  };
  const std::uint64_t b = at(two("[0,4]", "[5,9]"), "\"b\"");
  EXPECT_THAT(refusals(two("[0,4]", "[5,9]"), 9), ElementsAre(Refusal{Code::kHeaderHole, b}));
  EXPECT_THAT(refusals(two("[0,4]", "[3,7]"), 7), ElementsAre(Refusal{Code::kHeaderOverlap, b}));
  EXPECT_THAT(refusals(two("[0,4]", "[0,4]"), 4), ElementsAre(Refusal{Code::kHeaderOverlap, b}));
  EXPECT_THAT(refusals(two("[1,5]", "[5,9]"), 9), ElementsAre(Refusal{Code::kHeaderHole, 8 + 1}));
}

TEST(Header, Fault7_AnOverlapInsideALongTensorIsFoundOnceItEnds) {
  const std::string json = R"({"a":)" + entry("\"U8\"", "[9]", "[0,9]") + R"(,"b":)" + entry("\"U8\"", "[2]", "[2,4]") +
                           R"(,"c":)" + entry("\"U8\"", "[1]", "[9,10]") + "}";
  EXPECT_THAT(refusals(json, 10), ElementsAre(Refusal{Code::kHeaderOverlap, at(json, "\"b\"")}));
}

TEST(Header, R45_DataTruncatedNamesTheFirstTensorBeyondTheEnd) {
  const std::string json = R"({"a":)" + entry("\"U8\"", "[4]", "[0,4]") + R"(,"b":)" + entry("\"U8\"", "[4]", "[4,8]") +
                           R"(,"c":)" + entry("\"U8\"", "[4]", "[8,12]") + "}";
  for (std::uint64_t data = 4; data < 12; ++data) {
    const auto header = parse(json, data);
    ASSERT_FALSE(header.has_value()) << data;
    ASSERT_EQ(header.error().size(), 1U);
    const Error& error = header.error().front();
    EXPECT_EQ(error.code, Code::kDataTruncated);
    EXPECT_EQ(error.tensor, data < 8 ? "b" : "c");
    EXPECT_EQ(error.bytes->begin, 8 + json.size() + (data < 8 ? 4 : 8));
    EXPECT_THAT(error.message, HasSubstr(data < 8 ? "2 tensors" : "1 tensor"));
  }
  EXPECT_TRUE(parse(json, 12).has_value());
}

TEST(Header, Fault13_TrailingBytesAreRefusedUnlessAllowed) {
  const std::string json = only("\"U8\"", "[4]", "[0,4]");
  const auto refused = parse(json, 7);
  ASSERT_FALSE(refused.has_value());
  ASSERT_EQ(refused.error().size(), 1U);
  EXPECT_EQ(refused.error().front().code, Code::kTrailingBytes);
  EXPECT_EQ(refused.error().front().bytes, (ByteRange{8 + json.size() + 4, 8 + json.size() + 7}));
  const auto allowed = parse(json, 7, TrailingBytes::kAllow);
  ASSERT_TRUE(allowed.has_value());
  EXPECT_EQ(allowed->tensors.front().bytes.end, 8 + json.size() + 4);
  EXPECT_FALSE(parse("{}", 1).has_value());
  EXPECT_TRUE(parse("{}", 1, TrailingBytes::kAllow).has_value());
}

TEST(Header, Fault13_AllowingTrailingBytesAllowsNothingElse) {
  const std::string hole = only("\"U8\"", "[4]", "[1,5]");
  EXPECT_FALSE(parse(hole, 6, TrailingBytes::kAllow).has_value());
  EXPECT_FALSE(parse(only("\"U8\"", "[4]", "[0,4]"), 3, TrailingBytes::kAllow).has_value());
}

TEST(Header, EveryProblemIsListed) {
  const std::string json = R"({"__metadata__":{"m":1},"a":)" + entry("5", "[1.5]", "[0]") + R"(,"b":)" +
                           entry("\"U8\"", "[2]", "[0,9]") + R"(,"c":7,"d":{"dtype":"U8","shape":[1],"x":0}})";
  EXPECT_THAT(
      refusals(json, 0),
      UnorderedElementsAre(Refusal{Code::kHeaderMetadata, at(json, "1}")}, Refusal{Code::kHeaderField, at(json, "5")},
                           Refusal{Code::kHeaderShape, at(json, "1.5")}, Refusal{Code::kHeaderOffsets, at(json, "[0]")},
                           Refusal{Code::kHeaderSize, at(json, "[2]")}, Refusal{Code::kHeaderField, at(json, "7,")},
                           Refusal{Code::kHeaderField, at(json, "\"x\""), "S1"},
                           Refusal{Code::kHeaderField, at(json, "\"d\"") + 4}));
}

TEST(Header, TensorsAndMetadataAreLimitedTogether) {
  const std::string json = R"({"__metadata__":{"m":"","n":""},"a":)" + entry("\"U8\"", "[0]", "[0,0]") + R"(,"b":)" +
                           entry("\"U8\"", "[0]", "[0,0]") + "}";
  const auto with = [&](std::uint64_t max_entries) {
    return parse_header(JsonBuffer::copy_of(json), {"f", 8 + json.size(), TrailingBytes::kRefuse, max_entries});
  };
  EXPECT_TRUE(with(4).has_value());
  const auto refused = with(3);
  ASSERT_FALSE(refused.has_value());
  ASSERT_EQ(refused.error().size(), 1U);
  EXPECT_EQ(refused.error().front().code, Code::kHeaderTooLarge);
  EXPECT_EQ(refused.error().front().found, "4 here, and 999,997 in other files");
  EXPECT_FALSE(refused.error().front().remedy.empty());
}

TEST(Header, TensorsAreInTheOrderOfTheirBytes) {
  std::string json = "{";
  for (const int i : {4, 1, 0, 3, 2}) {
    json += (json.size() > 1 ? ",\"" : "\"") + std::to_string(i) +
            "\":" + entry("\"U8\"", "[1]", "[" + std::to_string(i) + "," + std::to_string(i + 1) + "]");
  }
  const auto header = parse(json + "}", 5);
  ASSERT_TRUE(header.has_value());
  std::vector<std::string> names;
  for (const HeaderTensor& tensor : header->tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("0", "1", "2", "3", "4"));
}

TEST(Header, MillionsOfFaultsAreCountedNotKept) {
  std::string json = "{";
  for (int i = 0; i < 5000; ++i) json += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
  const auto header = parse(json + "}", 0);
  ASSERT_FALSE(header.has_value());
  EXPECT_EQ(header.error().size(), Errors::kMaxListed);
  EXPECT_EQ(header.error().not_listed(), 5000 - Errors::kMaxListed);
}

}  // namespace
}  // namespace lading::checkpoint
