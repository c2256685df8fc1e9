#include "cli/help/help_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json_reader.h"
#include "cli/run_for_tests.h"
#include "lading/help.h"

namespace lading::cli {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST(HelpCommand, ExplainsEveryTopic) {
  for (const HelpTopic& topic : help_topics()) {
    const Ran ran = run_with({"help", topic.name});
    EXPECT_EQ(ran.code, 0) << topic.name;
    EXPECT_THAT(ran.err, IsEmpty());
    EXPECT_THAT(ran.out, AllOf(HasSubstr(topic.name), HasSubstr("Page: docs/")));
  }
}

TEST(HelpCommand, WithoutATopicListsAll) {
  const Ran ran = run_with({"help"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.out, AllOf(HasSubstr("header_overlap"), HasSubstr("R45"), HasSubstr("exit 3"), HasSubstr("promote")));
  EXPECT_THAT(run_with({"--help"}).out, HasSubstr("help"));
}

TEST(HelpCommand, SeveralTopicsAndSpellings) {
  const Ran ran = run_with({"help", "header_overlap", "r45"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.out, StartsWith("header_overlap (error code)\n"));
  EXPECT_THAT(ran.out, HasSubstr("\nR45 (rule)\n"));
  EXPECT_EQ(run_with({"help", "exit", "3"}).out, run_with({"help", "3"}).out);
  EXPECT_EQ(run_with({"help", "exit", "code", "3"}).out, run_with({"help", "3"}).out);
}

TEST(HelpCommand, CommandsHaveTheirOwnHelp) {
  EXPECT_EQ(run_with({"help", "inspect"}).out, "`lading inspect --help` describes the command inspect.\n");
  EXPECT_THAT(
      run_with({"help", "plan"}).out,
      AllOf(StartsWith("plan (error code)"), EndsWith("\n\n`lading plan --help` describes the command plan.\n")));
}

TEST(HelpCommand, AnUnknownTopicIsAUsageErrorWithNearNames) {
  const Ran ran = run_with({"help", "R45", "header_overlp", "no\x1bthing"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.out, IsEmpty());
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("Ask for one of these: header_overlap"), HasSubstr("no\\x1bthing"),
                    HasSubstr("Run `lading help` to list all topics."), Not(HasSubstr("Run `lading help usage"))));
}

TEST(HelpCommand, Json) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"help", "--json"}, {"help", "dtype", "--json"}, {"help", "nothing", "--json"}}) {
    const Ran ran = run_with(arguments);
    const auto document = JsonDocument::parse(JsonBuffer::copy_of(ran.out));
    ASSERT_TRUE(document) << ran.out;
    EXPECT_THAT(ran.out, HasSubstr(R"("schema": "lading.help/1")"));
  }
  EXPECT_THAT(run_with({"help", "dtype", "--json"}).out, HasSubstr(R"("kind": "policy word")"));
  EXPECT_THAT(run_with({"help", "nothing", "--json"}).out, HasSubstr(R"("code": "usage")"));
}

TEST(HelpCommand, EveryRefusalSaysOnceWhereHelpIs) {
  const Ran refused = run_with({"inspect", "no/such/path"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, EndsWith("\nRun `lading help not_found` to see what this means and what to do.\n"));
  const Ran json = run_with({"inspect", "no/such/path", "--json"});
  EXPECT_THAT(json.out, Not(HasSubstr("lading help")));
  EXPECT_THAT(run_with({"help", "R45"}).err, IsEmpty());
}

}  // namespace
}  // namespace lading::cli
