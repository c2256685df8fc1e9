#include "device/cast.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <limits>
#include <random>
#include <set>

#include "device/cast_check_for_tests.h"
#include "device/cast_paths.h"
#include "device/cast_reference_for_tests.h"

namespace lading::device {
namespace {

using reference::Differences;
using reference::kLayouts;
using reference::Layout;
using reference::layout_of;
using reference::Nearest;
using Codes = std::vector<std::uint64_t>;

Codes all_codes(const Layout& layout) {
  Codes codes(std::size_t{1} << layout.bits);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = i;
  return codes;
}

std::string text(const Layout& from, const Layout& to, const Differences& found) {
  return fmt::format("{} to {}: {} differ, first {:#x} gives {:#x}, not {:#x}", name(from.dtype), name(to.dtype),
                     found.count, found.source, found.found, found.wanted);
}

// Every cast of these codes, on every path that this machine has.
void expect_reference(const Layout& from, const Layout& to, const Codes& codes) {
  Nearest nearest(to);
  const std::vector<std::byte> source = reference::packed(from, codes);
  const std::vector<std::byte> wanted = reference::expected(from, nearest, codes);
  for (const CastPath& path : cast_paths()) {
    use_cast_path(path);
    const Differences found = reference::differences(find_cast(from.dtype, to.dtype), {from, to, source, wanted});
    EXPECT_EQ(found.count, 0U) << path.name << ": " << text(from, to, found);
  }
  use_best_cast_path();
}

class Casts : public testing::TestWithParam<Layout> {};

std::string test_name(const testing::TestParamInfo<Layout>& layout) { return std::string(name(layout.param.dtype)); }

INSTANTIATE_TEST_SUITE_P(To, Casts, testing::ValuesIn(kLayouts), test_name);

TEST_P(Casts, OfAllCodesOfNarrowFormats) {
  for (const Layout& from : kLayouts) {
    if (from.dtype != GetParam().dtype && from.bits <= 16) expect_reference(from, GetParam(), all_codes(from));
  }
}

// 2^24 numbers, both signs, all upper halves; of the lower halves those where rounding turns, and others at random.
// In order, which is what makes the reference fast.
TEST_P(Casts, OfManyF32) {
  if (GetParam().dtype == DType::kF32) return;
  std::mt19937 random(24);
  std::set<std::uint64_t> turns;
  for (std::uint64_t bit = 1; bit <= 0x8000; bit *= 2) turns.insert({bit - 1, bit, bit + 1});
  for (std::uint64_t high = 0; high < 0x10000; high += 0x1000) turns.insert({high, high + 1, high + 0xFFF});
  constexpr std::size_t kLows = 256;
  constexpr std::uint64_t kHighsAtOnce = 1024;
  for (std::uint64_t first = 0; first < 0x10000; first += kHighsAtOnce) {
    Codes codes;
    for (std::uint64_t high = first; high < first + kHighsAtOnce; ++high) {
      Codes lows(turns.begin(), turns.end());
      while (lows.size() < kLows) lows.push_back(random() & 0xFFFF);
      std::sort(lows.begin(), lows.end());
      for (const std::uint64_t low : lows) codes.push_back(high << 16 | low);
    }
    expect_reference(layout_of(DType::kF32), GetParam(), codes);
  }
}

// A number and its neighbours, both signs.
void add_around(double value, Codes& codes) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
  for (const std::uint64_t near : {bits - 1, bits, bits + 1}) {
    if (near == std::numeric_limits<std::uint64_t>::max()) continue;
    codes.insert(codes.end(), {near, near | std::uint64_t{1} << 63});
  }
}

// The numbers of a format and the midpoints between them, where rounding to it is hardest.
Codes hard_f64(const Layout& to) {
  Codes codes;
  std::mt19937_64 random(64);
  const auto add = [&](std::uint64_t code) {
    add_around(reference::value_of(to, code), codes);
    add_around((reference::value_of(to, code) + reference::value_of(to, code + 1)) / 2, codes);
  };
  if (to.bits <= 16) {
    for (std::uint64_t code = 0; code <= to.largest; ++code) add(code);
  } else if (to.bits == 32) {
    for (std::uint64_t code = 0; code < 5000; ++code) add(code);
    for (std::uint64_t code = to.largest - 5000; code <= to.largest; ++code) add(code);
    for (int i = 0; i < 50'000; ++i) add(random() % to.largest);
    for (int i = 0; i < 50'000; ++i) add(random() % 0x800000);
  }
  return codes;
}

TEST_P(Casts, OfHardF64) {
  if (GetParam().dtype == DType::kF64) return;
  Codes codes = hard_f64(GetParam());
  if (GetParam().bits < 32) {  // half-way for F32 as well: where rounding twice would show
    const Codes more = hard_f64(layout_of(DType::kF32));
    codes.insert(codes.end(), more.begin(), more.end());
  }
  expect_reference(layout_of(DType::kF64), GetParam(), codes);
}

TEST_P(Casts, OfRandomF64) {
  if (GetParam().dtype == DType::kF64) return;
  std::mt19937_64 random(65);
  Codes codes;
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t bits = random();
    codes.push_back(bits);
    codes.push_back((bits & 0x800FFFFFFFFFFFFF) | (1023 - 160 + bits % 320) << 52);  // about the range of F32
    codes.push_back(bits & 0x800FFFFFFFFFFFFF);                                      // subnormal
    codes.push_back(bits | 0x7FF0000000000000);                                      // NaN, quiet or not
  }
  codes.insert(codes.end(), {0x7FF0000000000000, 0xFFF0000000000000, 0x7FF0000000000001, 0, std::uint64_t{1} << 63});
  expect_reference(layout_of(DType::kF64), GetParam(), codes);
}

#if defined(__x86_64__)
// An unusual floating-point environment, until it goes out of scope. PyTorch's set_flush_denormal sets both bits.
class Unusual {
 public:
  explicit Unusual(int rounding) : before_(__builtin_ia32_stmxcsr()) {
    std::fesetround(rounding);
    constexpr unsigned kFlushToZero = 0x8000;
    constexpr unsigned kDenormalsAreZero = 0x40;
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | kFlushToZero | kDenormalsAreZero);
  }
  ~Unusual() {
    std::fesetround(FE_TONEAREST);
    __builtin_ia32_ldmxcsr(before_);
  }
  Unusual(const Unusual&) = delete;
  Unusual& operator=(const Unusual&) = delete;

 private:
  unsigned before_;
};

// All of a narrow format; of a wide one random numbers, half of them subnormal.
Codes codes_for_environment(const Layout& from) {
  if (from.bits <= 16) return all_codes(from);
  Codes codes;
  std::mt19937_64 random(66);
  for (int i = 0; i < 50'000; ++i) {
    codes.push_back(random() >> (64 - from.bits));
    codes.push_back(random() % (std::uint64_t{1} << from.mantissa_bits));
  }
  return codes;
}

TEST_P(Casts, DoNotDependOnTheFloatingPointEnvironment) {
  const Layout& to = GetParam();
  for (const Layout& from : kLayouts) {
    if (from.dtype == to.dtype) continue;
    const Codes codes = codes_for_environment(from);
    Nearest nearest(to);
    const std::vector<std::byte> source = reference::packed(from, codes);
    const std::vector<std::byte> wanted = reference::expected(from, nearest, codes);
    for (const CastPath& path : cast_paths()) {
      use_cast_path(path);
      const Cast cast = find_cast(from.dtype, to.dtype);
      for (const int rounding : {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
        Differences found;
        {
          const Unusual environment(rounding);
          found = reference::differences(cast, {from, to, source, wanted});
        }
        EXPECT_EQ(found.count, 0U) << path.name << ", rounding " << rounding << ": " << text(from, to, found);
      }
    }
  }
  use_best_cast_path();
}
#endif

bool is_integer(DType dtype) {
  return class_of(dtype) == DTypeClass::kSigned || class_of(dtype) == DTypeClass::kUnsigned;
}

// Any count, any alignment, and not a byte before or behind.
TEST(Cast, WritesItsElementsAndNoByteElse) {
  constexpr std::size_t kMaxElems = 70;
  constexpr std::byte kUntouched{0xA5};
  std::mt19937 random(67);
  for (const CastPath& path : cast_paths()) {
    use_cast_path(path);
    for (const DType from : all_dtypes()) {
      for (const DType to : all_dtypes()) {
        const Cast cast = find_cast(from, to);
        if (cast == nullptr) continue;
        const std::size_t from_bytes = bits(from) / 8;
        const std::size_t to_bytes = bits(to) / 8;
        for (std::size_t elems = 0; elems <= kMaxElems; ++elems) {
          // Exactly as long as it must be, so that AddressSanitizer sees a read that goes too far.
          const std::size_t shift = elems % 9;
          std::vector<std::byte> source(shift + elems * from_bytes);
          for (std::byte& b : source) b = static_cast<std::byte>(random());
          std::vector<std::byte> target(shift + elems * to_bytes + 64, kUntouched);
          cast(source.data() + shift, target.data() + shift, elems);
          std::vector<std::byte> one_by_one(target.size(), kUntouched);
          for (std::size_t i = 0; i < elems; ++i) {
            cast(source.data() + shift + i * from_bytes, one_by_one.data() + shift + i * to_bytes, 1);
          }
          ASSERT_EQ(target, one_by_one) << path.name << ": " << name(from) << " to " << name(to) << ", " << elems;
        }
      }
    }
  }
  use_best_cast_path();
}

TEST(Cast, ThereIsOneExactlyWhereTheContractHasOne) {
  const std::set<DType> floats = {DType::kF8E5M2, DType::kF8E4M3, DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz,
                                  DType::kF16,    DType::kBF16,   DType::kF32,        DType::kF64};
  for (const DType from : all_dtypes()) {
    for (const DType to : all_dtypes()) {
      const bool widens = is_integer(from) && is_integer(to) && bits(to) > bits(from) &&
                          (class_of(from) == DTypeClass::kUnsigned || class_of(to) == DTypeClass::kSigned);
      const bool converts = from != to && floats.contains(from) && floats.contains(to);
      EXPECT_EQ(find_cast(from, to) != nullptr, widens || converts) << name(from) << " to " << name(to);
    }
  }
}

TEST(Cast, IntegersWidenWithTheirValue) {
  for (const DType from : all_dtypes()) {
    for (const DType to : all_dtypes()) {
      if (!is_integer(from) || !is_integer(to) || find_cast(from, to) == nullptr) continue;
      const std::uint64_t sign = std::uint64_t{1} << (bits(from) - 1);
      const std::uint64_t to_mask = bits(to) == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits(to)) - 1;
      for (const std::uint64_t code : {std::uint64_t{0}, std::uint64_t{1}, sign - 1, sign, sign + 1, 2 * sign - 1}) {
        const bool negative = class_of(from) == DTypeClass::kSigned && code >= sign;
        const std::uint64_t wanted = (negative ? code - 2 * sign : code) & to_mask;
        std::uint64_t found = 0;
        find_cast(from, to)(reinterpret_cast<const std::byte*>(&code), reinterpret_cast<std::byte*>(&found), 1);
        EXPECT_EQ(found, wanted) << name(from) << " to " << name(to) << ", " << code;
      }
    }
  }
}

TEST(Cast, EachPathIsCodeOfItsOwn) {
  std::set<Cast> casts;
  const std::vector<CastPath> paths = cast_paths();
  for (const CastPath& path : paths) {
    use_cast_path(path);
    casts.insert(find_cast(DType::kF32, DType::kBF16));
  }
  EXPECT_EQ(casts.size(), paths.size());
  use_best_cast_path();
  EXPECT_EQ(casts.count(find_cast(DType::kF32, DType::kBF16)), 1U);
}

// A few by hand, so that reference and casts cannot be wrong together.
struct Known {
  DType from;
  std::uint64_t source;
  DType to;
  std::uint64_t wanted;
};

TEST(Cast, KnownNumbers) {
  const Known cases[] = {
      {DType::kF32, 0x3F800000, DType::kBF16, 0x3F80},          // 1
      {DType::kF32, 0x3F808000, DType::kBF16, 0x3F80},          // half-way, to even, down
      {DType::kF32, 0x3F818000, DType::kBF16, 0x3F82},          // half-way, to even, up
      {DType::kF32, 0x7F7FFFFF, DType::kBF16, 0x7F80},          // overflow to Inf
      {DType::kF32, 0x00000001, DType::kBF16, 0x0000},          //
      {DType::kF32, 0x00018000, DType::kBF16, 0x0002},          // subnormal, half-way
      {DType::kF32, 0x7F800001, DType::kBF16, 0x7FC0},          // a signalling NaN becomes quiet
      {DType::kF32, 0xFFA00000, DType::kBF16, 0xFFE0},          // and keeps sign and payload
      {DType::kBF16, 0x7F81, DType::kF32, 0x7FC10000},          //
      {DType::kF32, 0x477FEFFF, DType::kF16, 0x7BFF},           // 65519.996: the largest
      {DType::kF32, 0x477FF000, DType::kF16, 0x7C00},           // 65520: Inf
      {DType::kF32, 0x33000000, DType::kF16, 0x0000},           // 2^-25: half of the smallest
      {DType::kF32, 0x33000001, DType::kF16, 0x0001},           //
      {DType::kF16, 0x0001, DType::kF32, 0x33800000},           // 2^-24
      {DType::kF16, 0xFC00, DType::kBF16, 0xFF80},              // -Inf
      {DType::kF16, 0x8000, DType::kF32, 0x80000000},           // -0
      {DType::kF32, 0x43E80000, DType::kF8E4M3, 0x7E},          // 464, half-way between 448 and what is not there
      {DType::kF32, 0x7F800000, DType::kF8E4M3, 0x7E},          // Inf saturates, as in PyTorch
      {DType::kF32, 0xFF800000, DType::kF8E4M3, 0xFE},          //
      {DType::kF32, 0xFFC00000, DType::kF8E4M3, 0xFF},          // NaN
      {DType::kF32, 0x47700000, DType::kF8E5M2, 0x7C},          // 61440, half-way between 57344 and 65536
      {DType::kF32, 0x80000000, DType::kF8E4M3Fnuz, 0x00},      // there is no -0
      {DType::kF32, 0x7F800000, DType::kF8E5M2Fnuz, 0x80},      // nor Inf
      {DType::kF8E4M3Fnuz, 0x80, DType::kF32, 0x7FC00000},      // NaN
      {DType::kF8E4M3Fnuz, 0x7F, DType::kF32, 0x43700000},      // 240
      {DType::kF8E4M3, 0x01, DType::kBF16, 0x3B00},             // 2^-9
      {DType::kF64, 0x3FF0100000000001, DType::kBF16, 0x3F81},  // just above half-way: twice rounded it would be 0x3F80
      {DType::kF64, 0x3FF0020000000001, DType::kF16, 0x3C01},   // the same for F16
      {DType::kF64, 0x36A0000000000000, DType::kF32, 0x00000001},  // 2^-149
      {DType::kF32, 0x00000001, DType::kF64, 0x36A0000000000000},
  };
  for (const Known& known : cases) {
    for (const CastPath& path : cast_paths()) {
      use_cast_path(path);
      std::uint64_t found = 0;
      find_cast(known.from, known.to)(reinterpret_cast<const std::byte*>(&known.source),
                                      reinterpret_cast<std::byte*>(&found), 1);
      EXPECT_EQ(found, known.wanted) << path.name << ": " << name(known.from) << " to " << name(known.to) << ", "
                                     << fmt::format("{:#x}", known.source);
    }
  }
  use_best_cast_path();
}

// Errors as one makes them, to see that the comparison finds each.
template <class From, class To, To (*kConvert)(From)>
void one_by_one(const std::byte* source, std::byte* target, std::size_t elems) {
  for (std::size_t i = 0; i < elems; ++i) {
    From in;
    std::memcpy(&in, source + i * sizeof(From), sizeof(From));
    const To out = kConvert(in);
    std::memcpy(target + i * sizeof(To), &out, sizeof(To));
  }
}

std::uint16_t right_bf16(std::uint32_t f) {
  if ((f & 0x7FFFFFFF) > 0x7F800000) return static_cast<std::uint16_t>(f >> 16 | 0x40);
  return static_cast<std::uint16_t>((f + 0x7FFF + (f >> 16 & 1)) >> 16);
}
std::uint16_t truncated(std::uint32_t f) {
  return static_cast<std::uint16_t>(f >> 16 | ((f << 1) > 0xFF000000 ? 0x40 : 0));
}
std::uint16_t halves_up(std::uint32_t f) {
  return (f & 0x7FFFFFFF) > 0x7F800000 ? right_bf16(f) : static_cast<std::uint16_t>((f + 0x8000) >> 16);
}
std::uint16_t nan_lost(std::uint32_t f) { return static_cast<std::uint16_t>((f + 0x7FFF + (f >> 16 & 1)) >> 16); }
std::uint16_t flushed(std::uint32_t f) { return (f & 0x7F800000) == 0 ? f >> 16 & 0x8000 : right_bf16(f); }
std::uint16_t rounded_twice(std::uint64_t d) {
  return right_bf16(std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(d))));
}

