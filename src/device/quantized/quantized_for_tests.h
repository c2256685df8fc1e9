// For tests: moves out of quantized tensors that are made up, and what they should give, by the definition.
//
// A move takes a box of a tensor, some dims of which may be whole: those and the one before them are the run. The
// buffer has the box as the tensor has it, or packed, with gaps, in any order of the loops; so has the target.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/loop_nest.h"
#include "device/cast_reference_for_tests.h"
#include "device/device.h"
#include "device/quantized/exact_for_tests.h"
#include "device/quantized/scale_number_for_tests.h"

namespace lading::device::quantized {

using Random = std::mt19937_64;
using Bytes = std::vector<std::byte>;

inline constexpr std::array kPayloadTypes = {DType::kF8E4M3, DType::kF8E5M2, DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz};
inline constexpr std::array kResultTypes = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64};
inline constexpr std::array kScaleTypes = {DType::kF64,  DType::kF32,    DType::kF16,
                                           DType::kBF16, DType::kF8E4M3, DType::kF8E8M0};
inline constexpr std::array kCodeTypes = {CodeType::kF4, CodeType::kU2, CodeType::kU4, CodeType::kU8, CodeType::kI8};

struct Made {
  BlockScales scales;
  DType from = DType::kF8E4M3;
  DType to = DType::kBF16;
  std::uint64_t first_elem = 0;
  std::uint64_t run_elems = 1;
  std::uint8_t first_code = 0;
  std::vector<ByteLoop> loops;
  std::vector<std::uint64_t> strides_elems;
  Bytes source;
  std::uint64_t target_bytes = 0;

  [[nodiscard]] std::uint64_t element_bits() const { return scales.code ? bits(*scales.code) : 8; }
  /// Of the source, that a run stands in.
  [[nodiscard]] std::uint64_t run_bytes() const { return ((first_code + run_elems) * element_bits() + 7) / 8; }
};

/// The parts of a Move that stay where they are, and the move itself.
class MadeMove {
 public:
  MadeMove(const Made& made, const std::byte* source, std::byte* target)
      : scaling_{&made.scales, made.first_elem, made.strides_elems, made.first_code}, move_{source,         target,
                                                                                            made.run_elems, made.from,
                                                                                            made.to,        made.loops,
                                                                                            &scaling_} {}
  MadeMove(const MadeMove&) = delete;
  MadeMove& operator=(const MadeMove&) = delete;
  [[nodiscard]] const Move& get() const { return move_; }

 private:
  Scaling scaling_;
  Move move_;
};

inline std::uint64_t one_of(Random& random, std::initializer_list<std::uint64_t> choices) {
  return *(choices.begin() + random() % choices.size());
}

/// A number of 24 significant bits: ordinary, subnormal in F32, huge, a power of two, zero; of either sign.
inline double make_scale(Random& random) {
  const auto bits = static_cast<std::uint32_t>(random());
  const std::uint32_t sign = random() % 4 == 0 ? 0x80000000 : 0;
  const auto number = [&](std::uint32_t exponent, std::uint32_t mantissa) {
    return double{std::bit_cast<float>(sign | exponent << 23 | (mantissa & 0x7FFFFF))};
  };
  switch (random() % 8) {
    case 0: return number(0, bits);
    case 1: return number(230 + bits % 25, bits >> 5);
    case 2: return number(1 + bits % 60, bits >> 6);
    case 3: return number(bits % 255, 0);
    case 4: return number(0, 0);
    default: return number(110 + bits % 20, bits >> 5);
  }
}

