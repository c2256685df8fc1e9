#include "lading/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace lading {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Code kAllCodes[] = {
#define LADING_LIST(enumerator, word, exit_code) Code::enumerator,
    LADING_ERROR_CODES(LADING_LIST)
#undef LADING_LIST
};

TEST(Code, WordsAreUniqueAndGreppable) {
  std::set<std::string_view> words;
  for (const Code code : kAllCodes) {
    EXPECT_TRUE(words.insert(word(code)).second) << word(code);
    EXPECT_EQ(word(code).find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string_view::npos)
        << word(code);
  }
  EXPECT_GT(words.size(), 30U);
}

TEST(Code, WordAndExitCodeBelongTogether) {
  EXPECT_EQ(word(Code::kInternal), "internal");
  EXPECT_EQ(exit_code(Code::kInternal), Exit::kInternal);
  EXPECT_EQ(word(Code::kUsage), "usage");
  EXPECT_EQ(exit_code(Code::kUsage), Exit::kUsage);
  EXPECT_EQ(word(Code::kHeaderOverlap), "header_overlap");
  EXPECT_EQ(exit_code(Code::kHeaderOverlap), Exit::kCheckpoint);
  EXPECT_EQ(word(Code::kStrayShard), "stray_shard");
  EXPECT_EQ(exit_code(Code::kWriteFailed), Exit::kLoad);
  for (const Code code : kAllCodes)
    EXPECT_GT(exit_code(code), Exit::kOk) << word(code) << " must not look like success";
}

TEST(Error, TextHasEveryField) {
  const std::string text = Error(Code::kHeaderSize, "sizes differ")
                               .in_file("dir/a.safetensors")
                               .of_tensor("lm_head.weight")
                               .at({12, 34})
                               .on_rank(3)
                               .by_rule("R45")
                               .wanted("10 bytes")
                               .got("11 bytes")
                               .try_this("Fetch it again")
                               .text();
  EXPECT_EQ(text,
            "rank 3: dir/a.safetensors: tensor \"lm_head.weight\": bytes 12 to 34: sizes differ; expected 10 bytes, "
            "found 11 bytes [header_size, R45]. Fetch it again");
}

TEST(Error, TextLeavesOutWhatIsNotThere) {
  EXPECT_EQ(Error(Code::kUsage, "no").text(), "no [usage]");
  EXPECT_EQ(Error(Code::kUsage, "no").by_rule("S1").text(), "no [usage, S1]");
  EXPECT_EQ(Error(Code::kUsage, "no").wanted("a").text(), "no; expected a [usage]");
  EXPECT_EQ(Error(Code::kUsage, "no").got("b").text(), "no; found b [usage]");
  EXPECT_EQ(Error(Code::kUsage, "no").on_rank(0).text(), "rank 0: no [usage]");
  EXPECT_EQ(Error(Code::kUsage, "no").try_this("Do").text(), "no [usage]. Do");
}

TEST(Error, ATensorWithoutANameIsStillATensor) {
  EXPECT_EQ(Error(Code::kUsage, "no").of_tensor("").text(), "tensor \"\": no [usage]");
}

TEST(Error, OneByteIsNamedAsOne) {
  EXPECT_EQ(Error(Code::kUsage, "no").at({7, 8}).text(), "byte 7: no [usage]");
  EXPECT_EQ(Error(Code::kUsage, "no").at({7, 9}).text(), "bytes 7 to 9: no [usage]");
}