TEST(CastCheck, FindsPlantedErrors) {
  const Layout& f32 = layout_of(DType::kF32);
  const Layout& f64 = layout_of(DType::kF64);
  const Layout& bf16 = layout_of(DType::kBF16);
  Codes codes;
  std::mt19937 random(68);
  for (std::uint64_t high = 0; high < 0x10000; ++high) {
    codes.insert(codes.end(), {high << 16, high << 16 | 0x8000, high << 16 | (random() & 0xFFFF)});
  }
  Nearest nearest(bf16);
  const std::vector<std::byte> source = reference::packed(f32, codes);
  const std::vector<std::byte> wanted = reference::expected(f32, nearest, codes);
  const auto count = [&](Cast cast) { return reference::differences(cast, {f32, bf16, source, wanted}).count; };
  EXPECT_EQ(count(one_by_one<std::uint32_t, std::uint16_t, right_bf16>), 0U);
  EXPECT_GT(count(one_by_one<std::uint32_t, std::uint16_t, truncated>), 0U);
  EXPECT_GT(count(one_by_one<std::uint32_t, std::uint16_t, halves_up>), 0U);
  EXPECT_GT(count(one_by_one<std::uint32_t, std::uint16_t, nan_lost>), 0U);
  EXPECT_GT(count(one_by_one<std::uint32_t, std::uint16_t, flushed>), 0U);

  const Codes hard = hard_f64(bf16);
  const std::vector<std::byte> hard_source = reference::packed(f64, hard);
  const std::vector<std::byte> hard_wanted = reference::expected(f64, nearest, hard);
  const Differences twice = reference::differences(one_by_one<std::uint64_t, std::uint16_t, rounded_twice>,
                                                   {f64, bf16, hard_source, hard_wanted});
  EXPECT_GT(twice.count, 0U);
}

#if defined(__x86_64__)
std::uint64_t by_the_machine(std::uint32_t f) {
  if ((f & 0x7FFFFFFF) > 0x7F800000) return (f & 0x80000000ULL) << 32 | 0x7FF8000000000000 | (f & 0x7FFFFFULL) << 29;
  return std::bit_cast<std::uint64_t>(static_cast<double>(std::bit_cast<float>(f)));
}

TEST(CastCheck, FindsACastThatDependsOnTheFloatingPointEnvironment) {
  const Layout& f32 = layout_of(DType::kF32);
  const Layout& f64 = layout_of(DType::kF64);
  const Codes codes = codes_for_environment(f32);
  Nearest nearest(f64);
  const std::vector<std::byte> source = reference::packed(f32, codes);
  const std::vector<std::byte> wanted = reference::expected(f32, nearest, codes);
  constexpr Cast kCast = one_by_one<std::uint32_t, std::uint64_t, by_the_machine>;
  EXPECT_EQ(reference::differences(kCast, {f32, f64, source, wanted}).count, 0U);
  const Unusual environment(FE_TONEAREST);
  EXPECT_GT(reference::differences(kCast, {f32, f64, source, wanted}).count, 0U);
}
#endif

}  // namespace
}  // namespace lading::device
