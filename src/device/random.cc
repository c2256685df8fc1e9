// Philox and the definition of random_word.h on vectors; instruction sets without fma use random_word.h itself.
//
// A 64-bit lane holds one counter. The lanes' order is chosen so that interleaving the four words within blocks of 128
// bits yields them in the order of the elements: lane 2b has quad b, lane 2b + 1 has quad (lanes / 2) + b.
#include "device/random.h"

#include <algorithm>
#include <cstring>

#include "device/random_tail.h"
#include "device/random_word.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/random.cc"
#include <hwy/foreach_target.h>  // includes this file again for each instruction set
#include <hwy/highway.h>

#ifndef LADING_DEVICE_RANDOM_ONCE
#define LADING_DEVICE_RANDOM_ONCE
namespace lading::device {
namespace {

struct SampleRun {
  RandomKey key;
  std::uint64_t first_elem;
  float* out;
  std::size_t elems;
};

}  // namespace
}  // namespace lading::device
#endif  // LADING_DEVICE_RANDOM_ONCE

HWY_BEFORE_NAMESPACE();
namespace lading::device {
namespace HWY_NAMESPACE {
namespace {

#if !HWY_NATIVE_FMA || HWY_TARGET == HWY_SCALAR

void fill(const SampleParameters& parameters, const SampleRun& run) {
  std::array<std::uint32_t, 4> words = {};
  for (std::size_t i = 0; i < run.elems; ++i) {
    const std::uint64_t elem = run.first_elem + i;
    if (i == 0 || elem % 4 == 0) words = random_words(run.key, elem / 4);
    run.out[i] = value_of(parameters, words[elem % 4]);
  }
}

void fill_from(const SampleParameters& parameters, std::span<const std::uint32_t> words, float* out) {
  for (std::size_t i = 0; i < words.size(); ++i) out[i] = value_of(parameters, words[i]);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Ints = hn::RebindToSigned<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
using Quads = hn::Repartition<std::uint64_t, Words>;
using FloatVec = hn::Vec<Floats>;
using IntVec = hn::Vec<Ints>;
using WordVec = hn::Vec<Words>;
using QuadVec = hn::Vec<Quads>;

template <std::size_t kCount>
HWY_INLINE FloatVec polynomial(const std::array<float, kCount>& fit, FloatVec at) {
  FloatVec sum = hn::Set(Floats(), fit[kCount - 1]);
  HWY_UNROLL(16)
  for (std::size_t k = kCount - 1; k-- > 0;) sum = hn::MulAdd(sum, at, hn::Set(Floats(), fit[k]));
  return sum;
}

HWY_INLINE FloatVec minus_log(FloatVec number) {
  const Floats f;
  const Ints i;
  const auto root_half = hn::Set(i, kBitsOfRootHalf);
  const auto moved = hn::Sub(hn::BitCast(i, number), root_half);
  const auto exponent = hn::ConvertTo(f, hn::ShiftRight<23>(moved));
  const auto mantissa = hn::Add(hn::And(moved, hn::Set(i, kMantissaMask)), root_half);
  const auto g = hn::Sub(hn::BitCast(f, mantissa), hn::Set(f, 1.0F));
  return hn::MulAdd(exponent, hn::Set(f, kMinusLogOf2), hn::Mul(g, polynomial(kLogFit, g)));
}

// `smaller` is the lesser of x and y = 1 - x; `rest` is 1 if that is x, and else 2 * y.
HWY_INLINE FloatVec quantile(FloatVec x, FloatVec smaller, FloatVec rest) {
  const Floats f;
  const auto w = minus_log(hn::NegMulAdd(smaller, smaller, rest));
  const auto centre = hn::Mul(x, polynomial(kCentreFit, hn::Sub(w, hn::Set(f, kCentreMiddle))));
  const auto is_tail = hn::Gt(w, hn::Set(f, kTailBegins));
  if (HWY_LIKELY(hn::AllFalse(f, is_tail))) return centre;
  const auto root = hn::Sqrt(w);
  const auto tail = hn::Mul(root, polynomial(kTailFit, hn::Div(hn::Set(f, 1.0F), root)));
  return hn::IfThenElse(is_tail, tail, centre);
}

// An integer in units of 2^-32.
HWY_INLINE FloatVec fraction(IntVec number) {
  return hn::Mul(hn::ConvertTo(Floats(), number), hn::Set(Floats(), kTwoToMinus32));
}

struct Constant {
  HWY_INLINE explicit Constant(const SampleParameters& parameters) : p(parameters) {}

  HWY_INLINE FloatVec operator()(WordVec /*words*/) const { return hn::Set(Floats(), p.shift); }

  const SampleParameters& p;
};

struct Uniform {
  HWY_INLINE explicit Uniform(const SampleParameters& parameters) : p(parameters) {}

  HWY_INLINE FloatVec operator()(WordVec words) const {
    const Floats f;
    const auto unit = hn::Mul(hn::ConvertTo(f, hn::BitCast(Ints(), hn::ShiftRight<8>(words))), hn::Set(f, 0x1p-24F));
    const auto value = hn::MulAdd(unit, hn::Set(f, p.scale), hn::Set(f, p.shift));
    return hn::Min(hn::Max(value, hn::Set(f, p.least)), hn::Set(f, p.most));
  }

  const SampleParameters& p;
};

struct Normal {
  HWY_INLINE explicit Normal(const SampleParameters& parameters) : p(parameters) {}

  HWY_INLINE FloatVec operator()(WordVec words) const {
    const Floats f;
    const Ints i;
    const auto one = hn::Set(f, 1.0F);
    const auto odd = hn::BitCast(i, hn::Or(hn::ShiftLeft<1>(words), hn::Set(Words(), 1U)));
    const auto c = fraction(hn::Abs(odd));
    const auto is_x = hn::MaskFromVec(hn::BitCast(f, hn::BroadcastSignBit(odd)));
    const auto x = hn::IfThenElse(is_x, c, hn::Sub(one, c));
    const auto magnitude = quantile(x, c, hn::IfThenElse(is_x, one, hn::Add(c, c)));
    const auto sign = hn::And(words, hn::Set(Words(), 0x80000000U));
    const auto z = hn::BitCast(f, hn::Xor(hn::BitCast(Words(), magnitude), sign));
    return hn::MulAdd(z, hn::Set(f, p.scale), hn::Set(f, p.shift));
  }

  const SampleParameters& p;
};

struct TruncatedNormal {
  HWY_INLINE explicit TruncatedNormal(const SampleParameters& parameters) : p(parameters) {}

  HWY_INLINE FloatVec operator()(WordVec words) const {
    const Floats f;
    const Ints i;
    const auto one = hn::Set(f, 1.0F);
    const auto odd = hn::BitCast(i, hn::Or(words, hn::Set(Words(), 1U)));
    const auto from_end = hn::Abs(odd);
    const auto from_middle = hn::BitCast(i, hn::Sub(hn::Set(Words(), 0x80000000U), hn::BitCast(Words(), from_end)));
    const auto is_upper = hn::MaskFromVec(hn::BitCast(f, hn::BroadcastSignBit(odd)));
    const auto of_half = [&](float lower, float upper)
                             HWY_ATTR { return hn::IfThenElse(is_upper, hn::Set(f, upper), hn::Set(f, lower)); };
    const TruncatedHalf& lower = p.halves[0];
    const TruncatedHalf& upper = p.halves[1];
    const auto slope = of_half(lower.slope, upper.slope);
    const auto y = hn::MulAdd(fraction(from_end), slope, of_half(lower.y_base, upper.y_base));
    const auto x = hn::MulAdd(fraction(from_middle), slope, of_half(lower.x_base, upper.x_base));
    const auto is_tail_side = hn::Lt(y, hn::Set(f, 0.5F));
    const auto magnitude =
        quantile(x, hn::IfThenElse(is_tail_side, y, x), hn::IfThenElse(is_tail_side, hn::Add(y, y), one));
    const auto z = hn::Mul(magnitude, of_half(lower.sign, upper.sign));
    const auto value = hn::MulAdd(z, hn::Set(f, p.scale), hn::Set(f, p.shift));
    return hn::Min(hn::Max(value, hn::Set(f, p.least)), hn::Set(f, p.most));
  }

  const SampleParameters& p;
};

struct RoundKeys {
  explicit RoundKeys(RandomKey key) {
    auto key0 = static_cast<std::uint32_t>(key.value);
    auto key1 = static_cast<std::uint32_t>(key.value >> 32);
    for (std::size_t round = 0; round < kPhiloxRounds; ++round) {
      of_round[round] = {key0, key1};
      key0 += kPhiloxKeySteps[0];
      key1 += kPhiloxKeySteps[1];
    }
  }

  std::array<std::array<std::uint64_t, 2>, kPhiloxRounds> of_round;
};

struct TwoVectors {
  WordVec first;
  WordVec second;
};

// The words of as many quads as there are lanes. Only the lower half of a lane counts; what is above it is left there.
HWY_INLINE TwoVectors words_of(const RoundKeys& keys, QuadVec quads) {
  const Quads q;
  const Words w;
  const auto multiplier0 = hn::BitCast(w, hn::Set(q, std::uint64_t{kPhiloxMultipliers[0]}));
  const auto multiplier1 = hn::BitCast(w, hn::Set(q, std::uint64_t{kPhiloxMultipliers[1]}));
  QuadVec c0 = quads;
  QuadVec c1 = hn::ShiftRight<32>(quads);
  QuadVec c2 = hn::Set(q, std::uint64_t{kRandomDomain[0]});
  QuadVec c3 = hn::Set(q, std::uint64_t{kRandomDomain[1]});
  HWY_UNROLL(10)
  for (std::size_t round = 0; round < kPhiloxRounds; ++round) {
    const auto product0 = hn::MulEven(hn::BitCast(w, c0), multiplier0);
    const auto product1 = hn::MulEven(hn::BitCast(w, c2), multiplier1);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1), hn::Set(q, keys.of_round[round][0]));
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), c3), hn::Set(q, keys.of_round[round][1]));
    c1 = product1;
    c3 = product0;
  }
  const auto lower = hn::Set(q, std::uint64_t{0xffffffff});
  const auto front = hn::Or(hn::And(c0, lower), hn::ShiftLeft<32>(c1));
  const auto back = hn::Or(hn::And(c2, lower), hn::ShiftLeft<32>(c3));
  return {hn::BitCast(w, hn::InterleaveLower(q, front, back)), hn::BitCast(w, hn::InterleaveUpper(q, front, back))};
}

