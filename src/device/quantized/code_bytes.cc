#include "device/quantized/code_bytes.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/quantized/code_bytes.cc"
#include <hwy/foreach_target.h>  // includes this file again for each instruction set
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lading::device {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

std::size_t unpack_pairs(const std::byte*, std::size_t, std::byte*) { return 0; }
std::size_t look_up_vectors(const std::byte*, std::size_t, const std::byte*, std::byte*) { return 0; }

#else

using D8 = hn::Full128<std::uint8_t>;

const std::uint8_t* u8(const std::byte* bytes) { return reinterpret_cast<const std::uint8_t*>(bytes); }
std::uint8_t* u8(std::byte* bytes) { return reinterpret_cast<std::uint8_t*>(bytes); }

// Both codes of each byte. Gives how many bytes it took; what is left is less than a vector.
std::size_t unpack_pairs(const std::byte* source, std::size_t bytes, std::byte* out) {
  const D8 d;
  const auto low = hn::Set(d, 0x0F);
  std::size_t i = 0;
  for (; i + 16 <= bytes; i += 16) {
    const auto pairs = hn::LoadU(d, u8(source + i));
    const auto even = hn::And(pairs, low);
    const auto odd = hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(hn::Repartition<std::uint16_t, D8>(), pairs)));
    const auto odd_alone = hn::And(odd, low);
    hn::StoreU(hn::InterleaveLower(d, even, odd_alone), d, u8(out + 2 * i));
    hn::StoreU(hn::InterleaveUpper(d, even, odd_alone), d, u8(out + 2 * i + 16));
  }
  return i;
}

// Gives how many codes it looked up; what is left is less than a vector.
std::size_t look_up_vectors(const std::byte* codes, std::size_t count, const std::byte* table, std::byte* out) {
  const D8 d;
  alignas(16) std::uint8_t low[16];
  alignas(16) std::uint8_t high[16];
  for (std::size_t i = 0; i < 16; ++i) {
    low[i] = u8(table)[2 * i];
    high[i] = u8(table)[2 * i + 1];
  }
  const auto lows = hn::Load(d, low);
  const auto highs = hn::Load(d, high);
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const auto here = hn::LoadU(d, u8(codes + i));
    const auto first = hn::TableLookupBytes(lows, here);
    const auto second = hn::TableLookupBytes(highs, here);
    hn::StoreU(hn::InterleaveLower(d, first, second), d, u8(out + 2 * i));
    hn::StoreU(hn::InterleaveUpper(d, first, second), d, u8(out + 2 * i + 16));
  }
  return i;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace lading::device
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lading::device {

HWY_EXPORT(unpack_pairs);
HWY_EXPORT(look_up_vectors);

void unpack_codes(const CodeRun& run, unsigned log2_codes_in_byte, std::byte* out) {
  const std::uint64_t in_byte = std::uint64_t{1} << log2_codes_in_byte;
  const std::uint64_t code_bits = 8 >> log2_codes_in_byte;
  const auto mask = static_cast<std::byte>((1U << code_bits) - 1);
  std::uint64_t done = 0;
  if (run.stride == 1 && in_byte == 2) {
    // An odd one by itself, so that the others are whole bytes.
    if (run.first_code % 2 != 0 && run.count != 0) out[done++] = run.source[run.first_code / 2] >> 4;
    const std::byte* const pairs = run.source + (run.first_code + done) / 2;
    done += 2 * HWY_DYNAMIC_DISPATCH(unpack_pairs)(pairs, (run.count - done) / 2, out + done);
  } else if (run.stride % in_byte == 0) {
    const std::uint64_t step = run.stride >> log2_codes_in_byte;
    const std::byte* const first = run.source + (run.first_code >> log2_codes_in_byte);
    const std::uint64_t shift = run.first_code % in_byte * code_bits;
    for (; done < run.count; ++done) out[done] = first[done * step] >> shift & mask;
  }
  for (; done < run.count; ++done) {
    const std::uint64_t at = run.first_code + done * run.stride;
    out[done] = run.source[at >> log2_codes_in_byte] >> (at % in_byte * code_bits) & mask;
  }
}

void look_up_16(std::span<const std::byte> codes, const std::byte* table, std::byte* out) {
  std::size_t i = 0;
  if (codes.size() >= 16) i = HWY_DYNAMIC_DISPATCH(look_up_vectors)(codes.data(), codes.size(), table, out);
  for (; i < codes.size(); ++i) std::memcpy(out + 2 * i, table + 2 * std::to_integer<std::size_t>(codes[i]), 2);
}

}  // namespace lading::device
#endif