/// So many scales of their dtype, all finite.
inline void make_scales(Random& random, std::uint64_t count, BlockScales& scales) {
  const std::size_t width_bytes = bits(scales.dtype) / 8;
  scales.values.resize(count * width_bytes);
  for (std::uint64_t i = 0; i < count; ++i) {
    const double number = make_scale(random);
    std::uint64_t code = std::bit_cast<std::uint64_t>(number);
    const auto any = static_cast<std::uint32_t>(random());
    switch (scales.dtype) {
      case DType::kF32: code = std::bit_cast<std::uint32_t>(static_cast<float>(number)); break;
      case DType::kBF16: code = std::bit_cast<std::uint32_t>(static_cast<float>(number)) >> 16; break;
      case DType::kF16: code = any % 0x7C00 + (any >> 31 << 15); break;
      case DType::kF8E4M3: code = any % 0x7F + (any >> 31 << 7); break;
      case DType::kF8E8M0: code = any % 2 == 0 ? 120 + any / 2 % 16 : any / 2 % 255; break;
      default: break;
    }
    std::memcpy(scales.values.data() + i * width_bytes, &code, width_bytes);
  }
}

/// Of 24 significant bits, but not 0.
inline double make_tensor_scale(Random& random) {
  for (;;) {
    const double scale = make_scale(random);
    if (scale != 0) return scale;
  }
}

/// The same number in each of them.
inline BlockScales equal_scales(const Shape& shape, const Shape& block, std::size_t count, double value) {
  BlockScales scales{shape, block, 0, DType::kF64, Bytes(count * sizeof(value))};
  for (std::size_t i = 0; i < count; ++i) std::memcpy(&scales.values[i * sizeof(value)], &value, sizeof(value));
  return scales;
}

/// The bytes of a scale that is at hand, as a number.
inline exact::Number scale_of(const BlockScales& scales, std::uint64_t i) {
  const std::size_t width_bytes = bits(scales.dtype) / 8;
  std::uint64_t code = 0;
  std::memcpy(&code, &scales.values.at(i * width_bytes), width_bytes);
  if (scales.dtype == DType::kF64) return exact::value_of_double(std::bit_cast<double>(code));
  if (scales.dtype == DType::kF8E8M0) return {false, 1, 1, static_cast<int>(code) - 127};
  return exact::whole_of(reference::layout_of(scales.dtype), code);
}

/// One number, rounded as the scales and the result say.
inline std::uint64_t rounded(const exact::Number& number, const BlockScales& scales, DType to) {
  if (!scales.product) return exact::nearest(reference::layout_of(to), number);
  const reference::Layout& product = reference::layout_of(*scales.product);
  const std::uint64_t code = exact::nearest(product, number);
  const std::uint64_t half = std::uint64_t{1} << (product.bits - 1);
  if (code % half > product.largest) {
    const reference::Layout& layout = reference::layout_of(to);
    return layout.largest + 1 + (code / half << (layout.bits - 1));
  }
  return exact::nearest(reference::layout_of(to), exact::whole_of(product, code));
}

/// One element of 8-bit floats that is no finite number: device/quantized/dequantize.h.
inline std::uint64_t result_of_no_number(const reference::Number& payload, const exact::Number& scale, bool flips,
                                         DType to) {
  reference::Nearest nearest(reference::layout_of(to));
  reference::Number number = payload;
  if (payload.kind == reference::Number::Kind::kNan) return reference::write(nearest, number);
  number.negative ^= std::uint64_t{scale.is_negative != flips};
  if (scale.over == 0) number = {reference::Number::Kind::kNan, 0, 0, std::uint64_t{1} << 51};
  return reference::write(nearest, number);
}

/// The element with this code that has scale number `i` of those that are at hand, by the definition.
inline std::uint64_t result_of(const Made& made, std::uint64_t code, std::uint64_t i) {
  const BlockScales& scales = made.scales;
  const exact::Number scale = scale_of(scales, i);
  const exact::Number tensor_scale = exact::value_of_double(scales.tensor_scale);
  exact::Number value;
  if (scales.code) {
    const std::uint64_t zero_point = scales.zeros.empty() ? 0 : std::to_integer<std::uint64_t>(scales.zeros.at(i));
    value = exact::value_of_code(*scales.code, code, scales.zero, scales.zeros.empty() ? nullptr : &zero_point);
  } else {
    const reference::Number payload = reference::read(reference::layout_of(made.from), code);
    if (payload.kind != reference::Number::Kind::kFinite) {
      return result_of_no_number(payload, scale, tensor_scale.is_negative, made.to);
    }
    value = exact::whole_of(reference::layout_of(made.from), code);
  }
  const exact::Number product = exact::product_of(value, scale);
  const bool divides = scales.tensor_scale_is == TensorScale::kDivisor;
  return rounded(divides ? exact::quotient_of(product, tensor_scale) : exact::product_of(product, tensor_scale), scales,
                 made.to);
}

