#include "device/cuda/element_cast.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "device/cast.h"
#include "device/cast_check_for_tests.h"
#include "device/cast_reference_for_tests.h"

namespace lading::device::cuda {
namespace {

using reference::kLayouts;
using reference::Layout;
using reference::layout_of;
using Codes = std::vector<std::uint64_t>;

std::uint64_t cast_one(const CastRecipe& recipe, std::uint64_t code) {
  switch (recipe.kind) {
    case CastKind::kCarry: return cast_element<CastKind::kCarry>(recipe, code);
    case CastKind::kExtendSign: return cast_element<CastKind::kExtendSign>(recipe, code);
    case CastKind::kFloat: return cast_element<CastKind::kFloat>(recipe, code);
    case CastKind::kFloat64: break;
  }
  return cast_element<CastKind::kFloat64>(recipe, code);
}

std::vector<std::byte> packed(DType dtype, const Codes& codes) {
  const std::size_t width = element_bytes(dtype);
  std::vector<std::byte> bytes(codes.size() * width);
  for (std::size_t i = 0; i < codes.size(); ++i) std::memcpy(bytes.data() + i * width, &codes[i], width);
  return bytes;
}

// Against the casts of the host.
void expect_as_on_host(DType from, DType to, const Codes& codes) {
  const std::vector<std::byte> source = packed(from, codes);
  std::vector<std::byte> wanted(codes.size() * element_bytes(to));
  find_cast(from, to)(source.data(), wanted.data(), codes.size());

  const CastRecipe recipe = cast_recipe(from, to);
  Codes made(codes.size());
  for (std::size_t i = 0; i < codes.size(); ++i) made[i] = cast_one(recipe, codes[i]);
  const std::vector<std::byte> found = packed(to, made);
  if (found == wanted) return;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    std::uint64_t should = 0;
    std::memcpy(&should, wanted.data() + i * element_bytes(to), element_bytes(to));
    std::uint64_t is = 0;
    std::memcpy(&is, found.data() + i * element_bytes(to), element_bytes(to));
    ASSERT_EQ(is, should) << fmt::format("{} to {}: {:#x} gives {:#x}, not {:#x}", name(from), name(to), codes[i], is,
                                         should);
  }
}

// Against the reference, which knows nothing of either.
void expect_reference(const Layout& from, const Layout& to, const Codes& codes) {
  reference::Nearest nearest(to);
  const CastRecipe recipe = cast_recipe(from.dtype, to.dtype);
  for (const std::uint64_t code : codes) {
    const std::uint64_t wanted = reference::write(nearest, reference::read(from, code));
    ASSERT_EQ(cast_one(recipe, code), wanted)
        << fmt::format("{} to {}: {:#x} should give {:#x}", name(from.dtype), name(to.dtype), code, wanted);
  }
}

TEST(ElementCast, BytesAreThoseOfTheDType) {
  for (const DType dtype : all_dtypes()) EXPECT_EQ(element_bytes(dtype), bits(dtype) < 8 ? 1 : bits(dtype) / 8);
}

TEST(ElementCast, OfAllCodesOfNarrowFormats) {
  for (const Layout& from : kLayouts) {
    if (from.bits > 16) continue;
    Codes codes(std::size_t{1} << from.bits);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = i;
    for (const Layout& to : kLayouts) {
      if (from.dtype == to.dtype) continue;
      expect_as_on_host(from.dtype, to.dtype, codes);
      expect_reference(from, to, codes);
    }
  }
}

// 2^22 numbers in order: all upper halves; of the lower halves those where rounding turns, and others at random.
TEST(ElementCast, OfManyF32) {
  std::mt19937 random(7);
  constexpr std::array<std::uint64_t, 26> kLows = {
      0,      1,      2,      0x7F,   0x80,   0x81,   0xFFF,  0x1000, 0x1001, 0x17FF, 0x1FFF, 0x2000, 0x2FFF,
      0x3000, 0x3001, 0x3FFF, 0x4000, 0x4001, 0x7FFF, 0x8000, 0x8001, 0xBFFF, 0xC000, 0xC001, 0xFFFE, 0xFFFF};
  Codes codes;
  codes.reserve(std::size_t{1} << 22);
  for (std::uint64_t high = 0; high < 0x10000; ++high) {
    Codes lows(kLows.begin(), kLows.end());
    while (lows.size() < 64) lows.push_back(random() & 0xFFFF);
    std::sort(lows.begin(), lows.end());
    for (const std::uint64_t low : lows) codes.push_back(high << 16 | low);
  }
  for (const Layout& to : kLayouts) {
    if (to.dtype == DType::kF32) continue;
    expect_as_on_host(DType::kF32, to.dtype, codes);
    expect_reference(layout_of(DType::kF32), to, codes);
  }
}

void add_around(double value, Codes& codes) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (const std::uint64_t near : {bits - 1, bits, bits + 1}) {
    codes.insert(codes.end(), {near & ~(std::uint64_t{1} << 63), near | std::uint64_t{1} << 63});
  }
}

// The numbers of a format and the midpoints between them, and what stands beside those.
Codes hard_f64(const Layout& to) {
  Codes codes;
  const std::uint64_t step = to.bits <= 16 ? 1 : (to.largest >> 16) + 1;
  for (std::uint64_t code = 0; code <= to.largest; code += step) {
    const double here = reference::value_of(to, code);
    add_around(here, codes);
    add_around((here + reference::value_of(to, code + 1)) / 2, codes);
  }
  add_around(reference::value_of(to, to.largest), codes);
  add_around(reference::value_of(to, to.largest + 1), codes);
  return codes;
}

TEST(ElementCast, OfManyF64) {
  std::mt19937_64 random(8);
  // All exponents as often as each other; low bits that are 0 make midpoints likely.
  Codes codes(std::size_t{1} << 22);
  for (std::uint64_t& code : codes) code = random() & ~((std::uint64_t{1} << (random() % 53)) - 1);
  codes.insert(codes.end(), {0x7FF0000000000000, 0xFFF0000000000000, 0x7FF0000000000001, 0x7FF8000000000000});
  for (const Layout& to : kLayouts) {
    if (to.dtype == DType::kF64) continue;
    expect_as_on_host(DType::kF64, to.dtype, codes);
    const Codes hard = hard_f64(to);
    expect_as_on_host(DType::kF64, to.dtype, hard);
    expect_reference(layout_of(DType::kF64), to, hard);
    expect_reference(layout_of(DType::kF64), to, Codes(codes.end() - (1 << 16), codes.end()));
  }
}

TEST(ElementCast, WidensIntegers) {
  std::mt19937_64 random(9);
  std::size_t pairs = 0;
  for (const DType from : all_dtypes()) {
    for (const DType to : all_dtypes()) {
      if (class_of(from) == DTypeClass::kFloat || find_cast(from, to) == nullptr) continue;
      ++pairs;
      const std::uint64_t mask = (std::uint64_t{1} << bits(from)) - 1;
      Codes codes = {0, 1, mask, mask >> 1, (mask >> 1) + 1};
      for (int i = 0; i < 1000; ++i) codes.push_back(random() & mask);
      expect_as_on_host(from, to, codes);
    }
  }
  EXPECT_EQ(pairs, 18U);
}

// Formats that the compiler knows, as kernels use them.
static_assert(cast_float<std::uint32_t>(kFormats[6], kFormats[5], 0x3F808000) == 0x3F80);
static_assert(cast_float<std::uint32_t>(kFormats[6], kFormats[5], 0x3F818000) == 0x3F82);

}  // namespace
}  // namespace lading::device::cuda
