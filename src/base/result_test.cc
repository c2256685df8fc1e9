#include "lading/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace lading {
namespace {

Error not_found() { return Error(Code::kNotFound, "gone"); }

Result<int> half(int number) {
  if (number % 2 != 0) return fail(Error(Code::kUsage, "odd"));
  return number / 2;
}

TEST(Result, HoldsAValueOrAnError) {
  const Result<int> good = 7;
  EXPECT_TRUE(good.has_value());
  EXPECT_TRUE(static_cast<bool>(good));
  EXPECT_EQ(*good, 7);
  EXPECT_EQ(good.value(), 7);
  const Result<int> bad = fail(not_found());
  EXPECT_FALSE(bad.has_value());
  EXPECT_FALSE(static_cast<bool>(bad));
  EXPECT_EQ(bad.error().code, Code::kNotFound);
  EXPECT_EQ(bad.error().message, "gone");
}

TEST(Result, ArrowReachesTheValue) {
  Result<std::string> text = std::string("abc");
  text->push_back('d');
  EXPECT_EQ(text->size(), 4U);
  EXPECT_EQ(*text, "abcd");
}

TEST(Result, ValueAndErrorOfTheSameTypeAreToldApart) {
  const Result<std::string, std::string> good = std::string("value");
  const Result<std::string, std::string> bad = fail(std::string("error"));
  ASSERT_TRUE(good.has_value());
  EXPECT_EQ(*good, "value");
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error(), "error");
}

TEST(Result, MoveOnlyValuesMoveOut) {
  Result<std::unique_ptr<int>> made = std::make_unique<int>(3);
  ASSERT_TRUE(made.has_value());
  const std::unique_ptr<int> taken = *std::move(made);
  EXPECT_EQ(*taken, 3);
  Result<std::unique_ptr<int>> other = std::make_unique<int>(4);
  EXPECT_EQ(*std::move(other).value(), 4);
}

TEST(Result, MoveOnlyErrorsMoveOut) {
  Result<int, std::unique_ptr<int>> bad = fail(std::make_unique<int>(5));
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(*std::move(bad).error(), 5);
  Result<void, std::unique_ptr<int>> worse = fail(std::make_unique<int>(6));
  ASSERT_FALSE(worse.has_value());
  EXPECT_EQ(*std::move(worse).error(), 6);
}

TEST(Result, VoidIsGoodUnlessItFailed) {
  const Result<void> good;
  EXPECT_TRUE(good.has_value());
  const Result<void> bad = fail(not_found());
  EXPECT_FALSE(static_cast<bool>(bad));
  EXPECT_EQ(bad.error().code, Code::kNotFound);
}

TEST(Result, AnErrorBecomesErrors) {
  const Result<int, Errors> bad = fail(not_found());
  ASSERT_FALSE(bad.has_value());
  ASSERT_EQ(bad.error().size(), 1U);
  EXPECT_EQ(bad.error().front().code, Code::kNotFound);
  const Result<void, Errors> nothing = fail(not_found());
  ASSERT_FALSE(nothing.has_value());
  EXPECT_EQ(nothing.error().front().message, "gone");
}

TEST(Result, FailCopiesAnLvalue) {
  const Error error = not_found();
  const Result<int> bad = fail(error);
  EXPECT_EQ(bad.error().message, "gone");
  EXPECT_EQ(error.message, "gone");
}

Result<void> try_all(int& reached, int a, int b) {
  LADING_TRY(half(a));
  ++reached;
  LADING_TRY(half(b));
  ++reached;
  return {};
}

TEST(LadingTry, ReturnsTheFirstErrorAndNothingBehindItRuns) {
  int reached = 0;
  EXPECT_TRUE(try_all(reached, 2, 4).has_value());
  EXPECT_EQ(reached, 2);
  reached = 0;
  const auto second = try_all(reached, 2, 3);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().message, "odd");
  EXPECT_EQ(reached, 1);
  reached = 0;
  EXPECT_FALSE(try_all(reached, 1, 4).has_value());
  EXPECT_EQ(reached, 0);
}

Result<std::string, Errors> quarter(int number) {
  LADING_ASSIGN_OR_RETURN(const int halved, half(number));
  LADING_ASSIGN_OR_RETURN(const int quartered, half(halved));
  return std::to_string(quartered);
}

TEST(LadingAssignOrReturn, GivesTheValueOrTheErrorAsErrors) {
  const auto good = quarter(12);
  ASSERT_TRUE(good.has_value());
  EXPECT_EQ(*good, "3");
  const auto bad = quarter(6);
  ASSERT_FALSE(bad.has_value());
  ASSERT_EQ(bad.error().size(), 1U);
  EXPECT_EQ(bad.error().front().code, Code::kUsage);
}

Result<std::unique_ptr<int>> make(int number) {
  if (number < 0) return fail(Error(Code::kUsage, "negative"));
  return std::make_unique<int>(number);
}

Result<int> sum_of_two(int a, int b) {
  LADING_ASSIGN_OR_RETURN(const auto first, make(a));
  LADING_ASSIGN_OR_RETURN(const auto second, make(b));
  return *first + *second;
}

TEST(LadingAssignOrReturn, MovesMoveOnlyValues) {
  EXPECT_EQ(*sum_of_two(3, 4), 7);
  EXPECT_EQ(sum_of_two(3, -4).error().message, "negative");
}

TEST(LadingCheckDeathTest, AbortsAndSaysWhatFailed) {
  EXPECT_DEATH(LADING_CHECK(1 + 1 == 3), "1 \\+ 1 == 3.*result_test");
  LADING_CHECK(1 + 1 == 2);
}

}  // namespace
}  // namespace lading