TEST(Error, Fault16_NamesAreEscapedAndStayOnOneLine) {
  const std::string text =
      Error(Code::kNotFound, "gone").in_file("a\n\x1b[2Jb").of_tensor("x\n\x1b[31m\xE2\x80\xAE\xFFy").text();
  EXPECT_THAT(text, HasSubstr("a\\n\\x1b[2Jb"));
  EXPECT_THAT(text, HasSubstr("x\\n\\x1b[31m\\u202e\\xffy"));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(Error, Fault16_AMegabyteNameIsCut) {
  const std::string text = Error(Code::kNotFound, "gone").of_tensor(std::string(1'000'000, 'n')).text();
  EXPECT_LT(text.size(), 1000U);
  EXPECT_THAT(text, HasSubstr("1000000 bytes"));
}

TEST(Errors, KeepsOrderAndCountsPastTheCap) {
  Errors errors;
  EXPECT_TRUE(errors.empty());
  for (std::size_t i = 0; i < Errors::kMaxListed + 5; ++i) errors.add(Error(Code::kUsage, std::to_string(i)));
  EXPECT_FALSE(errors.empty());
  EXPECT_EQ(errors.size(), Errors::kMaxListed);
  EXPECT_EQ(errors.not_listed(), 5U);
  EXPECT_EQ(errors.front().message, "0");
  EXPECT_EQ(errors.list().back().message, "999");
}

TEST(Errors, ExactlyTheCapIsListedWhole) {
  Errors errors;
  for (std::size_t i = 0; i < Errors::kMaxListed; ++i) errors.add(Error(Code::kUsage, "x"));
  EXPECT_EQ(errors.size(), 1000U);
  EXPECT_EQ(errors.not_listed(), 0U);
}

TEST(Errors, AddingErrorsAddsTheirCounts) {
  Errors many;
  for (std::size_t i = 0; i < Errors::kMaxListed + 3; ++i) many.add(Error(Code::kUsage, "m"));
  Errors errors = Error(Code::kNotFound, "first");
  errors.add(std::move(many));
  EXPECT_EQ(errors.size(), Errors::kMaxListed);
  EXPECT_EQ(errors.front().message, "first");
  EXPECT_EQ(errors.not_listed(), 4U) << "3 that were not listed before, 1 that has no room now";
}

TEST(Errors, Fault16_MegabytesOfTextAreCountedNotKept) {
  Errors errors;
  for (int i = 0; i < 100; ++i) errors.add(Error(Code::kUsage, "m").of_tensor(std::string(1'000'000, 'n')));
  std::size_t kept = 0;
  for (const Error& error : errors) kept += error.tensor->size();
  EXPECT_LE(kept, Errors::kMaxListedBytes);
  EXPECT_EQ(errors.size() + errors.not_listed(), 100U) << "none is lost";
  EXPECT_GE(errors.size(), 1U);
  const Errors one = Error(Code::kUsage, std::string(Errors::kMaxListedBytes + 1, 'm'));
  EXPECT_EQ(one.size(), 1U) << "an error is never empty";
}

TEST(Errors, CountsThatOthersCounted) {
  Errors errors = Error(Code::kUsage, "m");
  errors.count_not_listed(7);
  EXPECT_EQ(errors.not_listed(), 7U);
  EXPECT_EQ(errors.size(), 1U);
}

TEST(Errors, RelocateMovesRangesAndNamesTheFile) {
  Errors errors;
  errors.add(Error(Code::kJsonSyntax, "a").at({3, 4}));
  errors.add(Error(Code::kJsonSyntax, "b"));
  errors.relocate("dir/file", 8);
  EXPECT_EQ(errors.front().bytes, (ByteRange{11, 12}));
  EXPECT_EQ(errors.front().file, "dir/file");
  EXPECT_EQ(errors.list()[1].bytes, std::nullopt);
  EXPECT_EQ(errors.list()[1].file, "dir/file");
}

TEST(ByteRange, SizeAndInvariant) {
  EXPECT_EQ((ByteRange{3, 10}).size_bytes(), 7U);
  EXPECT_EQ((ByteRange{3, 3}).size_bytes(), 0U);
  EXPECT_TRUE((ByteRange{3, 3}).satisfies_invariants());
  EXPECT_FALSE((ByteRange{4, 3}).satisfies_invariants());
}

}  // namespace
}  // namespace lading
