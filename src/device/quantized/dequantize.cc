#include "device/quantized/dequantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "device/quantized/code_value.h"
#include "lading/result.h"

namespace lading::device {
namespace {

constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kBytes = 256;
// More would not stay in a core's cache, nor pay.
constexpr std::uint64_t kMostTableBytes = 128 << 10;
constexpr std::size_t kMostResultBytes = 8;
// Codes that are unpacked at once.
constexpr std::size_t kUnpacked = 4096;

template <class Result>
void look_up_each(std::span<const std::byte> codes, const std::byte* table, std::byte* out) {
  for (std::size_t i = 0; i < codes.size(); ++i) {
    std::memcpy(out + i * sizeof(Result), table + std::to_integer<std::size_t>(codes[i]) * sizeof(Result),
                sizeof(Result));
  }
}

}  // namespace

Dequantizer::Dequantizer(const BlockScales& scales, DType from, DType to)
    : scales_(scales),
      width_bytes_(bits(to) / 8),
      step_(tensor_step(scales, to)),
      dims_(scales.groups.empty() ? grid_dims(scales.shape, scales.block) : all_grid_dims(scales.shape, scales.block)) {
  const DType product = scales.product.value_or(to);
  product_bytes_ = bits(product) / 8;
  first_cast_ = product == DType::kF64 ? nullptr : find_cast(DType::kF64, product);
  cast_ = product == to ? nullptr : find_cast(product, to);
  LADING_CHECK(bits(to) >= 16 && (first_cast_ != nullptr || product == DType::kF64));
  LADING_CHECK(cast_ != nullptr || product == to);
  prepare_values(from, to);
  is_one_multiplication_ = step_ != TensorStep::kTimesScaleToOdd && step_ != TensorStep::kDividesProduct;
  if (!dims_.empty()) row_blocks_ = (dims_.back().extent + dims_.back().block - 1) / dims_.back().block;
  const std::uint64_t most_tables = kMostTableBytes / (values_.size() * std::min<std::size_t>(width_bytes_, 4));
  // A block of several rows comes back with the next row.
  rows_share_blocks_ = dims_.size() >= 2 && dims_[dims_.size() - 2].block > 1 && row_blocks_ <= most_tables;
  worth_a_table_ = values_.size() == kBytes ? 192 : values_.size() + 4;
  table_scales_.assign(std::max(std::min(row_blocks_, most_tables), kAtOnce / values_.size()), kNone);
}

void Dequantizer::prepare_values(DType from, DType to) {
  if (scales_.code) {
    log2_codes_in_byte_ = device::log2_codes_in_byte(*scales_.code);
    for (std::uint32_t i = 0; i < 1U << bits(*scales_.code); ++i) {
      plain_values_.push_back(double{code_value(*scales_.code, i)});
      values_.push_back(plain_values_.back() - static_cast<double>(scales_.zero));
    }
    return;
  }
  LADING_CHECK(bits(from) == 8);
  std::array<std::byte, kBytes> all;
  for (std::size_t i = 0; i < kBytes; ++i) all[i] = static_cast<std::byte>(i);
  values_.resize(kBytes);
  nans_.resize(kBytes * width_bytes_);
  is_nan_.resize(kBytes);
  const Cast widen = find_cast(from, DType::kF64);
  const Cast to_result = find_cast(from, to);
  LADING_CHECK(widen != nullptr && to_result != nullptr);
  widen(all.data(), reinterpret_cast<std::byte*>(values_.data()), kBytes);
  to_result(all.data(), nans_.data(), kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) is_nan_[i] = std::isnan(values_[i]) ? 1 : 0;
  has_nans_ = true;
}

// Rounds products, and puts back what payloads that are NaN become.
void Dequantizer::round(std::span<const double> products, const std::byte* codes, std::byte* out) const {
  const auto* rounded = reinterpret_cast<const std::byte*>(products.data());
  alignas(64) std::array<std::byte, kAtOnce * kMostResultBytes> between;
  if (first_cast_ != nullptr) {
    std::byte* const made = cast_ == nullptr ? out : between.data();
    first_cast_(rounded, made, products.size());
    rounded = made;
  }
  if (cast_ != nullptr) {
    cast_(rounded, out, products.size());
  } else if (first_cast_ == nullptr) {
    std::memcpy(out, rounded, products.size() * product_bytes_);
  }
  if (!has_nans_) return;
  std::uint8_t any = 0;
  for (std::size_t i = 0; i < products.size(); ++i) any |= is_nan_[std::to_integer<std::size_t>(codes[i])];
  if (any == 0) return;
  for (std::size_t i = 0; i < products.size(); ++i) {
    const auto code = std::to_integer<std::size_t>(codes[i]);
    if (is_nan_[code] != 0) std::memcpy(out + i * width_bytes_, nans_.data() + code * width_bytes_, width_bytes_);
  }
}

// What scales of the numbers [scale, scale + count) stand for; at most kAtOnce.
const double* Dequantizer::factors(std::uint64_t scale, std::size_t count) {
  if (scale < factors_begin_ || scale + count > factors_end_) {
    const std::uint64_t end = scales_.first + scale_count(scales_);
    LADING_CHECK(scale >= scales_.first && scale < end);
    // Who goes on where the last ones end will go on further.
    const bool goes_on = scale >= factors_begin_ && scale <= factors_end_;
    factors_ahead_ = goes_on ? std::min(2 * factors_ahead_, kAtOnce) : kFewFactors;
    const std::size_t at_hand = std::min<std::uint64_t>(std::max(count, factors_ahead_), end - scale);
    LADING_CHECK(count <= at_hand);
    scales_at(scales_, scale - scales_.first, std::span(factors_).first(at_hand));
    if (step_ != TensorStep::kNone) {
      for (double& one : std::span(factors_).first(at_hand)) one = factor_of(one, scales_.tensor_scale, step_);
    }
    factors_begin_ = scale;
    factors_end_ = scale + at_hand;
  }
  return factors_.data() + (scale - factors_begin_);
}

// Of elements: what is more than one multiplication.
void Dequantizer::finish_products(std::span<double> values, double factor) const {
  if (step_ == TensorStep::kTimesScaleToOdd) {
    for (double& one : values) one = product_to_odd(one, factor);
    return;
  }
  for (double& one : values) one *= factor;
  if (step_ == TensorStep::kDividesProduct) {
    for (double& one : values) one /= scales_.tensor_scale;
  }
  if (!has_nans_) return;
  // Infinity times 0, whose sign processors choose.
  for (double& one : values) {
    if (std::isnan(one)) one = std::numeric_limits<double>::quiet_NaN();
  }
}

void Dequantizer::multiply(std::span<const std::byte> codes, std::uint64_t scale, double* products) {
  const double zero = zero_point(scale);
  const double factor = *factors(scale, 1);
  if (is_one_multiplication_ && (factor != 0 || !has_nans_)) {
    for (std::size_t i = 0; i < codes.size(); ++i) {
      products[i] = (values_[std::to_integer<std::size_t>(codes[i])] - zero) * factor;
    }
    return;
  }
  for (std::size_t i = 0; i < codes.size(); ++i) products[i] = values_[std::to_integer<std::size_t>(codes[i])] - zero;
  finish_products({products, codes.size()}, factor);
}

// Of this scale and those that follow it; as many of them as are rounded with one call.
void Dequantizer::make_tables(std::uint64_t scale, std::uint64_t count) {
  if (tables_ == nullptr) {
    tables_ = std::make_unique_for_overwrite<std::byte[]>(table_scales_.size() * values_.size() * width_bytes_);
  }
  alignas(64) std::array<double, kAtOnce> products;
  std::array<std::byte, kAtOnce> codes;
  for (std::size_t i = 0; i < values_.size(); ++i) codes[i] = static_cast<std::byte>(i);
  const std::size_t at = scale % table_scales_.size();
  count = std::min<std::uint64_t>({count, kAtOnce / values_.size(), table_scales_.size() - at});
  for (std::size_t i = 0; i < count; ++i) {
    multiply(std::span(codes).first(values_.size()), scale + i, products.data() + i * values_.size());
    table_scales_[at + i] = scale + i;
  }
  round(std::span(products).first(count * values_.size()), codes.data(), table_of(scale));
}

void Dequantizer::look_up(std::span<const std::byte> codes, const std::byte* table, std::byte* out) const {
  if (width_bytes_ == 2 && values_.size() == 16) return look_up_16(codes, table, out);
  switch (width_bytes_) {
    case 2: return look_up_each<std::uint16_t>(codes, table, out);
    case 4: return look_up_each<std::uint32_t>(codes, table, out);
    default: return look_up_each<std::uint64_t>(codes, table, out);
  }
}

void Dequantizer::round_pending() {
  if (pending_.count == 0) return;
  round(std::span(pending_.products).first(pending_.count), pending_.codes, pending_.out);
  pending_.count = 0;
}

// They follow what is pending, if anything is.
void Dequantizer::multiply_later(std::span<const std::byte> codes, std::uint64_t scale, std::byte* out) {
  while (!codes.empty()) {
    if (pending_.count == 0) {
      pending_.codes = codes.data();
      pending_.out = out;
    }
    const std::size_t count = std::min(codes.size(), kAtOnce - pending_.count);
    multiply(codes.first(count), scale, pending_.products.data() + pending_.count);
    pending_.count += count;
    if (pending_.count == kAtOnce) round_pending();
    codes = codes.subspan(count);
    out += count * width_bytes_;
  }
}

// The first `count` codes, which are in one block; the others show how many blocks of the row will follow.
void Dequantizer::run_in_block(const RowPart& part, std::size_t count, std::uint64_t scale) {
  const std::span<const std::byte> codes = part.codes.first(count);
  const bool has_table = table_scales_[scale % table_scales_.size()] == scale;
  if (!has_table && codes.size() < worth_a_table_ && !rows_share_blocks_) return multiply_later(codes, scale, part.out);
  round_pending();
  if (!has_table) {
    const std::size_t rest = part.codes.size() - count;
    make_tables(scale, rest == 0 ? 1 : 2 + (rest - 1) * part.stride / dims_.back().block);
  }
  look_up(codes, table_of(scale), part.out);
}

// Each element has a scale of its own.
void Dequantizer::run_in_blocks_of_1(const RowPart& part) {
  const std::size_t most = (kAtOnce - 1) / part.stride + 1;
  for (std::size_t begin = 0; begin < part.codes.size(); begin += most) {
    const std::span<const std::byte> codes = part.codes.subspan(begin, std::min(most, part.codes.size() - begin));
    const std::uint64_t scale = part.first_scale + part.column + begin * part.stride;
    const double* const factors_here = factors(scale, (codes.size() - 1) * part.stride + 1);
    alignas(64) std::array<double, kAtOnce> products;
    for (std::size_t i = 0; i < codes.size(); ++i) {
      products[i] = values_[std::to_integer<std::size_t>(codes[i])] - zero_point(scale + i * part.stride);
    }
    if (is_one_multiplication_ && !has_nans_) {
      for (std::size_t i = 0; i < codes.size(); ++i) products[i] *= factors_here[i * part.stride];
    } else {
      for (std::size_t i = 0; i < codes.size(); ++i) finish_products({&products[i], 1}, factors_here[i * part.stride]);
    }
    round(std::span(products).first(codes.size()), codes.data(), part.out + begin * width_bytes_);
  }
}

void Dequantizer::run_in_row(const RowPart& part) {
  if (dims_.empty()) return run_in_block(part, part.codes.size(), 0);
  const std::uint64_t block = dims_.back().block;
  if (block == 1) {
    round_pending();
    return run_in_blocks_of_1(part);
  }
  RowPart rest = part;
  std::uint64_t scale = part.first_scale + part.column / block;
  std::uint64_t in_block = part.column % block;
  for (;;) {
    const std::uint64_t room = part.stride == 1 ? block - in_block : (block - in_block - 1) / part.stride + 1;
    const std::size_t count = std::min<std::uint64_t>(rest.codes.size(), room);
    run_in_block(rest, count, scale);
    rest.codes = rest.codes.subspan(count);
    if (rest.codes.empty()) return;
    rest.out += count * width_bytes_;
    in_block += count * part.stride;  // behind the block's end
    const std::uint64_t passed = in_block < 2 * block ? 1 : in_block / block;
    scale += passed;
    in_block -= passed * block;
  }
}

// Of the first code of the element of the key that has this one: how far its codes are in the groups, and the number of
// the scale that it would have in group 0.
Dequantizer::GroupPlace Dequantizer::place_in_groups(std::uint64_t element) const {
  GroupPlace place;
  for (std::size_t d = dims_.size() - 1; d-- > 0;) {
    const std::uint64_t rest = element / dims_[d].extent;
    const std::uint64_t index = element - rest * dims_[d].extent;
    if (d == scales_.groups_dim) {
      place.group = index * dims_.back().extent;
    } else {
      place.scale += index / dims_[d].block * dims_[d].grid_stride;
    }
    element = rest;
  }
  return place;
}

// Each element has a scale that only the groups know. They are fetched one by one, and used many together.
void Dequantizer::run_in_groups(std::span<const std::byte> codes, std::uint64_t begin, std::uint64_t stride,
                                std::byte* out) {
  const std::uint64_t in_element = dims_.back().extent;
  const std::uint64_t group_stride = dims_[scales_.groups_dim].grid_stride;
  const std::size_t scale_bytes = bits(scales_.dtype) / 8;
  const std::uint64_t scale_end = scale_count(scales_);
  alignas(64) std::array<double, kAtOnce> products;
  alignas(64) std::array<std::byte, kAtOnce * sizeof(double)> stored;
  while (!codes.empty()) {
    const std::size_t count = std::min(codes.size(), kAtOnce);
    std::uint64_t element = begin / in_element;
    std::uint64_t inside = begin - element * in_element;
    GroupPlace place = place_in_groups(element);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t scale = place.scale + scales_.groups[place.group + inside] * group_stride - scales_.first;
      LADING_CHECK(scale < scale_end);
      std::memcpy(stored.data() + i * scale_bytes, scales_.values.data() + scale * scale_bytes, scale_bytes);
      const double zero = scales_.zeros.empty() ? 0 : plain_values_[std::to_integer<std::size_t>(scales_.zeros[scale])];
      products[i] = values_[std::to_integer<std::size_t>(codes[i])] - zero;
      inside += stride;
      if (inside < in_element || i + 1 == count) continue;
      element += inside / in_element;
      inside %= in_element;
      place = place_in_groups(element);
    }
    const std::span<double> factors = std::span(factors_).first(count);
    widen_scales(stored.data(), scales_.dtype, factors);
    for (double& one : factors) one = factor_of(one, scales_.tensor_scale, step_);
    if (is_one_multiplication_) {
      for (std::size_t i = 0; i < count; ++i) products[i] *= factors[i];
    } else {
      for (std::size_t i = 0; i < count; ++i) finish_products({&products[i], 1}, factors[i]);
    }
    round(std::span(products).first(count), codes.data(), out);
    codes = codes.subspan(count);
    out += count * width_bytes_;
    begin += count * stride;
  }
}

