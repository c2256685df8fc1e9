// For tests: elements of a plan's quantized sources, worked out one by one from the meaning of the plan, and scales
// that a load accepts. Shares no code with the executor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "checker/check_naive_scales_for_tests.h"
#include "device/quantized/quantized_for_tests.h"
#include "plan/plan.h"

namespace lading::exec {

using FileBytes = std::vector<std::vector<std::byte>>;  // by the number of the file

inline DType dtype_of_scales(const plan::Plan& plan, const plan::Scaling& scaling) {
  return scaling.decoding.scale_dtype.value_or(plan.sources[scaling.scales].dtype);
}

/// Makes every scale in the files finite, those of whole tensors other than zero, and every group one that has a scale.
inline void make_scales_finite(const plan::Plan& plan, const plan::Source& source, std::mt19937_64& random,
                               FileBytes& files) {
  const plan::Scaling& scaling = *source.scaling;
  const auto bytes_of = [&](plan::SourceId id) {
    const plan::Source& of = plan.sources[id];
    return std::span(files[of.file.number()]).subspan(of.bytes.begin, of.bytes.size_bytes());
  };
  device::BlockScales made;
  made.dtype = dtype_of_scales(plan, scaling);
  const std::span<std::byte> scales = bytes_of(scaling.scales);
  device::quantized::make_scales(random, scales.size() * 8 / bits(made.dtype), made);
  std::copy_n(made.values.begin(), scales.size(), scales.begin());  // unlike memcpy, defined for no scales
  if (!scaling.groups.is_none()) {
    const std::uint64_t count = checker::naive::grid_of(source.shape, scaling.block)[scaling.decoding.groups_dim];
    const std::span<std::byte> groups = bytes_of(scaling.groups);
    for (std::size_t at = 0; at < groups.size(); at += sizeof(std::uint32_t)) {
      const auto group = static_cast<std::uint32_t>(random() % count);
      std::memcpy(groups.data() + at, &group, sizeof(group));
    }
  }
  if (scaling.tensor_scale.is_none()) return;
  const auto of_tensor = static_cast<float>(device::quantized::make_tensor_scale(random));
  std::memcpy(bytes_of(scaling.tensor_scale).data(), &of_tensor, sizeof(of_tensor));
}

class QuantizedElements {
 public:
  QuantizedElements(const plan::Plan& plan, const FileBytes& files) : plan_(plan), files_(files) {}

  /// The bits of element `elem` of the source in this dtype.
  [[nodiscard]] std::uint64_t result(const plan::Source& source, std::uint64_t elem, DType storage) const {
    const plan::Scaling& scaling = *source.scaling;
    const Decoding& decoding = scaling.decoding;
    const std::uint64_t block = block_of(source, elem);
    device::quantized::Made made;
    made.from = source.dtype;
    made.to = storage;
    made.scales.dtype = dtype_of_scales(plan_, scaling);
    made.scales.values = scale_bytes(scaling, place_of(block, decoding.scale_order));
    made.scales.product = scaling.product;
    made.scales.code = decoding.code;
    made.scales.zero = decoding.zero;
    if (!scaling.zeros.is_none()) made.scales.zeros = {std::byte(zero_point(source, block))};
    if (!scaling.tensor_scale.is_none()) made.scales.tensor_scale = tensor_scale(scaling);
    made.scales.tensor_scale_is = decoding.tensor_scale;
    return device::quantized::result_of(made, code_of(source, elem, checker::naive::width_of(source)), 0);
  }

 private:
  // The one of an element, or of those that its group may name the one that it does name.
  [[nodiscard]] std::uint64_t block_of(const plan::Source& source, std::uint64_t elem) const {
    const std::set<std::uint64_t> all = checker::naive::scales_of(source, elem);
    if (source.scaling->groups.is_none()) return *all.begin();
    const auto dims = checker::naive::indices_of(source.shape);
    const auto index = checker::naive::unravel(elem, dims);
    const std::uint64_t at = index[source.scaling->decoding.groups_dim] * dims.back() + index.back();
    std::uint32_t group = 0;
    std::memcpy(&group, bytes_of(plan_.sources[source.scaling->groups]) + at * sizeof(group), sizeof(group));
    return *std::next(all.begin(), static_cast<std::ptrdiff_t>(group));
  }

  static std::uint64_t place_of(std::uint64_t block, const std::vector<std::size_t>& order) {
    return order.empty() ? block : block - block % order.size() + order[block % order.size()];
  }

  [[nodiscard]] const std::byte* bytes_of(const plan::Source& source) const {
    return files_[source.file.number()].data() + source.bytes.begin;
  }

  // Number `at` of codes of so many bits that lie side by side.
  [[nodiscard]] std::uint64_t code_of(const plan::Source& source, std::uint64_t at, std::uint64_t width) const {
    const auto byte = std::to_integer<std::uint64_t>(bytes_of(source)[at * width / 8]);
    std::uint64_t code = 0;
    for (std::uint64_t bit = 0; bit < width; ++bit) code |= (byte >> (at * width % 8 + bit) & 1) << bit;
    return code;
  }

  [[nodiscard]] std::vector<std::byte> scale_bytes(const plan::Scaling& scaling, std::uint64_t at) const {
    const plan::Source& scales = plan_.sources[scaling.scales];
    const std::uint64_t width_bytes = bits(scales.dtype) / 8;
    const std::byte* const begin = bytes_of(scales) + at * width_bytes;
    return {begin, begin + width_bytes};
  }

  [[nodiscard]] std::uint64_t zero_point(const plan::Source& source, std::uint64_t block) const {
    const plan::Scaling& scaling = *source.scaling;
    const std::uint64_t together = bits(source.dtype) / checker::naive::width_of(source);
    const auto dims = checker::naive::indices_of(plan_.sources[scaling.scales].shape);
    const std::uint64_t index = checker::naive::unravel(block, dims)[scaling.decoding.zeros_dim];
    const std::uint64_t element = checker::naive::zero_of(plan_, source, block);
    return code_of(plan_.sources[scaling.zeros], element * together + index % together,
                   checker::naive::width_of(source));
  }

  [[nodiscard]] double tensor_scale(const plan::Scaling& scaling) const {
    float scale = 0;
    std::memcpy(&scale, bytes_of(plan_.sources[scaling.tensor_scale]), sizeof(scale));
    return double{scale};
  }

  const plan::Plan& plan_;
  const FileBytes& files_;
};

}  // namespace lading::exec
