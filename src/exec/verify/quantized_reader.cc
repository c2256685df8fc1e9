#include "exec/verify/quantized_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "base/text.h"
#include "checkpoint/quantized.h"
#include "exec/verify/source_reader.h"

namespace lading::exec {
namespace {

using checkpoint::CatalogTensor;

// The dtype of scales, whatever the file calls it.
std::optional<DType> dtype_of_scales(const Quantized& quantized) {
  const auto& stored = quantized.scales->dtype;
  if (!quantized.decoding.scale_dtype) return stored;
  return stored == DType::kU8 ? quantized.decoding.scale_dtype : std::nullopt;
}

bool is_float_of_scales(std::optional<DType> dtype) {
  return dtype && (checkpoint::is_scale_dtype(*dtype) || dtype == DType::kF8E4M3);
}

std::uint64_t blocks_in(std::uint64_t extent, std::uint64_t block) {
  return extent / block + (extent % block == 0 ? 0 : 1);
}

// Of the grid, row-major.
std::optional<std::uint64_t> block_count(const Quantized& quantized) {
  if (quantized.block.rank() != quantized.shape.rank()) return std::nullopt;
  std::optional<std::uint64_t> count = 1;
  for (std::size_t d = 0; d < quantized.block.rank() && count; ++d) {
    if (quantized.block[d] == 0) return std::nullopt;
    count = checked_mul(*count, blocks_in(quantized.shape[d], quantized.block[d]));
  }
  return count;
}

// Zero points stand as scales do, but for the dim along which an element holds several.
std::optional<std::uint64_t> zeros_count(const Quantized& quantized) {
  const Shape& scales = quantized.scales->shape;
  const std::size_t dim = quantized.decoding.zeros_dim;
  if (dim >= scales.rank()) return std::nullopt;
  std::vector<std::uint64_t> dims(scales.begin(), scales.end());
  dims[dim] = blocks_in(dims[dim], quantized.decoding.per_element);
  return Shape(std::move(dims)).num_elems();
}

bool has_possible_payload(const CatalogTensor& source, const Decoding& decoding) {
  const DType dtype = *source.dtype;
  if (!decoding.code) return bits(dtype) == 8 && checkpoint::is_low_precision(dtype);
  return bits(dtype) % 8 == 0 && decoding.per_element * bits(*decoding.code) == bits(dtype);
}

bool has_possible_scales(const Quantized& quantized) {
  const auto blocks = block_count(quantized);
  const auto& order = quantized.decoding.scale_order;
  return is_float_of_scales(dtype_of_scales(quantized)) && blocks && quantized.scales->shape.num_elems() == blocks &&
         (order.empty() || *blocks % order.size() == 0);
}

bool has_possible_zeros(const CatalogTensor& source, const Quantized& quantized) {
  if (quantized.zeros == nullptr) return true;
  return quantized.decoding.code && quantized.zeros->dtype == source.dtype &&
         quantized.zeros->shape.num_elems() == zeros_count(quantized);
}

bool has_possible_tensor_scale(const Quantized& quantized) {
  const CatalogTensor* const scale = quantized.tensor_scale;
  return scale == nullptr || (scale->dtype == DType::kF32 && scale->shape.num_elems() == 1);
}

// One group for each code along a dim that is not that of codes, and blocks of whole elements.
bool has_possible_groups(const Quantized& quantized) {
  if (quantized.groups == nullptr) return true;
  const Shape& shape = quantized.shape;
  const Decoding& decoding = quantized.decoding;
  if (!decoding.code || !decoding.scale_order.empty() || decoding.groups_dim + 1 >= shape.rank()) return false;
  const std::size_t last = shape.rank() - 1;
  return quantized.groups->dtype == DType::kI32 && blocks_in(shape[last], quantized.block[last]) == 1 &&
         quantized.groups->shape.num_elems() == checked_mul(shape[decoding.groups_dim], shape[last]);
}

// A rounded result and what is left of the exact one. F64 has room for what is left of numbers with 24-bit exponents.
double toward_odd(double rounded, double rest) {
  if (!std::isfinite(rounded) || rounded == 0 || rest == 0 || std::isnan(rest)) return rounded;
  const auto word = std::bit_cast<std::uint64_t>(rounded);
  if (word % 2 == 1) return rounded;
  const bool is_too_small = (rest > 0) == (rounded > 0);
  return std::bit_cast<double>(is_too_small ? word + 1 : word - 1);
}

// The number that a code stands for. Codes never cross a byte.
double value_of_code(CodeType code, unsigned word) {
  switch (code) {
    case CodeType::kF4: {
      constexpr std::array kMagnitudes = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
      return word < 8 ? kMagnitudes[word] : -kMagnitudes[word - 8];
    }
    case CodeType::kI8: return word < 128 ? word : static_cast<double>(word) - 256;
    case CodeType::kU2:
    case CodeType::kU4:
    case CodeType::kU8: break;
  }
  return word;
}

// The first code is in the lowest bits of the first byte.
double value_at(std::span<const std::byte> bytes, std::uint64_t number, CodeType code) {
  const std::uint64_t first_bit = number * bits(code);
  const unsigned byte = std::to_integer<unsigned>(bytes[first_bit / 8]);
  return value_of_code(code, byte >> first_bit % 8 & ((1U << bits(code)) - 1));
}

// Powers of two; the last one is NaN.
double value_of_power(std::byte code) {
  const int exponent = std::to_integer<int>(code);
  return exponent == 0xFF ? std::nan("") : std::ldexp(1.0, exponent - 127);
}

Result<void> widen_scales(std::span<const std::byte> stored, DType dtype, std::span<double> out) {
  if (dtype == DType::kF8E8M0) {
    std::transform(stored.begin(), stored.end(), out.begin(), value_of_power);
    return {};
  }
  LADING_ASSIGN_OR_RETURN(const CastStep widen, cast_between(dtype, DType::kF64));
  widen.cast(stored.data(), reinterpret_cast<std::byte*>(out.data()), out.size());
  return {};
}

}  // namespace

Result<void> check_scaling(const CatalogTensor& source, const Quantized& quantized, DType storage) {
  const bool is_possible = class_of(storage) == DTypeClass::kFloat && bits(storage) >= 16 &&
                           has_possible_payload(source, quantized.decoding) && has_possible_scales(quantized) &&
                           has_possible_zeros(source, quantized) && has_possible_tensor_scale(quantized) &&
                           has_possible_groups(quantized);
  if (is_possible) return {};
  return fail(Error(Code::kDType, fmt::format("{} cannot be dequantized to {}", quote(source.name), name(storage)))
                  .by_rule("R48")
                  .try_this("Check that the ledger belongs to this checkpoint."));
}

double times_to_odd(double a, double b) { return toward_odd(a * b, std::fma(a, b, -(a * b))); }

double divided_to_odd(double a, double b) {
  const double quotient = a / b;
  const double rest = std::fma(-quotient, b, a);
  return toward_odd(quotient, b > 0 ? rest : -rest);
}

Result<void> QuantizedReader::read(std::uint64_t begin, std::uint64_t elems, std::span<std::byte> out) {
  const std::uint64_t at_once = elems_at_once(storage_, DType::kF64);
  for (std::uint64_t done = 0; done < elems; done += at_once) {
    const std::uint64_t count = std::min(at_once, elems - done);
    LADING_TRY(read_once(begin + done, count, out.subspan(bytes_of_elems(done, storage_))));
  }
  return {};
}

Result<void> QuantizedReader::read_once(std::uint64_t begin, std::uint64_t elems, std::span<std::byte> out) {
  LADING_TRY(read_codes(begin, elems));
  if (quantized_.groups == nullptr) {
    find_blocks(begin, elems);
  } else {
    LADING_TRY(find_blocks_of_groups(begin, elems));
  }
  const auto [least, most] = std::minmax_element(blocks_.begin(), blocks_.end());
  // Scales that are stored in another order are read in whole runs.
  const std::uint64_t together = std::max<std::uint64_t>(1, quantized_.decoding.scale_order.size());
  first_block_ = *least / together * together;
  const std::uint64_t end = (*most / together + 1) * together;
  LADING_TRY(read_scales(first_block_, end));
  LADING_TRY(read_zeros(first_block_, end));
  LADING_TRY(read_tensor_scale());
  multiply();
  return round(out);
}

Result<void> QuantizedReader::read_codes(std::uint64_t begin, std::uint64_t elems) {
  const auto& code = quantized_.decoding.code;
  const std::uint64_t width_bits = code ? bits(*code) : bits(*source_.dtype);
  raw_.resize((elems * width_bits + 7) / 8);
  LADING_TRY(read_(source_.file, source_.bytes.begin + begin * width_bits / 8, raw_));
  values_.resize(elems);
  if (code) {
    for (std::uint64_t i = 0; i < elems; ++i) values_[i] = value_at(raw_, i, *code);
    return {};
  }
  LADING_ASSIGN_OR_RETURN(const CastStep widen, cast_between(*source_.dtype, DType::kF64));
  widen.cast(raw_.data(), reinterpret_cast<std::byte*>(values_.data()), elems);
  nans_.clear();
  for (std::size_t i = 0; i < elems; ++i) {
    if (std::isnan(values_[i])) nans_.push_back(i);
  }
  return {};
}

// Index by index from the definition: how far each dim is in its block, and which block that is.
void QuantizedReader::find_blocks(std::uint64_t begin, std::uint64_t count) {
  const Shape& shape = quantized_.shape;
  const Shape& block = quantized_.block;
  struct Dim {
    std::uint64_t index = 0;
    std::uint64_t inside = 0;  // of its block
    std::uint64_t block = 0;
    std::uint64_t step = 1;  // from a block to the next, in the grid
  };
  std::vector<Dim> dims(shape.rank());
  std::uint64_t number = 0;
  for (std::size_t d = shape.rank(); d-- > 0; begin /= shape[d]) {
    dims[d].index = begin % shape[d];
    dims[d].inside = dims[d].index % block[d];
    dims[d].block = dims[d].index / block[d];
    if (d + 1 < shape.rank()) dims[d].step = dims[d + 1].step * blocks_in(shape[d + 1], block[d + 1]);
    number += dims[d].block * dims[d].step;
  }
  blocks_.clear();
  for (std::uint64_t i = 0; i < count; ++i) {
    blocks_.push_back(number);
    for (std::size_t d = shape.rank(); d-- > 0;) {
      Dim& dim = dims[d];
      if (++dim.index < shape[d]) {
        if (++dim.inside < block[d]) break;
        dim.inside = 0;
        ++dim.block;
        number += dim.step;
        break;
      }
      number -= dim.block * dim.step;
      dim.index = dim.inside = dim.block = 0;
    }
  }
}

// Number by number: where a group says so, the block is that one.
Result<void> QuantizedReader::find_blocks_of_groups(std::uint64_t begin, std::uint64_t count) {
  const Shape& shape = quantized_.shape;
  const Shape& block = quantized_.block;
  const std::size_t dim = quantized_.decoding.groups_dim;
  const CatalogTensor& groups = *quantized_.groups;
  if (groups_.empty()) {
    groups_.resize(*groups.shape.num_elems());
    LADING_TRY(read_(groups.file, groups.bytes.begin, std::as_writable_bytes(std::span(groups_))));
  }
  blocks_.clear();
  std::vector<std::uint64_t> index(shape.rank());
  for (std::uint64_t i = begin; i < begin + count; ++i) {
    std::uint64_t rest = i;
    for (std::size_t d = shape.rank(); d-- > 0; rest /= shape[d]) index[d] = rest % shape[d];
    std::uint64_t number = 0;
    for (std::size_t d = 0; d < shape.rank(); ++d) {
      const std::uint64_t blocks = blocks_in(shape[d], block[d]);
      std::uint64_t at = index[d] / block[d];
      if (d == dim) {
        const std::int32_t group = groups_[index[d] * shape[shape.rank() - 1] + index.back()];
        if (group < 0 || static_cast<std::uint64_t>(group) >= blocks) {
          return fail(Error(Code::kScale, fmt::format("{} has a group that has no scale", quote(groups.name)))
                          .by_rule("R48")
                          .wanted(fmt::format("groups from 0 to {}", blocks - 1))
                          .got(std::to_string(group))
                          .try_this("Check that the ledger belongs to this checkpoint."));
        }
        at = static_cast<std::uint64_t>(group);
      }
      number = number * blocks + at;
    }
    blocks_.push_back(number);
  }
  return {};
}

Result<void> QuantizedReader::read_scales(std::uint64_t begin, std::uint64_t end) {
  const CatalogTensor& scales = *quantized_.scales;
  const DType dtype = *dtype_of_scales(quantized_);
  std::vector<std::byte> stored(bytes_of_elems(end - begin, dtype));
  LADING_TRY(read_(scales.file, scales.bytes.begin + bytes_of_elems(begin, dtype), stored));
  scales_.resize(end - begin);
  return widen_scales(stored, dtype, scales_);
}

// Where in a run of scales that of a block is stored.
std::uint64_t QuantizedReader::stored_scale(std::uint64_t block) const {
  const std::vector<std::size_t>& order = quantized_.decoding.scale_order;
  return order.empty() ? block : block / order.size() * order.size() + order[block % order.size()];
}

// The grid in the dims of the scales is [outer, extent, inner]; the elements of the zero points are [outer,
// ceil(extent / per_element), inner].
Result<void> QuantizedReader::read_zeros(std::uint64_t begin, std::uint64_t end) {
  zeros_.clear();
  if (quantized_.zeros == nullptr) return {};
  const CatalogTensor& zeros = *quantized_.zeros;
  const Shape& grid = quantized_.scales->shape;
  const std::size_t dim = quantized_.decoding.zeros_dim;
  const std::uint64_t per_element = quantized_.decoding.per_element;
  std::uint64_t inner = 1;
  for (std::size_t d = dim + 1; d < grid.rank(); ++d) inner *= grid[d];
  const auto element_of = [&](std::uint64_t block) {
    const std::uint64_t row = block / inner / grid[dim];
    const std::uint64_t along = block / inner % grid[dim] / per_element;
    return (row * blocks_in(grid[dim], per_element) + along) * inner + block % inner;
  };
  std::vector<std::uint64_t> elements;
  elements.reserve(end - begin);
  for (std::uint64_t block = begin; block < end; ++block) elements.push_back(element_of(block));
  const auto [least, most] = std::minmax_element(elements.begin(), elements.end());
  const std::uint64_t first = *least;
  std::vector<std::byte> stored(bytes_of_elems(*most + 1 - first, *zeros.dtype));
  LADING_TRY(read_(zeros.file, zeros.bytes.begin + bytes_of_elems(first, *zeros.dtype), stored));
  zeros_.reserve(elements.size());
  for (std::uint64_t i = 0; i < elements.size(); ++i) {
    const std::uint64_t along = (begin + i) / inner % grid[dim];
    const std::uint64_t number = (elements[i] - first) * per_element + along % per_element;
    zeros_.push_back(value_at(stored, number, *quantized_.decoding.code));
  }
  return {};
}

Result<void> QuantizedReader::read_tensor_scale() {
  const CatalogTensor* const scale = quantized_.tensor_scale;
  if (scale == nullptr || tensor_scale_) return {};
  std::array<std::byte, sizeof(float)> stored{};
  LADING_TRY(read_(scale->file, scale->bytes.begin, stored));
  double value = 0;
  LADING_TRY(widen_scales(stored, DType::kF32, {&value, 1}));
  tensor_scale_ = value;
  return {};
}

// A code less its zeros has 18 bits at most, and a scale 24: the product is exact. What the scale of the whole tensor
// makes of it may need more than F64 has. Where F64 is what it is rounded to, that is one rounding; otherwise it is
// rounded to odd first, which the next rounding does not see.
void QuantizedReader::multiply() {
  const bool ends_in_double = quantized_.product.value_or(storage_) == DType::kF64;
  const bool is_divisor = quantized_.decoding.tensor_scale == TensorScale::kDivisor;
  const auto zero = static_cast<double>(quantized_.decoding.zero);
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const std::uint64_t block = blocks_[i];
    double value = values_[i];
    if (quantized_.decoding.code) value -= zero + (zeros_.empty() ? 0 : zeros_[block - first_block_]);
    value *= scales_[stored_scale(block) - first_block_];
    if (tensor_scale_ && is_divisor) {
      value = ends_in_double ? value / *tensor_scale_ : divided_to_odd(value, *tensor_scale_);
    } else if (tensor_scale_) {
      value = ends_in_double ? value * *tensor_scale_ : times_to_odd(value, *tensor_scale_);
    }
    values_[i] = std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
  }
}

// A payload that is NaN is cast as it is (docs/how-it-works/quantized.md).
Result<void> QuantizedReader::round(std::span<std::byte> out) const {
  const DType product = quantized_.product.value_or(storage_);
  LADING_ASSIGN_OR_RETURN(const CastStep to_product, cast_between(DType::kF64, product));
  LADING_ASSIGN_OR_RETURN(const CastStep narrow, cast_between(product, storage_));
  const auto* products = reinterpret_cast<const std::byte*>(values_.data());
  const std::uint64_t width = bits(storage_) / 8;
  std::vector<std::byte> rounded(values_.size() * bits(product) / 8);
  if (to_product.cast != nullptr) {
    to_product.cast(products, rounded.data(), values_.size());
    products = rounded.data();
  }
  if (narrow.cast == nullptr) {
    std::memcpy(out.data(), products, values_.size() * width);
  } else {
    narrow.cast(products, out.data(), values_.size());
  }
  if (nans_.empty()) return {};
  LADING_ASSIGN_OR_RETURN(const CastStep direct, cast_between(*source_.dtype, storage_));
  for (const std::size_t i : nans_) direct.cast(&raw_[i], out.data() + i * width, 1);
  return {};
}

}  // namespace lading::exec