void Dequantizer::run_bytes(std::span<const std::byte> codes, std::uint64_t begin, std::uint64_t stride,
                            std::byte* out) {
  if (!scales_.groups.empty()) return run_in_groups(codes, begin, stride, out);
  while (!codes.empty()) {
    RowPart part{codes, 0, begin, stride, out};
    if (!dims_.empty()) {
      const std::uint64_t extent = dims_.back().extent;
      std::uint64_t rest = begin / extent;
      part.column = begin - rest * extent;
      part.codes = codes.first(std::min<std::uint64_t>(codes.size(), (extent - part.column - 1) / stride + 1));
      for (std::size_t d = dims_.size() - 1; d-- > 0;) {
        const std::uint64_t index = d != 0 ? rest % dims_[d].extent : rest;
        part.first_scale += index / dims_[d].block * dims_[d].grid_stride;
        rest /= dims_[d].extent;
      }
    }
    run_in_row(part);
    codes = codes.subspan(part.codes.size());
    out += part.codes.size() * width_bytes_;
    begin += part.codes.size() * stride;
  }
  round_pending();
}

void Dequantizer::run(const CodeRun& codes, std::uint64_t begin, std::byte* out) {
  if (log2_codes_in_byte_ == 0 && codes.stride == 1) {
    return run_bytes({codes.source + codes.first_code, codes.count}, begin, 1, out);
  }
  alignas(64) std::array<std::byte, kUnpacked> bytes;
  for (CodeRun rest = codes; rest.count != 0;) {
    const std::uint64_t count = std::min<std::uint64_t>(rest.count, kUnpacked);
    CodeRun piece = rest;
    piece.count = count;
    unpack_codes(piece, log2_codes_in_byte_, bytes.data());
    run_bytes({bytes.data(), count}, begin, codes.stride, out);
    begin += count * codes.stride;
    out += count * width_bytes_;
    rest = behind(rest, count);
  }
}

}  // namespace lading::device
