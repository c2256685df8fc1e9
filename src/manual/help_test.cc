#include "lading/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "lading/error.h"
#include "manual/pages.h"

namespace lading {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

std::vector<std::string> names_of(TopicKind kind) {
  std::vector<std::string> names;
  for (const HelpTopic& topic : help_topics()) {
    if (topic.kind == kind) names.push_back(topic.name);
  }
  return names;
}

TEST(Help, EveryErrorCodeHasATopicAndItsExitCode) {
  const std::vector<std::string> names = names_of(TopicKind::kErrorCode);
#define LADING_CHECK_CODE(enumerator, code_word, exit)                                                     \
  EXPECT_EQ(std::count(names.begin(), names.end(), code_word), 1) << code_word << ": docs/error-codes.md"; \
  EXPECT_THAT(help(code_word)->front().parts.back().text, HasSubstr(std::to_string(int(Exit::exit)))) << code_word;
  LADING_ERROR_CODES(LADING_CHECK_CODE)
#undef LADING_CHECK_CODE
}

TEST(Help, ACodeThatSeveralStagesTellHasTheirExitCodes) {
  EXPECT_THAT(help("values_differ")->front().parts.back().text, testing::StartsWith("4 while planning (a tie), 5"));
  EXPECT_THAT(help("ranks_differ")->front().parts.back().text, testing::StartsWith("7, or 4"));
}

TEST(Help, EveryExitCodeHasATopic) {
  EXPECT_THAT(names_of(TopicKind::kExitCode),
              ElementsAre("exit 0", "exit 1", "exit 2", "exit 3", "exit 4", "exit 5", "exit 6", "exit 7"));
  static_assert(static_cast<int>(Exit::kRanks) == 7, "a new exit code needs a section in docs/exit-codes.md");
}

TEST(Help, RulesAreNumberedWithoutGaps) {
  std::vector<std::string> expected;
  for (int i = 1; i <= 69; ++i) expected.push_back("R" + std::to_string(i));
  for (int i = 1; i <= 5; ++i) expected.push_back("S" + std::to_string(i));
  EXPECT_EQ(names_of(TopicKind::kRule), expected);
}

TEST(Help, EveryTopicSaysWhatItMeansAndWhatToDo) {
  std::set<std::pair<std::string, TopicKind>> seen;
  for (const HelpTopic& topic : help_topics()) {
    EXPECT_TRUE(seen.emplace(topic.name, topic.kind).second) << topic.name << " is there twice";
    EXPECT_FALSE(topic.meaning.empty()) << topic.name;
    ASSERT_GE(topic.parts.size(), 2U) << topic.name;
    const bool is_word = topic.kind == TopicKind::kPolicyWord;
    const bool is_rule = topic.kind == TopicKind::kRule;
    EXPECT_EQ(topic.parts[0].label, is_word ? "Example" : is_rule ? "Without it" : "Typical cause") << topic.name;
    EXPECT_EQ(topic.parts[1].label, is_word ? "Use it when" : "What to do") << topic.name;
    EXPECT_TRUE(topic.parts[1].text.ends_with(".")) << topic.name;
    EXPECT_THAT(topic.text(), AllOf(Not(HasSubstr("](")), Not(HasSubstr("**")), Not(HasSubstr("[Tests"))));
    std::istringstream lines(topic.text());
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << topic.name << ": " << line;
    EXPECT_TRUE(help(topic.name)) << topic.name;
  }
}

TEST(Help, NamesAreTakenAsTheyArePrinted) {
  for (const char* name : {"R45", "r45", "[R45]", "`R45`", " R45, "}) {
    const auto found = help(name);
    ASSERT_TRUE(found) << name;
    EXPECT_THAT(*found, SizeIs(1));
    EXPECT_EQ(found->front().name, "R45");
    EXPECT_EQ(found->front().page, "docs/contract.md#r45");
  }
  for (const char* name : {"3", "exit 3", "Exit 3", "exit code 3"}) EXPECT_EQ(help(name)->front().name, "exit 3");
  EXPECT_EQ(help("allow_missing=")->front().kind, TopicKind::kPolicyWord);
  EXPECT_EQ(help("budget")->front().meaning, help("budget_bytes")->front().meaning);
}

TEST(Help, AWordCanBeACodeAndAnArgument) {
  const auto found = help("dtype");
  ASSERT_TRUE(found);
  ASSERT_THAT(*found, SizeIs(2));
  EXPECT_EQ((*found)[0].kind, TopicKind::kErrorCode);
  EXPECT_EQ((*found)[1].kind, TopicKind::kPolicyWord);
}

TEST(Help, AnUnknownTopicSuggestsNearOnes) {
  const auto near = help("header_overlp");
  ASSERT_FALSE(near);
  EXPECT_EQ(near.error().code, Code::kUsage);
  EXPECT_THAT(near.error().remedy, HasSubstr("header_overlap"));
  EXPECT_FALSE(help(""));
  for (const std::string& name :
       {std::string("nothing like it at all"), std::string(100'000, 'a'), std::string("\0\x1b[31m", 6)}) {
    const auto found = help(name);
    ASSERT_FALSE(found) << name;
    EXPECT_EQ(found.error().remedy, "Run `lading help` to list all topics.");
  }
}

TEST(Help, TheOverviewListsEveryTopic) {
  const std::string overview = help_overview();
  for (const HelpTopic& topic : help_topics()) EXPECT_THAT(overview, HasSubstr(topic.name));
}

TEST(Help, ASummaryIsTheFirstSentence) {
  HelpTopic topic;
  topic.meaning = "One 0.5 thing. Another.";
  EXPECT_EQ(topic.summary(), "One 0.5 thing.");
  topic.meaning = "Only one.";
  EXPECT_EQ(topic.summary(), "Only one.");
}

TEST(Pages, SectionsOfTheThirdLevelAreTopics) {
  const auto topics =
      manual::read_page({"docs/page", TopicKind::kPolicyWord,
                         "# Title\n\nNot a topic.\n\n## Group\n\n### a, b_c\n\nIt is\nso, see [x](y#z).\n\n"
                         "More.\n\n**What to do:** Do [it](z).\n\n[Tests of a](t)\n## Next\n\nText.\n"});
  ASSERT_THAT(topics, SizeIs(2));
  EXPECT_EQ(topics[0].name, "a");
  EXPECT_EQ(topics[1].name, "b_c");
  EXPECT_EQ(topics[1].group, "Group");
  EXPECT_EQ(topics[1].meaning, "It is so, see x. More.");
  EXPECT_EQ(topics[1].page, "docs/page#a-b_c");
  ASSERT_THAT(topics[1].parts, SizeIs(1));
  EXPECT_EQ(topics[1].parts[0].text, "Do it.");
  EXPECT_THAT(manual::read_page({"docs/page", TopicKind::kRule, ""}), IsEmpty());
}

}  // namespace
}  // namespace lading
