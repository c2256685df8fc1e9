// One kernel for all pairs of floating element types: load, decode, encode, store.
//
// Codes are decoded exactly into lanes of a wide format (F32 mostly; wide_bits() says) and encoded from there with one
// rounding, so no pair rounds twice. All is integer arithmetic but for one subtraction, which is exact and touches
// normal numbers only: flush-to-zero, denormals-are-zero and the rounding mode of the calling thread change nothing.
#include "device/cast_float.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "device/cast_format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cast_float.cc"
#include <hwy/foreach_target.h>  // includes this file again for each instruction set
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lading::device {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <unsigned kBits>
using Code = std::conditional_t<
    kBits == 8, std::uint8_t,
    std::conditional_t<kBits == 16, std::uint16_t, std::conditional_t<kBits == 32, std::uint32_t, std::uint64_t>>>;

// The width of the format that holds both sides of a pair. F8_E5M2 is the upper half of F16.
constexpr unsigned wide_bits(Format from, Format to) {
  const unsigned widest = from.bits() > to.bits() ? from.bits() : to.bits();
  if (widest == 16 && from.bits() != to.bits() && from.family == to.family && from.bias == to.bias) return 16;
  return widest == 64 ? 64 : 32;
}

// The wide format of lanes of this width.
template <class D>
inline constexpr Format kWide = kFormats[format_index(sizeof(hn::TFromD<D>) == 2   ? DType::kF16
                                                      : sizeof(hn::TFromD<D>) == 4 ? DType::kF32
                                                                                   : DType::kF64)];

template <class D>
HWY_API hn::Vec<D> constant(D d, std::uint64_t value) {
  return hn::Set(d, static_cast<hn::TFromD<D>>(value));
}

// Magnitudes never have the top bit, so they compare as signed numbers, as machines prefer.
template <class D>
HWY_API hn::Mask<D> is_less(D d, hn::Vec<D> a, hn::Vec<D> b) {
  const hn::RebindToSigned<D> ds;
  return hn::RebindMask(d, hn::Lt(hn::BitCast(ds, a), hn::BitCast(ds, b)));
}

template <class D>
HWY_API hn::Vec<D> lesser(D d, hn::Vec<D> a, hn::Vec<D> b) {
  const hn::RebindToSigned<D> ds;
  return hn::BitCast(d, hn::Min(hn::BitCast(ds, a), hn::BitCast(ds, b)));
}

template <class D>
HWY_API hn::Vec<D> greater(D d, hn::Vec<D> a, hn::Vec<D> b) {
  const hn::RebindToSigned<D> ds;
  return hn::BitCast(d, hn::Max(hn::BitCast(ds, a), hn::BitCast(ds, b)));
}

// The finite values of a format with fewer exponent bits than the wide one.
template <std::size_t kFrom, class D>
HWY_API hn::Vec<D> decode_finite(D d, hn::Vec<D> magnitude, hn::Vec<D> moved) {
  constexpr Format from = kFormats[kFrom];
  constexpr Format wide = kWide<D>;
  constexpr std::uint64_t rebias = static_cast<std::uint64_t>(wide.bias - from.bias) << wide.mantissa_bits;
  // With exponent 1 in place of 0, a subnormal reads as itself plus the smallest normal number. Taking that away is
  // exact, and the result is normal in the wide format. (When rounding down, 0 would come out as -0: hence the Abs.)
  const hn::RebindToFloat<D> df;
  const auto smallest_normal = constant(d, rebias + wide.smallest_normal());
  const auto raised = hn::BitCast(df, hn::Add(moved, smallest_normal));
  const auto subnormal = hn::BitCast(d, hn::Abs(hn::Sub(raised, hn::BitCast(df, smallest_normal))));
  const auto normal = hn::Add(moved, constant(d, rebias));
  return hn::IfThenElse(is_less(d, magnitude, constant(d, from.smallest_normal())), subnormal, normal);
}

// Codes of kFormats[kFrom] to codes of the wide format. Exact.
template <std::size_t kFrom, class D>
HWY_API hn::Vec<D> decode(D d, hn::Vec<D> code) {
  constexpr Format from = kFormats[kFrom];
  constexpr Format wide = kWide<D>;
  if constexpr (from.bits() == wide.bits()) {
    return code;
  } else {
    const auto magnitude = hn::And(code, constant(d, from.sign() - 1));
    const auto sign = hn::ShiftLeft<wide.bits() - from.bits()>(hn::Xor(code, magnitude));
    const auto moved = hn::ShiftLeft<wide.mantissa_bits - from.mantissa_bits>(magnitude);
    if constexpr (from.family == Family::kIeee) {
      const auto infinity = constant(d, from.infinity());
      const auto quiet = hn::IfThenElseZero(is_less(d, infinity, magnitude), constant(d, wide.quiet()));
      if constexpr (from.exponent_bits == wide.exponent_bits) {
        return hn::Or(hn::Or(moved, sign), quiet);
      } else {
        const auto finite = decode_finite<kFrom>(d, magnitude, moved);
        const auto special = hn::Or(hn::Or(moved, constant(d, wide.infinity())), quiet);
        return hn::Or(hn::IfThenElse(is_less(d, magnitude, infinity), finite, special), sign);
      }
    } else {
      const auto finite = hn::Or(decode_finite<kFrom>(d, magnitude, moved), sign);
      if constexpr (from.family == Family::kFn) {
        const auto nan = hn::Or(hn::Or(moved, constant(d, wide.infinity())), sign);
        return hn::IfThenElse(hn::Eq(magnitude, constant(d, from.sign() - 1)), nan, finite);
      } else {
        const auto nan = constant(d, wide.infinity() | wide.quiet());
        return hn::IfThenElse(hn::Eq(code, constant(d, from.sign())), nan, finite);
      }
    }
  }
}

// The nearest code of kFormats[kTo], ties to the even one, as if it had exponents without end.
template <std::size_t kTo, class D>
HWY_API hn::Vec<D> round_magnitude(D d, hn::Vec<D> magnitude) {
  constexpr Format to = kFormats[kTo];
  constexpr Format wide = kWide<D>;
  constexpr unsigned dropped = wide.mantissa_bits - to.mantissa_bits;
  const auto one = constant(d, 1);
  if constexpr (to.exponent_bits == wide.exponent_bits) {
    const auto odd = hn::And(hn::ShiftRight<dropped>(magnitude), one);
    const auto half = constant(d, (std::uint64_t{1} << (dropped - 1)) - 1);
    return hn::ShiftRight<dropped>(hn::Add(hn::Add(magnitude, half), odd));
  } else {
    // The exponent, but at least that of the smallest normal number: below that, more bits of the significand go.
    constexpr int lowest_exponent = wide.bias - to.bias + 1;
    const auto lowest = constant(d, lowest_exponent);
    const auto exponent = hn::ShiftRight<wide.mantissa_bits>(magnitude);
    const auto held = greater(d, exponent, lowest);
    // Two bits more than all of them is enough to round to zero. A subnormal number of the wide format is always so
    // small; that the next line gives it a leading 1 does no harm.
    const auto shift =
        hn::Add(lesser(d, hn::Sub(held, exponent), constant(d, to.mantissa_bits + 2)), constant(d, dropped));
    const auto significand = hn::Or(hn::And(magnitude, constant(d, wide.smallest_normal() - 1)),  //
                                    constant(d, wide.smallest_normal()));
    const auto odd = hn::And(hn::Shr(significand, shift), one);
    const auto half = hn::Sub(hn::Shl(one, hn::Sub(shift, one)), one);
    const auto rounded = hn::Shr(hn::Add(hn::Add(significand, half), odd), shift);
    // The leading 1, and a carry out of the significand, go into the exponent by themselves.
    return hn::Add(rounded, hn::ShiftLeft<to.mantissa_bits>(hn::Sub(held, lowest)));
  }
}

// Codes of the wide format to codes of kFormats[kTo]. One rounding. The numbers came from kFormats[kFrom].
template <std::size_t kFrom, std::size_t kTo, class D>
HWY_API hn::Vec<D> encode(D d, hn::Vec<D> code) {
  constexpr Format from = kFormats[kFrom];
  constexpr Format to = kFormats[kTo];
  constexpr Format wide = kWide<D>;
  if constexpr (to.bits() == wide.bits()) {
    return code;
  } else if constexpr (to.exponent_bits == wide.exponent_bits && from.mantissa_bits < to.mantissa_bits) {
    return hn::ShiftRight<wide.bits() - to.bits()>(code);  // float8 to BF16: the bits that go are 0
  } else {
    const auto magnitude = hn::And(code, constant(d, wide.sign() - 1));
    const auto sign = hn::ShiftRight<wide.bits() - to.bits()>(hn::Xor(code, magnitude));
    const auto is_nan = is_less(d, constant(d, wide.infinity()), magnitude);
    const auto rounded = round_magnitude<kTo>(d, magnitude);
    if constexpr (to.family == Family::kIeee) {
      const auto payload = hn::ShiftRight<wide.mantissa_bits - to.mantissa_bits>(magnitude);
      const auto nan = hn::Or(hn::And(payload, constant(d, to.smallest_normal() - 1)),  //
                              constant(d, to.infinity() | to.quiet()));
      return hn::Or(hn::IfThenElse(is_nan, nan, lesser(d, rounded, constant(d, to.infinity()))), sign);
    } else if constexpr (to.family == Family::kFn) {
      const auto nan = constant(d, to.sign() - 1);
      return hn::Or(hn::IfThenElse(is_nan, nan, lesser(d, rounded, constant(d, to.sign() - 2))), sign);
    } else {
      const auto nan = constant(d, to.sign());
      const auto is_zero = hn::Eq(rounded, hn::Zero(d));
      const auto is_finite = hn::AndNot(is_nan, is_less(d, rounded, nan));
      return hn::IfThenElse(is_finite, hn::IfThenZeroElse(is_zero, hn::Or(rounded, sign)), nan);
    }
  }
}

// Loads and stores go by bytes, since neither side need be aligned.
template <class D>
HWY_API hn::Vec<D> load(D d, const std::byte* source) {
#if HWY_TARGET == HWY_SCALAR
  hn::TFromD<D> value;
  std::memcpy(&value, source, sizeof(value));
  return hn::Set(d, value);
#else
  return hn::BitCast(d, hn::LoadU(hn::Repartition<std::uint8_t, D>(), reinterpret_cast<const std::uint8_t*>(source)));
#endif
}

template <class D>
HWY_API void store(D d, hn::Vec<D> v, std::byte* target) {
#if HWY_TARGET == HWY_SCALAR
  const hn::TFromD<D> value = hn::GetLane(v);
  std::memcpy(target, &value, sizeof(value));
  static_cast<void>(d);
#else
  const hn::Repartition<std::uint8_t, D> bytes;
  static_cast<void>(d);
  hn::StoreU(hn::BitCast(bytes, v), bytes, reinterpret_cast<std::uint8_t*>(target));
#endif
}

template <class D, class V>
HWY_API hn::Vec<D> widen(D d, V v) {
  constexpr std::size_t from_bytes = sizeof(hn::TFromV<V>);
  constexpr std::size_t to_bytes = sizeof(hn::TFromD<D>);
  if constexpr (from_bytes == to_bytes) {
    return v;
  } else if constexpr (to_bytes == 8 && from_bytes < 4) {
    return hn::PromoteTo(d, hn::PromoteTo(hn::Rebind<std::uint32_t, D>(), v));
  } else {
    return hn::PromoteTo(d, v);
  }
}

template <class D, class V>
HWY_API hn::Vec<D> narrow(D d, V v) {
  if constexpr (sizeof(hn::TFromV<V>) == sizeof(hn::TFromD<D>)) {
    return v;
  } else {
    return hn::TruncateTo(d, v);
  }
}

template <std::size_t kFrom, std::size_t kTo>
void cast(const std::byte* source, std::byte* target, std::size_t elems) {
  constexpr unsigned from_bits = kFormats[kFrom].bits();
  constexpr unsigned to_bits = kFormats[kTo].bits();
  const hn::ScalableTag<Code<wide_bits(kFormats[kFrom], kFormats[kTo])>> wide;
  const hn::Rebind<Code<from_bits>, decltype(wide)> from;
  const hn::Rebind<Code<to_bits>, decltype(wide)> to;
  const auto step = [&](const std::byte* in, std::byte* out) HWY_ATTR {
    store(to, narrow(to, encode<kFrom, kTo>(wide, decode<kFrom>(wide, widen(wide, load(from, in))))), out);
  };

  const std::size_t lanes = hn::Lanes(wide);
  std::size_t i = 0;
  for (; i + lanes <= elems; i += lanes) step(source + i * (from_bits / 8), target + i * (to_bits / 8));
  if (i == elems) return;
  // What is left goes through a whole vector on the stack, so that it meets the same code.
  std::byte in[hn::MaxLanes(wide) * from_bits / 8] = {};
  std::byte out[hn::MaxLanes(wide) * to_bits / 8];
  std::memcpy(in, source + i * (from_bits / 8), (elems - i) * (from_bits / 8));
  step(in, out);
  std::memcpy(target + i * (to_bits / 8), out, (elems - i) * (to_bits / 8));
}

template <std::size_t kFrom, std::size_t kTo>
constexpr Cast cast_of_pair() {
  if constexpr (kFrom == kTo) {
    return nullptr;
  } else {
    return &cast<kFrom, kTo>;
  }
}

template <std::size_t... kPair>
Cast pick(std::size_t pair, std::index_sequence<kPair...>) {
  constexpr std::size_t count = kFormats.size();
  static constexpr Cast table[] = {cast_of_pair<kPair / count, kPair % count>()...};
  return table[pair];
}

Cast find(std::size_t from, std::size_t to) {
  return pick(from * kFormats.size() + to, std::make_index_sequence<kFormats.size() * kFormats.size()>());
}

}  // namespace HWY_NAMESPACE
}  // namespace lading::device
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lading::device {

HWY_EXPORT(find);

Cast find_float_cast(DType from, DType to) {
  const std::size_t f = format_index(from);
  const std::size_t t = format_index(to);
  if (f == kFormats.size() || t == kFormats.size()) return nullptr;
  return HWY_DYNAMIC_DISPATCH(find)(f, t);
}

}  // namespace lading::device
#endif