/// All of a move, element by element, from one memory to another.
inline void move_by_definition(const Made& made, const std::byte* from, std::byte* to) {
  const std::size_t width_bytes = bits(made.to) / 8;
  const std::uint64_t in_byte = 8 / made.element_bits();
  std::unordered_map<std::uint64_t, std::uint64_t> known;
  const std::uint64_t all = rounds_of(made.loops);
  for (std::uint64_t round = 0; round < all; ++round) {
    std::uint64_t source = 0;
    std::uint64_t target = 0;
    std::uint64_t elem = made.first_elem;
    std::uint64_t rest = round;
    for (std::size_t i = made.loops.size(); i-- > 0;) {
      const std::uint64_t at = rest % made.loops[i].count;
      rest /= made.loops[i].count;
      source += at * made.loops[i].source_stride_bytes;
      target += at * made.loops[i].target_stride_bytes;
      elem += at * made.strides_elems[i];
    }
    for (std::uint64_t i = 0; i < made.run_elems; ++i) {
      const std::uint64_t number = made.first_code + i;
      const auto byte = std::to_integer<std::uint64_t>(from[source + number / in_byte]);
      const std::uint64_t code = byte >> (number % in_byte * made.element_bits()) & ((1U << made.element_bits()) - 1);
      const std::uint64_t scale = scale_number(made.scales, elem + i) - made.scales.first;
      const auto [found, is_new] = known.try_emplace(scale * 256 + code, 0);
      if (is_new) found->second = result_of(made, code, scale);
      std::memcpy(to + target + i * width_bytes, &found->second, width_bytes);
    }
  }
}

/// Makes a move up.
class Maker {
 public:
  Maker(Random& random, DType from, DType to) : random_(random) {
    made_.from = from;
    made_.to = to;
  }
  Maker(Random& random, CodeType code, DType to) : Maker(random, DType::kF8E4M3, to) { made_.scales.code = code; }

  /// At most so many bytes of the source; loops are split until there are `most_loops`, if they can be.
  Made make(std::uint64_t most_source_bytes, std::size_t most_loops) {
    for (;;) {
      choose_tensor();
      choose_groups();
      choose_box();
      while (made_.loops.size() < most_loops && split_a_loop()) {
      }
      keep_to_whole_bytes();
      shuffle_loops();
      const std::uint64_t source_bytes = lay_out_source();
      if (source_bytes > most_source_bytes) continue;
      made_.target_bytes = lay_out(made_.run_elems * bits(made_.to) / 8, &ByteLoop::target_stride_bytes);
      made_.source.resize(source_bytes);
      for (std::byte& byte : made_.source) byte = static_cast<std::byte>(random_());
      choose_scales();
      choose_decoding();
      return made_;
    }
  }

 private:
  void choose_tensor() {
    made_.scales.shape = Shape();
    made_.scales.block = Shape();
    const std::size_t rank = one_of(random_, {0, 1, 2, 2, 2, 3, 3});
    std::uint64_t elems = 1;
    for (std::size_t d = 0; d < rank; ++d) {
      const std::uint64_t extent = elems > 2000 ? one_of(random_, {1, 2, 3, 8, 16})
                                                : one_of(random_, {1, 2, 3, 5, 8, 16, 30, 64, 100, 128, 256});
      elems *= extent;
      made_.scales.shape.push_back(extent);
      made_.scales.block.push_back(
          std::max<std::uint64_t>(1, one_of(random_, {1, 1, 2, 3, 8, 16, 32, 100, extent, extent, extent + 3})));
    }
  }

