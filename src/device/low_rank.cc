// Instruction sets without fma use std::fma, one element at a time: slowly, to the same bits.
#include "device/low_rank.h"

#include <algorithm>
#include <cmath>

#include "device/random_tail.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/low_rank.cc"
#include <hwy/foreach_target.h>  // includes this file again for each instruction set
#include <hwy/highway.h>

#ifndef LADING_DEVICE_LOW_RANK_ONCE
#define LADING_DEVICE_LOW_RANK_ONCE
namespace lading::device {
namespace {

// Elements of one row of the weight.
struct RowPart {
  const float* factors;  // of the row, rank_step apart
  std::size_t column;    // of the first element
  float* weight;
  std::size_t elems;
};

inline void add_one(const LowRank& factors, const RowPart& part, std::size_t i) {
  float sum = 0;
  for (std::size_t k = 0; k < factors.rank; ++k) {
    sum = std::fma(part.factors[k * factors.rank_step], factors.columns[k * factors.width + part.column + i], sum);
  }
  const float scaled = sum * factors.scale;
  part.weight[i] += scaled;
}

}  // namespace
}  // namespace lading::device
#endif  // LADING_DEVICE_LOW_RANK_ONCE

HWY_BEFORE_NAMESPACE();
namespace lading::device {
namespace HWY_NAMESPACE {
namespace {

#if !HWY_NATIVE_FMA || HWY_TARGET == HWY_SCALAR

void add_to_row(const LowRank& factors, const RowPart& part) {
  for (std::size_t i = 0; i < part.elems; ++i) add_one(factors, part, i);
}

#else

namespace hn = hwy::HWY_NAMESPACE;

// Four sums at a time: an fma waits for the one before it in its sum.
void add_to_row(const LowRank& factors, const RowPart& part) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto scale = hn::Set(d, factors.scale);
  std::size_t i = 0;
  for (; i + 4 * lanes <= part.elems; i += 4 * lanes) {
    auto sum0 = hn::Zero(d);
    auto sum1 = hn::Zero(d);
    auto sum2 = hn::Zero(d);
    auto sum3 = hn::Zero(d);
    for (std::size_t k = 0; k < factors.rank; ++k) {
      const auto factor = hn::Set(d, part.factors[k * factors.rank_step]);
      const float* const columns = factors.columns + k * factors.width + part.column + i;
      sum0 = hn::MulAdd(factor, hn::LoadU(d, columns), sum0);
      sum1 = hn::MulAdd(factor, hn::LoadU(d, columns + lanes), sum1);
      sum2 = hn::MulAdd(factor, hn::LoadU(d, columns + 2 * lanes), sum2);
      sum3 = hn::MulAdd(factor, hn::LoadU(d, columns + 3 * lanes), sum3);
    }
    float* const weight = part.weight + i;
    hn::StoreU(hn::Add(hn::LoadU(d, weight), hn::Mul(sum0, scale)), d, weight);
    hn::StoreU(hn::Add(hn::LoadU(d, weight + lanes), hn::Mul(sum1, scale)), d, weight + lanes);
    hn::StoreU(hn::Add(hn::LoadU(d, weight + 2 * lanes), hn::Mul(sum2, scale)), d, weight + 2 * lanes);
    hn::StoreU(hn::Add(hn::LoadU(d, weight + 3 * lanes), hn::Mul(sum3, scale)), d, weight + 3 * lanes);
  }
  for (; i < part.elems; ++i) add_one(factors, part, i);
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lading::device
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lading::device {
namespace {

HWY_EXPORT(add_to_row);

}  // namespace

void add_low_rank(const LowRank& factors, std::uint64_t first_elem, std::span<float> weight) {
  const DefaultFloatingPoint modes;
  std::size_t row = static_cast<std::size_t>(first_elem / factors.width);
  std::size_t column = static_cast<std::size_t>(first_elem % factors.width);
  while (!weight.empty()) {
    const std::size_t elems = std::min(weight.size(), factors.width - column);
    HWY_DYNAMIC_DISPATCH(add_to_row)(factors, {factors.rows + row * factors.row_step, column, weight.data(), elems});
    weight = weight.subspan(elems);
    column = 0;
    ++row;
  }
}

}  // namespace lading::device
#endif  // HWY_ONCE
