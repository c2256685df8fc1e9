// lading_fold(): the problems of an answer as lines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "lading/lading_c.h"

namespace lading {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Folded {
  int exit_code = 0;
  std::string text;
};

Folded fold(const char* request) {
  lading_handle* handle = lading_fold(request);
  Folded out{lading_exit_code(handle), lading_text(handle, nullptr)};
  lading_free(handle);
  return out;
}

TEST(CApiFold, ProblemsOfOneKindAreOneLine) {
  std::string request = R"({"ok": false, "problems_not_listed": 7, "problems": [)";
  for (int i = 0; i < 9; ++i) {
    request += (i == 0 ? "" : ", ") + std::string(R"({"code": "odd_code", "message": "gone", "tensor": "t.)") +
               std::to_string(i) + R"("})";
  }
  const Folded folded = fold((request + "]}").c_str());
  EXPECT_EQ(folded.exit_code, 0);
  EXPECT_THAT(folded.text,
              AllOf(HasSubstr(R"("9 tensors \"t.{0..8}\": gone [odd_code]")"), HasSubstr(R"("and 7 more problems")")));
}

TEST(CApiFold, WhatIsNoListOfProblemsIsRefused) {
  EXPECT_EQ(fold(nullptr).exit_code, 2);
  EXPECT_NE(fold("{").exit_code, 0);
  EXPECT_THAT(fold("{}").text, HasSubstr("$.problems: the field is missing"));
  EXPECT_THAT(fold(R"({"problems": [{"code": "plan"}]})").text, HasSubstr("$.problems[0].message"));
}

}  // namespace
}  // namespace lading
