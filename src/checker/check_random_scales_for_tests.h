// For tests: PlanMaker's quantized sources (see check_random_plan_for_tests.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "checker/check_random_plan_for_tests.h"

namespace lading::checker::naive {

inline SourceId PlanMaker::add_companion(const Source& of, std::string_view suffix, DType dtype, const Indices& dims) {
  Source source = of;
  source.scaling.reset();
  source.key += suffix;
  source.dtype = dtype;
  source.shape = Shape(dims);
  const FileId other = FileId(of_scales_() % plan_.files.size());
  if (plan_.files[other].checkpoint == plan_.files[of.file].checkpoint) source.file = other;
  plan_.sources.push_back(source);
  return SourceId(plan_.sources.size() - 1);
}

inline mapping::Expression PlanMaker::scaled(Source source) {
  const auto some = [&](std::uint64_t n) { return of_scales_() % n; };
  std::vector<std::uint64_t> block;
  for (const std::uint64_t dim : source.shape)
    block.push_back(1 + some(some(3) == 0 ? dim + 2 : std::max<std::uint64_t>(dim / 2, 2)));
  const bool has_groups = code_ && block.size() >= 2 && some(3) == 0;
  if (has_groups) block.back() = std::max<std::uint64_t>(1, indices_of(source.shape).back());
  const Indices grid = grid_of(source.shape, Shape(block));
  source.scaling = plan::Scaling{SourceId::none(), Shape(block), {}};
  plan::Scaling& scaling = *source.scaling;
  Decoding& decoding = scaling.decoding;
  decoding.code = code_;
  if (code_) decoding.per_element = bits(source.dtype) / width_of(source);
  if (some(4) == 0) scaling.product = some(2) == 0 ? DType::kBF16 : DType::kF32;

  Indices dims = some(2) == 0 ? grid : without_ones(grid);
  if (code_ && some(2) == 0) {
    const std::set<Indices> merges = merges_of(dims);
    dims = *std::next(merges.begin(), static_cast<std::ptrdiff_t>(some(merges.size())));
  }
  const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0, DType::kF8E4M3, DType::kU8};
  const DType dtype = dtypes[some(6)];
  if (dtype == DType::kU8) decoding.scale_dtype = DType::kF8E8M0;
  scaling.scales = add_companion(source, "_scale", dtype, dims);
  if (some(3) == 0) scaling.tensor_scale = add_companion(source, "_of_all", DType::kF32, Indices(some(3), 1));
  if (some(3) == 0) decoding.tensor_scale = TensorScale::kDivisor;
  if (code_ && !dims.empty() && some(2) == 0) {
    decoding.zeros_dim = some(dims.size());
    Indices zeros = dims;
    zeros[decoding.zeros_dim] = (dims[decoding.zeros_dim] + decoding.per_element - 1) / decoding.per_element;
    scaling.zeros = add_companion(source, "_zero", source.dtype, some(2) == 0 ? zeros : without_ones(zeros));
  }
  if (code_ && some(2) == 0) decoding.zero = some(3) == 0 ? 65535 : some(9);
  for (const std::size_t run : {std::size_t{8}, std::size_t{4}, std::size_t{3}, std::size_t{2}}) {
    if (has_groups || grid.size() < 2 || grid.back() % run != 0 || some(2) == 0) continue;
    decoding.scale_order.resize(run);
    for (std::size_t i = 0; i < run; ++i) decoding.scale_order[i] = i;
    std::shuffle(decoding.scale_order.begin(), decoding.scale_order.end(), of_scales_);
    break;
  }
  if (has_groups) {
    decoding.groups_dim = some(block.size() - 1);
    const Indices codes = indices_of(source.shape);
    scaling.groups = add_companion(source, "_groups", DType::kI32, {codes[decoding.groups_dim] * codes.back()});
  }
  plan_.sources.push_back(source);
  mapping::Expression e = mapping::Expression::dequantize(source.key, *key_of(scaling.scales, plan_), Shape(block),
                                                          scaling.product, decoding);
  e.zeros = *key_of(scaling.zeros, plan_);
  e.tensor_scale = *key_of(scaling.tensor_scale, plan_);
  e.groups = *key_of(scaling.groups, plan_);
  return e;
}

inline mapping::Expression PlanMaker::packed(const Indices& dims) {
  using mapping::Expression;
  const auto some = [&](std::uint64_t n) { return of_scales_() % n; };
  Source source = source_of({});
  source.scaling.emplace().decoding.code = code_;
  const std::uint64_t together = bits(dtype_) / width_of(source);
  if (!dims.empty() && dims.back() % together == 0 && some(3) != 0) {
    Indices codes = dims;
    codes.back() /= together;
    codes.push_back(together);
    source.shape = Shape(codes);
    return Expression::reshape(scaled(std::move(source)), Shape(dims));
  }
  const std::uint64_t before = some(2) == 0 ? 0 : some(2 * together);
  const std::uint64_t wanted = product(dims);
  const std::uint64_t elems = (before + wanted + together - 1) / together + some(2);
  source.shape = elems % 2 == 0 && some(2) == 0 ? Shape({2, elems / 2, together}) : Shape({elems, together});
  Expression flat = Expression::reshape(scaled(std::move(source)), Shape({elems * together}));
  return Expression::reshape(Expression::slice(std::move(flat), 0, before, before + wanted), Shape(dims));
}

}  // namespace lading::checker::naive
