// For tests of verify: small quantized checkpoints in memory, of any scheme, and what their elements are, worked out in
// fractions of whole numbers. Shares nothing with the readers, the planner or the device but the encoding of scales.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/cast.h"
#include "exec/verify/verify_values.h"
#include "support/label_oracle.h"
#include "support/planner_support.h"

namespace lading::exec::quantized_world {

using mapping::Expression;
using mapping::oracle::ravel;
using mapping::oracle::unravel;
using Dims = std::vector<std::uint64_t>;

__extension__ using WideNumber = unsigned __int128;

inline int width_of(WideNumber number) {
  int width = 0;
  for (; number != 0; number >>= 1) ++width;
  return width;
}

/// ± numerator / denominator * 2^exponent.
struct Fraction {
  bool is_negative = false;
  WideNumber numerator = 0;
  WideNumber denominator = 1;
  int exponent = 0;

  static Fraction of(double value) {
    Fraction made;
    made.is_negative = std::signbit(value);
    double rest = std::frexp(std::abs(value), &made.exponent);
    while (rest != std::floor(rest)) {
      rest *= 2;
      --made.exponent;
    }
    made.numerator = static_cast<WideNumber>(rest);
    return made;
  }
  [[nodiscard]] Fraction times(const Fraction& other) const {
    return {is_negative != other.is_negative, numerator * other.numerator, denominator * other.denominator,
            exponent + other.exponent};
  }
  [[nodiscard]] Fraction divided_by(const Fraction& other) const {
    return {is_negative != other.is_negative, numerator * other.denominator, denominator * other.numerator,
            exponent - other.exponent};
  }
};

struct FloatFormat {
  int digits = 0;
  int least_exponent = 0;  // of the last digit
  double largest = 0;
};

inline FloatFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return {11, -24, 65504};
    case DType::kBF16: return {8, -133, 0x1.FEp127};
    case DType::kF32: return {24, -149, std::numeric_limits<float>::max()};
    default: return {53, -1074, std::numeric_limits<double>::max()};
  }
}

/// The number of the dtype that is nearest to it, ties to even.
inline double nearest(const Fraction& fraction, DType dtype) {
  const FloatFormat format = format_of(dtype);
  const double sign = fraction.is_negative ? -1 : 1;
  if (fraction.numerator == 0) return sign * 0.0;
  int last = fraction.exponent + width_of(fraction.numerator) - width_of(fraction.denominator) - format.digits - 1;
  for (last = std::max(last, format.least_exponent);; ++last) {
    const int shift = fraction.exponent - last;
    const WideNumber n = shift > 0 ? fraction.numerator << shift : fraction.numerator;
    const WideNumber d = shift < 0 ? fraction.denominator << -shift : fraction.denominator;
    WideNumber quotient = n / d;
    if (quotient >> format.digits != 0) continue;
    const WideNumber rest = n % d;
    if (2 * rest > d || (2 * rest == d && quotient % 2 == 1)) ++quotient;
    const double rounded = std::ldexp(static_cast<double>(quotient), last);
    return sign * (rounded > format.largest ? std::numeric_limits<double>::infinity() : rounded);
  }
}

struct Scheme {
  DType key_dtype = DType::kU8;
  Shape key_shape;
  Shape block;  ///< in codes, one more dim
  Decoding decoding;
  DType scales_dtype = DType::kF32;  ///< of the values; stored as U8 where the decoding says so
  Shape scales_shape;
  bool has_zeros = false;
  bool has_tensor_scale = false;
  std::optional<DType> product = {};
};

inline std::uint64_t up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

class QuantizedWorld {
 public:
  QuantizedWorld(Scheme scheme, std::uint64_t seed) : scheme_(std::move(scheme)), random_(seed) {
    dims_.assign(scheme_.key_shape.begin(), scheme_.key_shape.end());
    if (scheme_.decoding.code) dims_.push_back(scheme_.decoding.per_element);
    for (std::size_t d = 0; d < dims_.size(); ++d) grid_.push_back(up(dims_[d], scheme_.block[d]));
    const std::uint64_t blocks = mapping::oracle::product(grid_);
    for (std::uint64_t i = mapping::oracle::product(dims_); i > 0; --i) codes_.push_back(any_code());
    for (std::uint64_t i = 0; i < blocks; ++i) {
      scales_.push_back(any_number(scheme_.scales_dtype));
      zeros_.push_back(scheme_.has_zeros ? any_code() : 0);
    }
    if (scheme_.has_tensor_scale) tensor_scale_ = any_number(DType::kF32);
    write();
  }

