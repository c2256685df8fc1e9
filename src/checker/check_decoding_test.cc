// Decodings of packed sources, on plans made by hand. Random ones: check_mutation_test.cc.
#include "checker/check_decoding.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checker/check_bytes.h"

namespace lading::checker {
namespace {

// A key of codes with scales and zero points beside it, as GPTQ has it: 16 x 6 codes, 8 to an element along dim 0, in
// groups of 8 of dim 0; zero points packed along dim 1.
struct Packed {
  DType dtype = DType::kI32;
  Shape shape = {2, 6, 8};  // of codes
  Shape block = {1, 1, 8};
  Shape scales = {2, 6};
  DType scales_dtype = DType::kF16;
  Shape zeros = {2, 1};
  DType zeros_dtype = DType::kI32;
  Shape tensor_scale = {1};
  DType tensor_scale_dtype = DType::kF32;
  Decoding decoding = {CodeType::kU4, 8, {}, 1, 1, TensorScale::kFactor, {}};

  [[nodiscard]] Plan plan() const {
    Plan plan;
    plan.files = {{"a.safetensors", 100'000}, {"b.safetensors", 100'000}};
    plan.sources = {{"p", 0, {}, dtype, shape, plan::Scaling{1, block, {}, decoding, 2, 3}},
                    {"s", 1, {}, scales_dtype, scales},
                    {"z", 1, {}, zeros_dtype, zeros},
                    {"t", 1, {}, tensor_scale_dtype, tensor_scale}};
    std::uint64_t end = 100;
    for (Source& source : plan.sources) {
      source.bytes = {end, end + size_of_source(source).value_or(0)};
      end = source.bytes.end;
    }
    return plan;
  }
};

std::string verdict_of(const Plan& plan) {
  const auto problem = find_scaling_problem(plan, plan.sources[SourceId(0)]);
  if (!problem) return "good";
  EXPECT_EQ(problem->rule, "R48");
  return problem->message;
}
// Groups along the second dim of [2, 6, 8], in blocks of 2 elements.
struct Grouped {
  Packed packed;
  Shape groups = {48};
  DType dtype = DType::kI32;

