#include "base/problems/folding.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/problems/name_folding.h"
#include "base/problems/remedies.h"

namespace lading {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

Error missing(const std::string& tensor) {
  return Error(Code::kPlan, "the checkpoint does not have this parameter")
      .of_tensor(tensor)
      .by_rule("R39")
      .wanted("a key for [8]")
      .got("no such key")
      .try_this("Map a key to it.");
}

std::vector<std::string> patterns_of(const std::vector<std::string>& names, std::size_t most = 8) {
  const std::vector<std::string_view> views(names.begin(), names.end());
  std::vector<std::string> out;
  std::size_t members = 0;
  for (const NamePatternCount& one : fold_names(views, most)) {
    out.push_back(one.pattern);
    members += one.members.size();
  }
  EXPECT_EQ(members, names.size()) << "every name is in one pattern";
  return out;
}

TEST(Folding, SeventyOfOneKindAreOneLine) {
  Errors errors;
  for (int i = 0; i < 70; ++i) errors.add(missing(fmt::format("blocks.{}.attn.weight", i)));
  EXPECT_THAT(
      folded(errors),
      ElementsAre("70 tensors \"blocks.{0..69}.attn.weight\": the checkpoint does not have this parameter; expected "
                  "a key for [8], found no such key [plan, R39]. Map a key to it."));
}

TEST(Folding, SeveralKindsKeepTheOrderOfTheirFirst) {
  Errors errors(Error(Code::kPlan, "the checkpoint and the model have no tensor in common").try_this("Pass another."));
  for (int i = 0; i < 5; ++i) {
    errors.add(missing(fmt::format("a.{}", i)));
    errors.add(Error(Code::kPlan, "unexpected").of_tensor(fmt::format("b.{}", 2 * i)).try_this("Ignore it."));
  }
  errors.add(missing("a.9").on_rank(3));
  const std::vector<std::string> lines = folded(errors);
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_THAT(lines[0], StartsWith("the checkpoint and the model"));
  EXPECT_THAT(lines[1], StartsWith("6 tensors \"a.{0..4,9}\": the checkpoint does not"));
  EXPECT_THAT(lines[2], StartsWith("5 tensors \"b.*\": unexpected"));
}

TEST(Folding, FewAreListed) {
  Errors errors;
  for (int i = 0; i < 3; ++i) errors.add(missing(fmt::format("a.{}", i)));
  EXPECT_THAT(folded(errors), ElementsAre(errors.list()[0].text(), errors.list()[1].text(), errors.list()[2].text()));
}

TEST(Folding, NamesThatHaveNothingInCommonAreListedUpToALimit) {
  Errors errors;
  for (char c = 'a'; c <= 'z'; ++c) errors.add(missing(std::string(3, c)));
  const std::vector<std::string> lines = folded(errors);
  ASSERT_THAT(lines, SizeIs(10));
  EXPECT_THAT(lines[0], StartsWith("26 tensors: the checkpoint does not have this parameter; expected a key"));
  EXPECT_EQ(lines[1], "  \"aaa\"");
  EXPECT_EQ(lines[9], "  and 18 more");
}

TEST(Folding, PatternsSayWhatTheirMembersHaveInCommon) {
  Errors errors;
  for (int i = 0; i < 4; ++i) {
    errors.add(missing(fmt::format("a.{}", i)));
    Error other = missing(fmt::format("b.{}", i));
    other.found = fmt::format("rule \"x\" makes it from \"y.{}\"", i);
    errors.add(std::move(other));
  }
  EXPECT_THAT(folded(errors),
              ElementsAre("8 tensors: the checkpoint does not have this parameter; expected a key for [8] [plan, R39]. "
                          "Map a key to it.",
                          "  \"a.{0..3}\" (4)", "  \"b.{0..3}\" (4)"));
}

TEST(Folding, FilesAndRanks) {
  Errors errors;
  for (int i = 1; i <= 4; ++i) {
    errors.add(
        Error(Code::kNotFound, "no such file").in_file(fmt::format("model-{:05}-of-00004.safetensors", i)).on_rank(i));
  }
  EXPECT_THAT(folded(errors),
              ElementsAre("ranks {1..4}: 4 files \"model-{00001..00004}-of-00004.safetensors\": no such "
                          "file [not_found]. Check the path."));
  Errors plain;
  for (int i = 0; i < 5; ++i) plain.add(Error(Code::kCancelled, "stopped"));
  EXPECT_THAT(folded(plain), ElementsAre("5 times: stopped [cancelled]. Start the operation again."));
}

TEST(Folding, NamesAreData) {
  Errors errors;
  for (int i = 0; i < 5; ++i) errors.add(missing(fmt::format("a\x01\x1b[31m.{}", i)));
  for (const std::string& line : folded(errors)) {
    for (const char c : line) EXPECT_GE(c, ' ');
  }
}

TEST(Folding, Names) {
  EXPECT_THAT(patterns_of({"w1", "w2", "w3"}), ElementsAre("w{1..3}"));
  EXPECT_THAT(patterns_of({"a.0.w", "a.1.w", "a.5.w"}), ElementsAre("a.{0,1,5}.w"));
  EXPECT_THAT(patterns_of({"a.0", "a.2", "a.4", "a.6", "a.8"}), ElementsAre("a.*"));
  EXPECT_THAT(patterns_of({"a.1.q", "a.1.k", "b"}, 2), ElementsAre("a.1.*", "b"));
  EXPECT_THAT(patterns_of({"a.1.q", "a.1.k", "b"}, 3), ElementsAre("a.1.q", "a.1.k", "b"));
  EXPECT_THAT(patterns_of({"x.123456789012345", "x.123456789012346"}), SizeIs(2)) << "hashes";
  EXPECT_THAT(patterns_of({"", ""}), ElementsAre(""));
  std::vector<std::string> model = {"embed.weight"};
  for (int layer = 0; layer < 32; ++layer) {
    for (const std::string part : {"q", "k", "v", "o"}) {
      for (const std::string what : {"weight", "bias"})
        model.push_back(fmt::format("blocks.{}.attn.{}.{}", layer, part, what));
    }
    model.push_back(fmt::format("blocks.{}.norm.weight", layer));
  }
  EXPECT_THAT(patterns_of(model), SizeIs(6)) << "attn.q.*, attn.k.*, …";
  EXPECT_THAT(patterns_of(model, 4),
              ElementsAre("embed.weight", "blocks.{0..31}.attn.*", "blocks.{0..31}.norm.weight"));
}

TEST(Folding, NumbersAreTheirText) {
  EXPECT_THAT(patterns_of({"w1", "w01", "w001", "w0001"}), ElementsAre("w{1,01,001,0001}"));
  EXPECT_THAT(patterns_of({"w1", "w02", "w3"}), ElementsAre("w{1,3,02}")) << "no range has both 1 and 02";
  EXPECT_THAT(patterns_of({"w08", "w09", "w10", "w11"}), ElementsAre("w{08..11}"));
  EXPECT_THAT(patterns_of({"w8", "w9", "w10", "w11"}), ElementsAre("w{8..11}"));
  EXPECT_THAT(patterns_of({"w0", "w1", "w2", "w4", "w6", "w7", "w8"}), ElementsAre("w{0..2,4,6..8}"));
  EXPECT_THAT(patterns_of({"w\x01", "w0", "w1", "w2"}), ElementsAre("w{0..2,\x01}"));
}

TEST(Folding, PatternsStandForNoOtherName) {
  std::vector<std::string> names;
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 4; ++b) names.push_back(fmt::format("a.{}.b.{}.w", a, b));
  }
  EXPECT_THAT(patterns_of(names), ElementsAre("a.{0..2}.b.{0..3}.w"));
  names.push_back(names.front());
  EXPECT_THAT(patterns_of(names), ElementsAre("a.{0..2}.b.{0..3}.w")) << "a name that has two problems";
  names.resize(11);
  EXPECT_THAT(patterns_of(names), ElementsAre("a.{0,1}.b.{0..3}.w", "a.2.b.{0..2}.w"));
  EXPECT_THAT(patterns_of(names, 1), ElementsAre("a.*.b.*.w")) << "no room for two: a pattern, which has a count";
  std::vector<std::string> beginnings;
  for (const std::string& name : names) {
    beginnings.push_back(name + ".q");
    beginnings.push_back(name + ".k");
  }
  EXPECT_THAT(patterns_of(beginnings, 1), ElementsAre("a.*.b.*.w.*"));
}

TEST(Folding, ARemedyIsThatOfAll) {
  Errors errors;
  for (int i = 0; i < 4; ++i) {
    Error error = missing(fmt::format("a.{}.w", i));
    error.remedy = fmt::format("Map a key to a.{}.w.", i);
    errors.add(std::move(error));
  }
  const std::vector<std::string> lines = folded(errors);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], HasSubstr(". Map a key to a.{0..3}.w."));
}

TEST(Remedies, AreSentences) {
#define LADING_REMEDY(enumerator, word, exit_code)                                                 \
  if (const std::string_view remedy = usual_remedy(Code::enumerator); !remedy.empty()) {           \
    EXPECT_TRUE(remedy.front() >= 'A' && remedy.front() <= 'Z' && remedy.back() == '.') << remedy; \
  }
  LADING_ERROR_CODES(LADING_REMEDY)
#undef LADING_REMEDY
  EXPECT_EQ(remedy_of(Error(Code::kNotFound, "gone")), usual_remedy(Code::kNotFound));
  EXPECT_EQ(remedy_of(Error(Code::kNotFound, "gone").try_this("Look.")), "Look.");
}

}  // namespace
}  // namespace lading
