#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "lading/lading_c.h"

namespace lading {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Said {
  int exit_code = 0;
  std::string text;
};

Said ask_help(const char* topic) {
  const std::unique_ptr<lading_handle, void (*)(lading_handle*)> answer(lading_help(topic), lading_free);
  return {lading_exit_code(answer.get()), lading_text(answer.get(), nullptr)};
}

TEST(CApiHelp, TopicsAreFoundByName) {
  const Said rule = ask_help("r45");
  EXPECT_EQ(rule.exit_code, 0);
  EXPECT_THAT(rule.text, AllOf(HasSubstr(R"("schema": "lading.help/1")"), HasSubstr(R"("name": "R45")"),
                               HasSubstr(R"("label": "What to do")")));
  const Said all = ask_help(nullptr);
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_THAT(all.text, AllOf(HasSubstr(R"("name": "header_overlap")"), HasSubstr(R"("name": "exit 7")")));
}

TEST(CApiHelp, AnUnknownTopicIsRefusedWithNearNames) {
  const Said unknown = ask_help("header_overlp");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.text, HasSubstr("Ask for one of these: header_overlap"));
}

}  // namespace
}  // namespace lading