  [[nodiscard]] Expression expression() const {
    Expression made = Expression::dequantize("p", "s", scheme_.block, scheme_.product, scheme_.decoding);
    if (scheme_.has_zeros) made.zeros = "z";
    if (scheme_.has_tensor_scale) made.tensor_scale = "t";
    return made;
  }

  [[nodiscard]] const Dims& dims() const { return dims_; }
  [[nodiscard]] const checkpoint::Catalog& catalog() const { return catalog_; }
  [[nodiscard]] checkpoint::Catalog& catalog() { return catalog_; }

  /// Bytes of keys only, and of one key at a time.
  [[nodiscard]] ReadBytes read() const {
    return [this](std::uint32_t, std::uint64_t offset, std::span<std::byte> out) -> Result<void> {
      const bool is_of_a_key =
          std::any_of(catalog_.tensors.begin(), catalog_.tensors.end(), [&](const checkpoint::CatalogTensor& key) {
            return key.bytes.begin <= offset && offset + out.size() <= key.bytes.end;
          });
      EXPECT_TRUE(is_of_a_key) << "bytes " << offset << " to " << offset + out.size();
      if (is_of_a_key) std::copy_n(file_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
      return {};
    };
  }

  /// What code `c` of the key's element `element` is, in the storage dtype.
  [[nodiscard]] double value(std::uint64_t element, std::uint64_t c, DType storage) const {
    const Decoding& decoding = scheme_.decoding;
    const std::uint64_t number = element * decoding.per_element + c;
    Dims index = unravel(number, dims_);
    for (std::size_t d = 0; d < index.size(); ++d) index[d] /= scheme_.block[d];
    const std::uint64_t block = ravel(index, grid_);
    double code = number_of(codes_[number]);
    if (decoding.code && *decoding.code != CodeType::kF4) {
      code -= static_cast<double>(decoding.zero);
      if (scheme_.has_zeros) code -= number_of(zeros_[block]);
    }
    Fraction exact = Fraction::of(code).times(Fraction::of(scales_[block]));
    if (scheme_.has_tensor_scale) {
      const Fraction scale = Fraction::of(tensor_scale_);
      exact = decoding.tensor_scale == TensorScale::kFactor ? exact.times(scale) : exact.divided_by(scale);
    }
    if (!scheme_.product) return nearest(exact, storage);
    const double rounded = nearest(exact, *scheme_.product);
    return std::isinf(rounded) ? rounded : nearest(Fraction::of(rounded), storage);
  }

 private:
  std::uint64_t below(std::uint64_t bound) {
    return std::uniform_int_distribution<std::uint64_t>(0, bound - 1)(random_);
  }

  [[nodiscard]] unsigned code_bits() const { return scheme_.decoding.code ? bits(*scheme_.decoding.code) : 8; }

  // Not the payloads of F8_E4M3 that are no numbers.
  std::uint64_t any_code() { return scheme_.decoding.code ? below(1U << code_bits()) : below(127) + (below(2) << 7); }

  // All significant bits that the dtype has, and exponents that keep results away from nothing at all.
  double any_number(DType dtype) {
    const auto made = [&](std::uint64_t digits, int exponent) {
      const auto most = std::uint64_t{1} << digits;
      const double number =
          std::ldexp(static_cast<double>(most / 2 + below(most / 2)), exponent - static_cast<int>(digits));
      return below(8) == 0 ? -number : number;
    };
    const int exponent = static_cast<int>(below(13)) - 5;
    switch (dtype) {
      case DType::kF8E8M0: return std::ldexp(1.0, exponent);
      case DType::kF8E4M3: return made(4, exponent);
      case DType::kBF16: return made(8, exponent);
      case DType::kF16: return made(11, exponent);
      default: return made(below(4) == 0 ? 3 : 24, exponent);
    }
  }

  [[nodiscard]] double number_of(std::uint64_t code) const {
    if (!scheme_.decoding.code) {
      const auto digits = static_cast<double>(code % 8 + (code % 128 < 8 ? 0 : 8));
      const double magnitude = std::ldexp(digits, std::max(1, static_cast<int>(code % 128 / 8)) - 10);
      return code < 128 ? magnitude : -magnitude;
    }
    if (*scheme_.decoding.code == CodeType::kI8) return static_cast<double>(static_cast<std::int8_t>(code));
    if (*scheme_.decoding.code != CodeType::kF4) return static_cast<double>(code);
    const std::map<std::uint64_t, double> magnitudes = {{0, 0}, {1, 0.5}, {2, 1}, {3, 1.5},
                                                        {4, 2}, {5, 3},   {6, 4}, {7, 6}};
    return (code & 8) != 0 ? -magnitudes.at(code & 7) : magnitudes.at(code & 7);
  }

  // Elements of the key's dtype, each with its codes from the lowest bits on.
  [[nodiscard]] std::vector<std::byte> packed(const std::vector<std::uint64_t>& codes) const {
    const std::uint64_t per_element = scheme_.decoding.per_element;
    const std::uint64_t width = bits(scheme_.key_dtype) / 8;
    std::vector<std::byte> bytes(codes.size() / per_element * width);
    for (std::uint64_t e = 0; e * per_element < codes.size(); ++e) {
      std::uint64_t element = 0;
      for (std::uint64_t c = 0; c < per_element; ++c) {
        element |= codes[e * per_element + c] << c * code_bits();
      }
      std::memcpy(bytes.data() + e * width, &element, width);
    }
    return bytes;
  }

  // Beside each other along one dim of the scales; behind the last one there is whatever there is.
  [[nodiscard]] std::pair<Dims, std::vector<std::byte>> packed_zeros() {
    const Dims grid(scheme_.scales_shape.begin(), scheme_.scales_shape.end());
    const std::size_t dim = scheme_.decoding.zeros_dim;
    const std::uint64_t per_element = scheme_.decoding.per_element;
    Dims shape = grid;
    shape[dim] = up(shape[dim], per_element);
    std::vector<std::uint64_t> codes(mapping::oracle::product(shape) * per_element);
    for (std::uint64_t& code : codes) code = any_code();
    for (std::uint64_t block = 0; block < zeros_.size(); ++block) {
      Dims index = unravel(block, grid);
      const std::uint64_t along = index[dim];
      index[dim] /= per_element;
      codes[ravel(index, shape) * per_element + along % per_element] = zeros_[block];
    }
    return {shape, packed(codes)};
  }

  [[nodiscard]] std::vector<std::byte> encoded_scales() const {
    const std::vector<std::size_t>& order = scheme_.decoding.scale_order;
    std::vector<double> stored = scales_;
    for (std::size_t i = 0; i < scales_.size() && !order.empty(); ++i) {
      stored[i / order.size() * order.size() + order[i % order.size()]] = scales_[i];
    }
    std::vector<std::byte> bytes(stored.size() * bits(scheme_.scales_dtype) / 8);
    if (scheme_.scales_dtype == DType::kF8E8M0) {
      std::transform(stored.begin(), stored.end(), bytes.begin(),
                     [](double scale) { return static_cast<std::byte>(std::ilogb(scale) + 127); });
      return bytes;
    }
    device::find_cast(DType::kF64, scheme_.scales_dtype)(reinterpret_cast<const std::byte*>(stored.data()),
                                                         bytes.data(), stored.size());
    return bytes;
  }

  void write() {
    const DType stored = scheme_.decoding.scale_dtype ? DType::kU8 : scheme_.scales_dtype;
    std::vector<planner::world::Key> keys = {{"p", scheme_.key_shape, scheme_.key_dtype},
                                             {"s", scheme_.scales_shape, stored}};
    std::map<std::string, std::vector<std::byte>> bytes = {{"p", packed(codes_)}, {"s", encoded_scales()}};
    if (scheme_.has_tensor_scale) {
      keys.push_back({"t", Shape{1}, DType::kF32});
      const auto value = static_cast<float>(tensor_scale_);
      bytes["t"].resize(sizeof value);
      std::memcpy(bytes["t"].data(), &value, sizeof value);
    }
    if (scheme_.has_zeros) {
      auto [shape, zeros] = packed_zeros();
      keys.push_back({"z", Shape(shape), scheme_.key_dtype});
      bytes["z"] = std::move(zeros);
    }
    catalog_ = planner::world::World::catalog_of(keys);
    file_.resize(catalog_.files.front().size_bytes);
    for (const checkpoint::CatalogTensor& key : catalog_.tensors) {
      const std::vector<std::byte>& data = bytes.at(key.name);
      LADING_CHECK(data.size() == key.bytes.size_bytes());
      std::copy(data.begin(), data.end(), file_.begin() + static_cast<std::ptrdiff_t>(key.bytes.begin));
    }
  }

  Scheme scheme_;
  std::mt19937_64 random_;
  Dims dims_;                         // of codes
  Dims grid_;                         // of blocks
  std::vector<std::uint64_t> codes_;  // bits
  std::vector<double> scales_;        // by block
  std::vector<std::uint64_t> zeros_;  // by block, bits
  double tensor_scale_ = 1;
  checkpoint::Catalog catalog_;
  std::vector<std::byte> file_;
};

}  // namespace lading::exec::quantized_world
