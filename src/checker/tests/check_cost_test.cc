// What a check costs. The limits are loose, for slow and busy machines and sanitizers; what is measured is printed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "checker/checker.h"
#include "layout/region.h"

namespace lading::checker {
namespace {

using mapping::Expression;

double seconds_to_check(const Plan& plan, std::string_view what) {
  const auto begin = std::chrono::steady_clock::now();
  const auto checked = check_plan(plan);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_TRUE(checked.has_value()) << checked.error().front().text();
  fmt::print("  {}: {:.3f} s\n", what, took.count());
  return took.count();
}

// One F32 tensor of n x n made by `expression` of sources of one shape, whole, on one rank.
Plan square(std::uint64_t n, Expression expression, const Shape& source, std::vector<Transfer> transfers) {
  Plan plan;
  const auto keys = expression.keys();
  const std::uint64_t bytes = *source.size_bytes(DType::kF32);
  plan.files = {{"f", bytes * keys.size()}};
  for (std::uint32_t i = 0; i < keys.size(); ++i) {
    plan.sources.push_back({keys[i], 0, {i * bytes, (i + 1) * bytes}, DType::kF32, source});
  }
  Statement s;
  s.name = "w";
  s.shape = {n, n};
  s.expression = std::move(expression);
  s.checkpoint_dtype = DType::kF32;
  plan.statements = {s};
  RankPlan r;
  r.owned_bytes = r.read_bytes = n * n * 4;
  r.reads = {{0, 0, n * n * 4, 1, 0, {}}};
  for (std::uint32_t t = 0; t < transfers.size(); ++t) r.reads[0].transfers.push_back({0, 0, t});
  r.regions = {layout::region_of(Shape({n, n}), {}, layout::Mesh(), 0)};
  r.destinations = {{0, 0, 0, "", "cpu", "", n * n * 4, n * n, std::move(transfers), {}, {}}};
  plan.ranks = {r};
  return plan;
}

// A BF16 tensor of n x n made by `movement` of the codes of one key, whole, on one rank; a scale to 32 codes, all of
// which are read.
struct PackedSquare {
  std::uint64_t n = 0;
  DType dtype = DType::kU8;  // of the key: U4 codes
  Shape codes;
  Shape block;
  Shape scales;
};

template <class Movement>
Plan packed_square(const PackedSquare& of, std::vector<Transfer> transfers, const Movement& movement) {
  Decoding decoding;
  decoding.code = CodeType::kU4;
  decoding.per_element = bits(of.dtype) / 4;
  const std::uint64_t payload = of.n * of.n / 2;
  const std::uint64_t scales = *of.scales.size_bytes(DType::kBF16);
  Plan plan =
      square(of.n, movement(Expression::dequantize("k", "s", of.block, {}, decoding)), {}, std::move(transfers));
  plan.files[FileId(0)].size_bytes = payload + scales;
  plan.sources = {{"k", 0, {0, payload}, of.dtype, of.codes, plan::Scaling{1, of.block, {}, decoding}},
                  {"s", 0, {payload, payload + scales}, DType::kBF16, of.scales}};
  Statement& s = plan.statements[0];
  s.checkpoint_dtype = of.dtype;
  s.storage = s.compute = DType::kBF16;
  RankPlan& r = plan.ranks[0];
  r.owned_bytes = r.destinations[0].buffer_bytes = of.n * of.n * 2;
  r.reads[0].size_bytes = payload;
  r.read_bytes = payload + scales;
  r.scale_reads = {{0, {payload, payload + scales}, {}}};
  plan.budget_bytes = r.staging_bytes = scales;
  return plan;
}

TEST(CheckCost, R64_a_hundred_thousand_destinations) {
  constexpr std::uint64_t kTensors = 100'000;
  Plan plan;
  plan.files = {{"f", kTensors * 64}};
  RankPlan r;
  for (std::uint64_t i = 0; i < kTensors; ++i) {
    const std::string name = fmt::format("model.layers.{:06}.mlp.weight", i);
    plan.sources.push_back({name, 0, {i * 64, i * 64 + 64}, DType::kF32, Shape({4, 4})});
    Statement s;
    s.name = name;
    s.shape = {4, 4};
    s.expression = Expression::source(name);
    s.checkpoint_dtype = DType::kF32;
    plan.statements.push_back(s);
    const StatementId id(i);
    r.destinations.push_back({id, id, 0, "", "cpu", "", 64, 16, {{SourceId(i), i * 64, 0, 16, {}, 0}}, {}, {}});
  }
  r.regions = {layout::region_of(Shape({4, 4}), {}, layout::Mesh(), 0)};
  r.reads = {{0, 0, kTensors * 64, 1, 0, {}}};
  for (std::uint64_t i = 0; i < kTensors; ++i) r.reads[0].transfers.push_back({DestinationId(i), 0, 0});
  r.read_bytes = r.owned_bytes = kTensors * 64;
  plan.ranks = {r};
  EXPECT_LT(seconds_to_check(plan, "100,000 plain destinations"), 2);
}

TEST(CheckCost, R41_transposed_4096_squared) {
  constexpr std::uint64_t kN = 4096;
  const Transfer t{0, 0, 0, 1, {{kN, 4, kN * 4}, {kN, kN * 4, 4}}, 0};
  const Plan plan = square(kN, Expression::permute(Expression::source("k"), {1, 0}), Shape({kN, kN}), {t});
  EXPECT_LT(seconds_to_check(plan, "transposed 4096 x 4096"), 2);
}

TEST(CheckCost, R41_interleaved_element_by_element) {
  constexpr std::uint64_t kN = 4096;
  constexpr std::uint64_t kHalf = kN * kN / 2;
  const auto e =
      Expression::reshape(Expression::stack(1, {Expression::source("a"), Expression::source("b")}), {kN, kN});
  const Transfer a{0, 0, 0, 1, {{kHalf, 4, 8}}, 0};
  const Transfer b{1, kHalf * 4, 4, 1, {{kHalf, 4, 8}}, 0};
  EXPECT_LT(seconds_to_check(square(kN, e, Shape({kHalf}), {a, b}), "two sources interleaved, 16.8 M elements"), 20);
}

TEST(CheckCost, R41_packed_codes_are_one_run) {
  constexpr std::uint64_t kN = 65536;
  const Transfer t{0, 0, 0, kN * kN, {}, 0};
  const PackedSquare packed{kN, DType::kU8, {kN, kN / 2, 2}, {1, 16, 2}, {kN, kN / 32}};
  const Plan plan = packed_square(packed, {t}, [](Expression e) {
    return Expression::reshape(std::move(e), {kN, kN});
  });
  EXPECT_LT(seconds_to_check(plan, "packed 65536 x 65536"), 1);
}

// A column is every other code of every row: the transfers of even columns and of odd ones interleave in the tensor.
TEST(CheckCost, R41_packed_codes_transposed_cost_a_step_for_each_row) {
  constexpr std::uint64_t kN = 32768;
  std::vector<Transfer> transfers;
  for (const std::uint8_t code : {std::uint8_t{0}, std::uint8_t{1}}) {
    transfers.push_back({0, 0, code * kN * 2, 1, {{kN / 2, 1, kN * 4}, {kN, kN / 2, 2}}, 0, code});
  }
  const PackedSquare packed{kN, DType::kU8, {kN, kN / 2, 2}, {1, 16, 2}, {kN, kN / 32}};
  const Plan plan = packed_square(packed, transfers, [](Expression e) {
    return Expression::permute(Expression::reshape(std::move(e), {kN, kN}), {1, 0});
  });
  EXPECT_LT(seconds_to_check(plan, "packed 32768 x 32768, transposed"), 2);
}

// As GPTQ has it: elements pack 8 rows of a column, and the tensor is transposed. Runs are of 8 codes.
TEST(CheckCost, R41_codes_packed_along_the_transposed_dim) {
  constexpr std::uint64_t kN = 32768;
  const Transfer t{0, 0, 0, 8, {{kN, 4, kN * 2}, {kN / 8, kN * 4, 16}}, 0};
  const PackedSquare packed{kN, DType::kI32, {kN / 8, kN, 8}, {4, 1, 8}, {kN / 32, kN}};
  const Plan plan = packed_square(packed, {t}, [](Expression e) {
    return Expression::reshape(Expression::permute(std::move(e), {1, 0, 2}), {kN, kN});
  });
  EXPECT_LT(seconds_to_check(plan, "packed along dim 0, 32768 x 32768, transposed"), 2);
}

TEST(CheckCost, R53_columns_of_a_shard) {
  constexpr std::uint64_t kN = 8192;
  Plan plan = square(kN, Expression::source("k"), Shape({kN, kN}), {{0, kN * 2, 0, kN / 2, {{kN, kN * 4, kN * 2}}, 0}});
  plan.mesh = layout::Mesh({{"tp", 2}});
  layout::Cut cut;
  cut.axes = {0};
  cut.dim = 1;
  plan.statements[0].placement.slots[0].cuts = {cut};
  RankPlan& r = plan.ranks[0];
  r.rank = 1;
  r.owned_bytes = r.read_bytes = kN * kN * 2;
  r.reads = {{0, kN * 2, kN * 2, kN, kN * 4, {{0, 0, 0}}}};
  r.destinations[0].buffer_bytes = kN * kN * 2;
  r.destinations[0].owned_elems = kN * kN / 2;
  r.regions = {layout::region_of(Shape({kN, kN}), {cut}, plan.mesh, 1)};
  EXPECT_LT(seconds_to_check(plan, "half the columns of 8192 x 8192"), 1);
}

}  // namespace
}  // namespace lading::checker
