// Constants and recipes against what their dtype can hold, and calls against where their inputs are.
#include <gtest/gtest.h>

#include <limits>

#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

World initialised(DType dtype, model::Recipe recipe) {
  World world{{{"w", {2}}}, {param("w", {2}), init(buffer("t", {2}, dtype), std::move(recipe))}};
  world.policy.allow_missing = {"t"};
  return world;
}
std::string filled(DType dtype, double value) { return verdict(initialised(dtype, fill(value))); }

TEST(PlannerValues, R20_AFillMustBeOneOfTheDtypesValues) {
  struct Case {
    DType dtype;
    double value;
    bool fits;
  };
  const Case cases[] = {
      {DType::kU8, 255, true},
      {DType::kU8, 300, false},
      {DType::kU8, -1, false},
      {DType::kI8, -128, true},
      {DType::kI8, -129, false},
      {DType::kI32, 0.5, false},
      {DType::kI32, kNan, false},
      {DType::kI64, 9223372036854775808.0, false},
      {DType::kI64, -9223372036854775808.0, true},
      {DType::kU64, 9223372036854775808.0, true},
      {DType::kU64, 18446744073709551616.0, false},
      {DType::kI32, kInf, false},
      {DType::kBool, 1, true},
      {DType::kBool, 2, false},
      {DType::kBool, 0.5, false},
      {DType::kF16, 0.1, true},
      {DType::kF16, 65519, true},
      {DType::kF16, 65520, false},
      {DType::kF16, -65520, false},
      {DType::kF16, kInf, true},
      {DType::kF16, kNan, true},
      {DType::kBF16, 3e38, true},
      {DType::kBF16, 3.4e38, false},
      {DType::kF32, 3.4e38, true},
      {DType::kF32, 1e39, false},
      {DType::kF64, 1e300, true},
      {DType::kF8E4M3, 464, true},
      {DType::kF8E4M3, 465, false},
      {DType::kF8E4M3, 1e10, false},
      {DType::kF8E4M3, kInf, false},
      {DType::kF8E4M3, kNan, true},
      {DType::kF8E5M2, 61439, true},
      {DType::kF8E5M2, 61440, false},
      {DType::kF8E5M2, -kInf, true},
      {DType::kF8E4M3Fnuz, 247, true},
      {DType::kF8E4M3Fnuz, 248, false},
      {DType::kF8E4M3Fnuz, kInf, false},
      {DType::kF8E5M2Fnuz, 61439, true},
      {DType::kF8E5M2Fnuz, 61440, false},
      {DType::kF8E8M0, 1, true},
      {DType::kF8E8M0, 0, false},
      {DType::kF8E8M0, -1, false},
      {DType::kF8E8M0, kNan, true},
      {DType::kF4, 0, true},
      {DType::kF4, 1, false},
      {DType::kC64, 2.5, true},
      {DType::kC64, 1e39, false},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(filled(c.dtype, c.value), c.fits ? "accepted" : "R20 t") << name(c.dtype) << " " << c.value;
  }
}

TEST(PlannerValues, R20_TheErrorNamesTensorValueAndDtype) {
  const auto plan = initialised(DType::kU8, fill(300)).plan();
  ASSERT_FALSE(plan);
  const std::string text = plan.error().front().text();
  for (const char* part : {"\"t\"", "300", "U8", "R20"}) EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(PlannerValues, R19_RandomRecipesStayWithinTheDtype) {
  EXPECT_EQ(verdict(initialised(DType::kF32, normal(0.02))), "accepted");
  EXPECT_EQ(verdict(initialised(DType::kF16, normal(1e5))), "R19 t");
  EXPECT_EQ(verdict(initialised(DType::kF8E4M3, {.kind = RecipeKind::kUniform, .low = -1000, .high = 0})), "R19 t");
  EXPECT_EQ(verdict(initialised(DType::kF64, {.kind = RecipeKind::kNormal, .mean = 1e39})), "R19 t")
      << "values are drawn in F32";
  EXPECT_EQ(verdict(initialised(DType::kF16, {.kind = RecipeKind::kTruncatedNormal, .low = -kInf, .high = 1})),
            "accepted")
      << "a bound that is never met cuts nothing";
  EXPECT_EQ(verdict(initialised(DType::kF8E8M0, normal(1))), "R19 t") << "a block scale has no sign";
}

TEST(PlannerValues, R20_PadsMustFitToo) {
  World world{{{"ids", {2}, DType::kU8}}, {buffer("t", {4}, DType::kU8)}};
  const auto pad = [](double value) {
    return mapping::Expression::pad(mapping::Expression::source("ids"), 0, 4, value);
  };
  world.build("t", pad(7));
  EXPECT_EQ(verdict(world), "accepted");
  world.mapping.rules.clear();
  world.build("t", pad(0.5));
  EXPECT_EQ(verdict(world), "R20 t");
}

// The head of the first stage is computed from rows of a tensor that only the second stage has.
TEST(PlannerValues, R66_InputsMustBeWhereTheResultIs) {
  World world{{{"rows", {2}}, {"w", {2}}},
              {param("rows", {2}), derived(table("out", {2}), call({"rows"})), param("w", {2})}};
  world.mesh({{"pp", 2}}).place("rows", {owner(0, {1})}).place("out", {owner(0, {0})});
  const auto plan = world.plan();
  ASSERT_EQ(verdict(plan), "R66 out");
  EXPECT_NE(plan.error().front().text().find("\"rows\""), std::string::npos) << plan.error().front().text();
  world.layout.rules[1].placement.slots.front().cuts = {owner(0, {1})};
  EXPECT_EQ(verdict(world), "accepted");
  world.layout.rules.pop_back();
  EXPECT_EQ(verdict(world), "R66 out") << "on both stages, and its input on one";
}

TEST(PlannerValues, R66_LongChainsOfCallsAreOrderedFast) {
  World world{{{"w", {1}}}, {param("w", {1})}};
  constexpr int kCalls = 20'000;
  for (int i = 0; i < kCalls; ++i) {
    // The first by name comes last.
    const std::string input = i + 1 == kCalls ? "w" : fmt::format("t{:05}", i + 1);
    world.tensors.push_back(derived(table(fmt::format("t{:05}", i), {1}), call({input})));
  }
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  ASSERT_EQ(plan->call_order.size(), static_cast<std::size_t>(kCalls));
  EXPECT_EQ(plan->statements[plan->call_order.front()].name, "t19999");
}

// The checker's limit was a quarter of the planner's, and its refusal a bug by its own account.
TEST(PlannerValues, R41_R64_PlannerAndCheckerHaveOneLimit) {
  World world{{{"w", {2}}}, {param("w", {2})}};
  world.tensors.push_back(init(buffer("t", {std::uint64_t{1} << 62}, DType::kU8), fill(1)));
  world.policy.allow_missing = {"t"};
  EXPECT_EQ(verdict(world), "accepted");
  world.tensors.pop_back();
  world.mesh({{"dp", 1}})
      .place("w", {flat_parameter(0, "u", 0, (std::uint64_t{1} << 63) - 1 - (std::uint64_t{1} << 32))});
  EXPECT_EQ(verdict(world), "R64 w") << "of four bytes each they are too many";
}

}  // namespace
}  // namespace lading::planner