  // Some tensors of codes have groups in an order of their own, and blocks of whole elements.
  void choose_groups() {
    BlockScales& scales = made_.scales;
    scales.groups.clear();
    const std::size_t rank = scales.shape.rank();
    if (!scales.code || rank < 2 || random_() % 4 != 0) return;
    std::vector<std::uint64_t> block(scales.block.begin(), scales.block.end());
    block.back() = scales.shape[rank - 1];
    scales.block = Shape(block);
    scales.groups_dim = random_() % (rank - 1);
    const std::uint64_t blocks = (scales.shape[scales.groups_dim] - 1) / block[scales.groups_dim] + 1;
    scales.groups.resize(scales.shape[scales.groups_dim] * block.back());
    for (std::uint32_t& group : scales.groups) group = static_cast<std::uint32_t>(random_() % blocks);
  }

  // Of each dim a range; of the last ones all, in the run.
  void choose_box() {
    const Shape& shape = made_.scales.shape;
    const Strides strides = strides_of(shape);
    made_.loops.clear();
    made_.strides_elems.clear();
    made_.first_elem = 0;
    made_.run_elems = 1;
    std::size_t in_run = random_() % (shape.rank() + 1);  // from this dim on
    if (random_() % 2 == 0 && shape.rank() > 0) in_run = shape.rank() - 1;
    for (std::size_t d = 0; d < shape.rank(); ++d) {
      std::uint64_t begin = 0;
      std::uint64_t end = shape[d];
      if (d <= in_run && random_() % 2 == 0) {
        begin = random_() % shape[d];
        end = begin + 1 + random_() % (shape[d] - begin);
        if (random_() % 2 == 0) begin = begin / 16 * 16;
      }
      made_.first_elem += begin * strides[d];
      if (d >= in_run) {
        made_.run_elems *= end - begin;
      } else {
        made_.loops.push_back({end - begin, 0, 0});
        made_.strides_elems.push_back(strides[d]);
      }
    }
  }

  // Says whether there was one that could be split.
  bool split_a_loop() {
    for (std::size_t i = 0; i < made_.loops.size(); ++i) {
      for (const std::uint64_t factor : {2U, 3U}) {
        const std::uint64_t count = made_.loops[i].count;
        if (count % factor != 0 || count == factor) continue;
        made_.loops[i].count = factor;
        made_.loops.push_back({count / factor, 0, 0});
        made_.strides_elems.push_back(made_.strides_elems[i] * factor);
        return true;
      }
    }
    return false;
  }

  // Loops step over whole bytes: of the others, every so-manieth round.
  void keep_to_whole_bytes() {
    const std::uint64_t in_byte = 8 / made_.element_bits();
    made_.first_code = static_cast<std::uint8_t>(random_() % in_byte);
    for (std::size_t i = 0; i < made_.loops.size(); ++i) {
      while (made_.strides_elems[i] % in_byte != 0) {
        made_.strides_elems[i] *= 2;
        made_.loops[i].count = (made_.loops[i].count + 1) / 2;
      }
    }
  }

  void shuffle_loops() {
    if (random_() % 2 == 0) return;
    for (std::size_t i = made_.loops.size(); i > 1; --i) {
      const std::size_t other = random_() % i;
      std::swap(made_.loops[i - 1], made_.loops[other]);
      std::swap(made_.strides_elems[i - 1], made_.strides_elems[other]);
    }
  }

  std::uint64_t lay_out_source() {
    if (random_() % 2 == 0) return lay_out(made_.run_bytes(), &ByteLoop::source_stride_bytes);
    for (std::size_t i = 0; i < made_.loops.size(); ++i) {
      made_.loops[i].source_stride_bytes = made_.strides_elems[i] * made_.element_bits() / 8;
    }
    return made_.run_bytes() + source_reach(made_.loops);
  }