  Grouped() {
    packed.block = {1, 2, 8};
    packed.scales = {2, 3};
    packed.decoding.groups_dim = 1;
  }
  [[nodiscard]] Plan plan() const {
    Plan plan = packed.plan();
    Source groups_source{"g", 1, {}, dtype, groups};
    groups_source.bytes = {plan.sources[SourceId(3)].bytes.end, 0};
    groups_source.bytes.end = groups_source.bytes.begin + size_of_source(groups_source).value_or(0);
    plan.sources.push_back(groups_source);
    plan.sources[SourceId(0)].scaling->groups = SourceId(4);
    return plan;
  }
};

std::string verdict_of(const Packed& packed) { return verdict_of(packed.plan()); }

TEST(CheckDecoding, R48_GroupsAreOneForEachCodeAlongTheirDim) {
  EXPECT_EQ(verdict_of(Grouped().plan()), "good");
  const auto verdict = [](const std::function<void(Grouped&)>& change) {
    Grouped made;
    change(made);
    return verdict_of(made.plan());
  };
  EXPECT_EQ(verdict([](Grouped& g) { g.groups = {47}; }),
            "the groups of \"p\" are not one for each code along their dim");
  EXPECT_EQ(verdict([](Grouped& g) {
              g.groups = {6, 8};
            }),
            "the groups of \"p\" are not one for each code along their dim");
  EXPECT_EQ(verdict([](Grouped& g) { g.packed.decoding.groups_dim = 0; }),
            "the groups of \"p\" are not one for each code along their dim");
  EXPECT_EQ(verdict([](Grouped& g) { g.packed.decoding.groups_dim = 2; }),
            "the groups of \"p\" are along a dim that the key does not have");
  EXPECT_EQ(verdict([](Grouped& g) { g.dtype = DType::kU32; }), "the groups of \"p\" are of another dtype");
  EXPECT_EQ(verdict([](Grouped& g) {
              g.packed.block = {1, 2, 4};
              g.packed.scales = {2, 6};
            }),
            "the groups of \"p\" are of blocks that cut elements");
  Plan plan = Grouped().plan();
  plan.sources[SourceId(0)].scaling->groups = SourceId::none();
  EXPECT_EQ(verdict_of(plan), "the groups of \"p\" have a dim, but are not there");
  plan.sources[SourceId(0)].scaling->groups = SourceId(9);
  EXPECT_EQ(verdict_of(plan), "the groups of \"p\" are not in the plan");
}

TEST(CheckDecoding, R48_CodesAreTheLastDim) {
  EXPECT_EQ(verdict_of(Packed{}), "good");
  EXPECT_EQ(size_of_source(Packed{}.plan().sources[SourceId(0)]), 2 * 6 * 4);
  Packed packed;
  packed.shape = {2, 8, 6};
  EXPECT_EQ(verdict_of(packed), "the codes of \"p\" are not the last dim of its shape");
  packed.shape = {};
  packed.block = {};
  EXPECT_EQ(verdict_of(packed), "the codes of \"p\" are not the last dim of its shape");
  packed = Packed{};
  packed.decoding.per_element = 4;
  EXPECT_EQ(verdict_of(packed), "the codes of \"p\" are not as many as an element holds");
  packed = Packed{};
  packed.decoding.code = CodeType::kU8;  // then 4 of them
  EXPECT_EQ(verdict_of(packed), "the codes of \"p\" are not as many as an element holds");
}

TEST(CheckDecoding, R48_ElementsOfCodesAreIntegers) {
  for (const DType dtype : all_dtypes()) {
    const std::string of_dtype(name(dtype));
    if (bits(dtype) % 8 != 0) continue;
    Packed packed;
    packed.dtype = packed.zeros_dtype = dtype;
    packed.decoding.per_element = bits(dtype) / 4;
    packed.shape = {2, 6, bits(dtype) / 4};
    packed.block = {1, 1, bits(dtype) / 4};
    packed.zeros = {2, *blocks_of(6, bits(dtype) / 4)};
    const bool is_integer = (of_dtype[0] == 'I' || of_dtype[0] == 'U');
    EXPECT_EQ(verdict_of(packed),
              is_integer ? "good" : "the codes of \"p\" are packed in elements that are not integers")
        << of_dtype;
  }
}

TEST(CheckDecoding, R48_ScalesMayMergeDimsThatCodesSplit) {
  // As AWQ has it: 8 x 40 codes, 8 to an element along dim 1, groups of 4 of dim 0.
  Packed awq;
  awq.shape = {8, 5, 8};
  awq.block = {4, 1, 1};
  awq.zeros = {2, 5};
  const auto of_scales = [&](const Shape& scales) {
    awq.scales = scales;
    return verdict_of(awq);
  };
  EXPECT_EQ(of_scales({2, 40}), "good");
  EXPECT_EQ(of_scales({2, 1, 40}), "the zero points of \"p\" are not one for each block") << "dim 1 is another";
  awq.decoding.zeros_dim = 2;
  EXPECT_EQ(of_scales({2, 1, 40}), "good");
  EXPECT_EQ(of_scales({2, 5, 8}), "good");
  awq.zeros = {10};
  EXPECT_EQ(of_scales({2, 5, 8}), "the zero points of \"p\" are not one for each block");
  awq.decoding.zeros_dim = 0;
  EXPECT_EQ(of_scales({80}), "good");
  awq.zeros = {2, 8};
  EXPECT_EQ(of_scales({10, 8}), "good") << "the first two dims are one, and 10 in elements of 8 are 2";
  const std::string uneven = "the scales of \"p\" are not one for each block";
  EXPECT_EQ(of_scales({40, 2}), uneven);
  EXPECT_EQ(of_scales({8, 10}), uneven);
  EXPECT_EQ(of_scales({16, 5}), uneven);
  EXPECT_EQ(of_scales({2, 39}), uneven);
  EXPECT_EQ(of_scales({2, 40, 2}), uneven);
  EXPECT_EQ(of_scales({}), uneven);
  awq.shape = {8, 0, 8};  // whatever the others are
  awq.decoding.zeros_dim = 1;
  awq.zeros = {2, 0};
  EXPECT_EQ(of_scales({2, 0}), "good");
  awq.zeros = {0};
  awq.decoding.zeros_dim = 0;
  EXPECT_EQ(of_scales({0}), "good");
  EXPECT_EQ(of_scales({3, 0}), uneven);
}

TEST(CheckDecoding, R48_ZeroPointsAreOneForEachBlock) {
  Packed packed;  // scales [2, 6]
  const auto of_zeros = [&](const Shape& zeros, std::size_t dim) {
    packed.zeros = zeros;
    packed.decoding.zeros_dim = dim;
    return verdict_of(packed);
  };
  const std::string uneven = "the zero points of \"p\" are not one for each block";
  EXPECT_EQ(of_zeros({2, 1}, 1), "good");
  EXPECT_EQ(of_zeros({1, 6}, 0), "good");
  EXPECT_EQ(of_zeros({6}, 0), "good");
  EXPECT_EQ(of_zeros({1, 6}, 1), uneven);
  EXPECT_EQ(of_zeros({2, 1}, 0), uneven);
  EXPECT_EQ(of_zeros({2, 6}, 1), uneven);
  EXPECT_EQ(of_zeros({2, 2}, 1), uneven);
  EXPECT_EQ(of_zeros({2, 1}, 2), "the zero points of \"p\" are packed along a dim that the scales do not have");
  packed = Packed{};
  packed.zeros_dtype = DType::kU32;
  EXPECT_EQ(verdict_of(packed), "the zero points of \"p\" are packed in elements of another dtype");
  packed = Packed{};
  packed.decoding.zero = 65536;
  EXPECT_EQ(verdict_of(packed), "the codes of \"p\" have a zero that is too large");
}

TEST(CheckDecoding, R48_ScalesMayStandInAnotherOrder) {
  Packed packed;
  packed.shape = {8, 5, 8};
  packed.block = {4, 1, 1};
  packed.scales = {2, 40};
  packed.zeros = {2, 5};
  const auto of_order = [&](std::vector<std::size_t> order) {
    packed.decoding.scale_order = std::move(order);
    return verdict_of(packed);
  };
  EXPECT_EQ(of_order({0, 2, 4, 6, 1, 3, 5, 7}), "good");
  EXPECT_EQ(of_order({1, 0}), "good");
  EXPECT_EQ(of_order({0, 2, 4, 6, 1, 3, 5, 8}), "the scales of \"p\" have an order that is not a permutation");
  EXPECT_EQ(of_order({0, 2, 4, 6, 1, 3, 5, 5}), "the scales of \"p\" have an order that is not a permutation");
  EXPECT_EQ(of_order({1, 0, 2}), "the scales of \"p\" have an order that does not fit their number");
  packed.shape = {8};
  packed.block = {1};
  packed.scales = {8};
  packed.zeros = {1};
  packed.decoding.zeros_dim = 0;
  EXPECT_EQ(of_order({}), "good");
  EXPECT_EQ(of_order({1, 0}), "the scales of \"p\" have an order that does not fit their number")
      << "a rank may need one of a run";
}

TEST(CheckDecoding, R48_OtherSourcesAreOfTheCheckpointAndNotScaled) {
  struct Part {
    SourceId id;
    std::string name;
  };
  for (const auto& [id, part] :
       std::vector<Part>{{1, "the scales"}, {2, "the zero points"}, {3, "the tensor scales"}}) {
    Plan plan = Packed{}.plan();
    plan.files.push_back({"c.safetensors", 100'000, 0, 1});
    plan.sources[id].file = 2;
    EXPECT_EQ(verdict_of(plan), part + " of \"p\" belong to another checkpoint");
    plan = Packed{}.plan();
    plan.sources[id].scaling = plan::Scaling{0, {1, 1}, {}};
    EXPECT_EQ(verdict_of(plan), part + " of \"p\" have scales themselves");
    plan = Packed{}.plan();
    plan::Scaling& scaling = *plan.sources[SourceId(0)].scaling;
    SourceId* const ids[] = {&scaling.scales, &scaling.zeros, &scaling.tensor_scale};
    *ids[id.number() - 1] = SourceId(4);
    EXPECT_EQ(verdict_of(plan), part + " of \"p\" are not in the plan");
  }
  Plan plan = Packed{}.plan();
  plan.sources[SourceId(0)].scaling->zeros = plan.sources[SourceId(0)].scaling->tensor_scale = SourceId::none();
  EXPECT_EQ(verdict_of(plan), "good");
  plan.sources[SourceId(0)].scaling->scales = SourceId::none();
  EXPECT_EQ(verdict_of(plan), "the scales of \"p\" are not in the plan");
}

TEST(CheckDecoding, R48_TheTensorScaleIsOneNumber) {
  Packed packed;
  packed.tensor_scale = {};
  EXPECT_EQ(verdict_of(packed), "good");
  packed.tensor_scale = {2};
  EXPECT_EQ(verdict_of(packed), "the tensor scale of \"p\" is not one F32 number");
  packed.tensor_scale = {0};
  EXPECT_EQ(verdict_of(packed), "the tensor scale of \"p\" is not one F32 number");
  packed = Packed{};
  packed.tensor_scale_dtype = DType::kI32;
  EXPECT_EQ(verdict_of(packed), "the tensor scale of \"p\" is not one F32 number");
}

TEST(CheckDecoding, R48_FloatsHaveNoZero) {
  Packed packed;
  packed.dtype = DType::kF8E4M3;
  packed.decoding.code.reset();
  EXPECT_EQ(verdict_of(packed), "the elements of \"p\" are not codes, but have a zero");
  packed.decoding.zero = 0;
  EXPECT_EQ(verdict_of(packed), "the elements of \"p\" are not codes, but have a zero");
  Plan plan = packed.plan();
  plan.sources[SourceId(0)].scaling->zeros = SourceId::none();
  EXPECT_EQ(verdict_of(plan), "good");
}

TEST(CheckDecoding, R23_R48_BytesMayBeScales) {
  const auto fits = [](DType scales, std::optional<DType> said, DType to = DType::kBF16) {
    Packed packed;
    packed.scales_dtype = scales;
    packed.decoding.scale_dtype = said;
    const Plan plan = packed.plan();
    std::string verdict = verdict_of(plan);
    if (verdict != "good") return verdict;
    return std::string(values_fit(plan, plan.sources[SourceId(0)], to) ? "good" : "no cast");
  };
  EXPECT_EQ(fits(DType::kF16, {}), "good");
  EXPECT_EQ(fits(DType::kF16, {}, DType::kF32), "good");
  EXPECT_EQ(fits(DType::kF16, {}, DType::kI32), "no cast");
  EXPECT_EQ(fits(DType::kF16, {}, DType::kF8E4M3), "no cast");
  EXPECT_EQ(fits(DType::kF8E4M3, {}), "good");
  EXPECT_EQ(fits(DType::kF8E8M0, {}), "good");
  EXPECT_EQ(fits(DType::kF8E5M2, {}), "no cast");
  EXPECT_EQ(fits(DType::kF64, {}), "no cast");
  EXPECT_EQ(fits(DType::kU8, {}), "no cast");
  EXPECT_EQ(fits(DType::kU8, DType::kF8E8M0), "good");
  const std::string other = "the scales of \"p\" cannot be read as the dtype that the plan gives";
  EXPECT_EQ(fits(DType::kU8, DType::kF8E4M3), other);
  EXPECT_EQ(fits(DType::kF8E8M0, DType::kF8E8M0), other);
  EXPECT_EQ(fits(DType::kI8, DType::kF8E8M0), other);
}

}  // namespace
}  // namespace lading::checker