template <class Transform>
HWY_INLINE void fill_with(const Transform& transform, const SampleRun& run) {
  const Quads q;
  const std::size_t lanes = hn::Lanes(q);
  const std::size_t batch = 4 * lanes;
  HWY_ALIGN std::uint64_t order[hn::MaxLanes(Quads())];
  for (std::size_t lane = 0; lane < lanes; ++lane) order[lane] = lane / 2 + (lane % 2) * (lanes / 2);
  const RoundKeys keys(run.key);
  QuadVec quads = hn::Add(hn::Set(q, run.first_elem / 4), hn::Load(q, order));
  auto skipped = static_cast<std::size_t>(run.first_elem % 4);
  float* out = run.out;
  float* const end = run.out + run.elems;
  while (out != end) {
    const TwoVectors words = words_of(keys, quads);
    const FloatVec first = transform(words.first);
    const FloatVec second = transform(words.second);
    const auto left = static_cast<std::size_t>(end - out);
    if (HWY_LIKELY(skipped == 0 && left >= batch)) {
      hn::StoreU(first, Floats(), out);
      hn::StoreU(second, Floats(), out + 2 * lanes);
      out += batch;
    } else {
      HWY_ALIGN float values[4 * hn::MaxLanes(Quads())];
      hn::Store(first, Floats(), values);
      hn::Store(second, Floats(), values + 2 * lanes);
      const std::size_t kept = std::min(left, batch - skipped);
      std::memcpy(out, values + skipped, kept * sizeof(float));
      out += kept;
      skipped = 0;
    }
    quads = hn::Add(quads, hn::Set(q, std::uint64_t{lanes}));
  }
}