  // Strides of one side, in an order of its own; gives the bytes that all of it takes.
  std::uint64_t lay_out(std::uint64_t run_bytes, std::uint64_t ByteLoop::*stride) {
    std::vector<std::size_t> order(made_.loops.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    std::uint64_t extent = run_bytes;
    for (const std::size_t i : order) {
      made_.loops[i].*stride = extent + one_of(random_, {0, 0, 0, 0, 1, 4, 16, 48});
      extent += (made_.loops[i].count - 1) * made_.loops[i].*stride;
    }
    return extent;
  }

  // All of them, or those that the move needs.
  void choose_scales() {
    BlockScales& scales = made_.scales;
    std::uint64_t last = 0;
    scales.first = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t reach = made_.first_elem + made_.run_elems - 1;
    for (std::size_t i = 0; i < made_.loops.size(); ++i) reach += (made_.loops[i].count - 1) * made_.strides_elems[i];
    for (std::uint64_t elem = made_.first_elem; elem <= reach; ++elem) {
      scales.first = std::min(scales.first, scale_number(scales, elem));
      last = std::max(last, scale_number(scales, elem));
    }
    if (random_() % 2 == 0) scales.first = 0;
    scales.dtype = kScaleTypes[random_() % kScaleTypes.size()];
    make_scales(random_, last + 1 - scales.first, scales);
  }

  void choose_decoding() {
    BlockScales& scales = made_.scales;
    scales.product.reset();
    if (random_() % 4 == 0) scales.product = kResultTypes[random_() % kResultTypes.size()];
    scales.tensor_scale = 1;
    scales.tensor_scale_is = random_() % 2 == 0 ? TensorScale::kFactor : TensorScale::kDivisor;
    if (random_() % 2 == 0) scales.tensor_scale = make_tensor_scale(random_);
    scales.zero = 0;
    scales.zeros.clear();
    if (!scales.code) return;
    scales.zero = one_of(random_, {0, 0, 0, 1, 8, 128, 65535});
    if (random_() % 2 == 0) return;
    scales.zeros.resize(scales.values.size() * 8 / bits(scales.dtype));
    for (std::byte& zero : scales.zeros) zero = static_cast<std::byte>(random_() % (1U << made_.element_bits()));
  }

  Random& random_;
  Made made_;
};

inline std::uint64_t block_count(const Shape& shape, const Shape& block) {
  std::uint64_t count = 1;
  for (std::size_t d = 0; d < shape.rank(); ++d) count *= (shape[d] + block[d] - 1) / block[d];
  return count;
}

/// All of a tensor to BF16: of F8_E4M3 with scales in F64, or of codes.
inline Made make_whole(Random& random, const Shape& shape, const Shape& block, std::optional<CodeType> code = {}) {
  Made made;
  made.scales.shape = shape;
  made.scales.block = block;
  made.scales.code = code;
  made.run_elems = *shape.num_elems();
  made.source.resize(made.run_bytes());
  for (std::byte& byte : made.source) byte = static_cast<std::byte>(random());
  make_scales(random, block_count(shape, block), made.scales);
  made.target_bytes = 2 * made.run_elems;
  return made;
}

inline std::string text(const Made& made) {
  const BlockScales& scales = made.scales;
  std::string text = std::string(scales.code ? name(*scales.code) : name(made.from)) + " times " +
                     std::string(name(scales.dtype)) + " to " + std::string(name(made.to)) + ", " +
                     made.scales.shape.text() + " in blocks of " + made.scales.block.text() + ", element " +
                     std::to_string(made.first_elem) + ", runs of " + std::to_string(made.run_elems);
  for (std::size_t i = 0; i < made.loops.size(); ++i) {
    text += "; " + std::to_string(made.loops[i].count) + " x " + std::to_string(made.loops[i].source_stride_bytes) +
            ", " + std::to_string(made.loops[i].target_stride_bytes) + " (" + std::to_string(made.strides_elems[i]) +
            ")";
  }
  text += ", code " + std::to_string(made.first_code) + ", zero " + std::to_string(scales.zero) +
          (scales.zeros.empty() ? "" : " and zero points");
  if (!scales.groups.empty()) text += ", groups along dim " + std::to_string(scales.groups_dim);
  if (scales.product) text += ", products in " + std::string(name(*scales.product));
  if (scales.tensor_scale != 1) {
    text += (scales.tensor_scale_is == TensorScale::kFactor ? ", times " : ", divided by ") +
            std::to_string(scales.tensor_scale);
  }
  return text;
}

}  // namespace lading::device::quantized