// Calls `fill` with what makes values of this kind.
template <class Fill>
HWY_INLINE void with_transform(const SampleParameters& parameters, const Fill& fill) {
  switch (parameters.kind) {
    case SampleKind::kConstant: fill(Constant(parameters)); break;
    case SampleKind::kUniform: fill(Uniform(parameters)); break;
    case SampleKind::kNormal: fill(Normal(parameters)); break;
    case SampleKind::kTruncatedNormal: fill(TruncatedNormal(parameters)); break;
  }
}

void fill(const SampleParameters& parameters, const SampleRun& run) {
  with_transform(parameters, [&](const auto& transform) HWY_ATTR { fill_with(transform, run); });
}

void fill_from(const SampleParameters& parameters, std::span<const std::uint32_t> words, float* out) {
  const std::size_t lanes = hn::Lanes(Words());
  with_transform(parameters, [&](const auto& transform) HWY_ATTR {
    std::size_t i = 0;
    for (; i + lanes <= words.size(); i += lanes) {
      hn::StoreU(transform(hn::LoadU(Words(), &words[i])), Floats(), out + i);
    }
    for (; i < words.size(); ++i) out[i] = hn::GetLane(transform(hn::Set(Words(), words[i])));
  });
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lading::device
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lading::device {
namespace {

HWY_EXPORT(fill);
HWY_EXPORT(fill_from);

constexpr std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

RandomKey random_key(std::uint64_t seed, std::string_view canonical_name) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : canonical_name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return {mixed(hash ^ mixed(seed + 0x9e3779b97f4a7c15))};
}

void sample(const SampleParameters& parameters, RandomKey key, std::uint64_t first_elem, std::span<float> out) {
  const DefaultFloatingPoint modes;
  HWY_DYNAMIC_DISPATCH(fill)(parameters, {key, first_elem, out.data(), out.size()});
}

void sample(const RandomRecipe& recipe, RandomKey key, std::uint64_t first_elem, std::span<float> out) {
  const Result<SampleParameters> parameters = prepare_sample(recipe);
  LADING_CHECK(parameters.has_value());
  sample(*parameters, key, first_elem, out);
}

void values_of(const SampleParameters& parameters, std::span<const std::uint32_t> words, std::span<float> out) {
  const DefaultFloatingPoint modes;
  LADING_CHECK(words.size() == out.size());
  HWY_DYNAMIC_DISPATCH(fill_from)(parameters, words, out.data());
}

}  // namespace lading::device
#endif  // HWY_ONCE
