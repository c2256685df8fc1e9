// Inside a block, words are multiplied with the table 32 x 32 -> 64 bits; the block's key multiplies the sum once.
// Whole blocks go several at a time, because they share the table.
#include "device/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "device/digest_keys.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/digest.cc"
#include <hwy/foreach_target.h>  // includes this file again for each instruction set
#include <hwy/highway.h>

#ifndef LADING_DEVICE_DIGEST_ONCE
#define LADING_DEVICE_DIGEST_ONCE
namespace lading::device {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are little-endian, and words are read as they lie");

// The two lanes, as two numbers: GCC 12 makes a vector in memory of an array, and then waits for it.
struct Sums {
  std::uint64_t sum0 = 0;
  std::uint64_t sum1 = 0;
};

// Whole words that stand one behind the other in a tensor.
struct WordRun {
  const std::byte* data;
  std::size_t words;
  std::uint64_t first_word;
};

[[nodiscard]] inline Sums with_block(Sums all, Sums of_block, std::uint64_t block) {
  all.sum0 += of_block.sum0 * digest_block_key(0, block);
  all.sum1 += of_block.sum1 * digest_block_key(1, block);
  return all;
}

// Words that stand at [at, at + words) of one block.
[[nodiscard]] inline Sums with_words(Sums sums, const std::byte* data, std::size_t words, std::size_t at) {
  for (std::size_t i = 0; i < words; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, data + 4 * i, 4);
    sums.sum0 += std::uint64_t{word} * kDigestTables.of_lane[0][at + i];
    sums.sum1 += std::uint64_t{word} * kDigestTables.of_lane[1][at + i];
  }
  return sums;
}

Sums with_run_plainly(Sums all, WordRun run) {
  while (run.words > 0) {
    const auto at = static_cast<std::size_t>(run.first_word % kDigestBlockWords);
    const std::size_t words = std::min(run.words, kDigestBlockWords - at);
    all = with_block(all, with_words({}, run.data, words, at), run.first_word / kDigestBlockWords);
    run = {run.data + 4 * words, run.words - words, run.first_word + words};
  }
  return all;
}

}  // namespace
}  // namespace lading::device
#endif  // LADING_DEVICE_DIGEST_ONCE

HWY_BEFORE_NAMESPACE();
namespace lading::device {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

Sums with_run(Sums all, const WordRun& run) { return with_run_plainly(all, run); }

#else

namespace hn = hwy::HWY_NAMESPACE;
using Words = hn::ScalableTag<std::uint32_t>;
using Products = hn::Repartition<std::uint64_t, Words>;

// One of each per lane of the digest; no arrays, so that the compiler keeps them in registers.
struct Accumulators {
  HWY_INLINE Accumulators() : sum0(hn::Zero(Products())), sum1(hn::Zero(Products())) {}

  hn::Vec<Products> sum0;
  hn::Vec<Products> sum1;
};

HWY_INLINE hn::Vec<Words> odd_to_even(hn::Vec<Words> words) {
  return hn::BitCast(Words(), hn::ShiftRight<32>(hn::BitCast(Products(), words)));
}

// GCC 12 would rather load a vector again for each use than keep it, and an unaligned load of 64 bytes costs two.
HWY_INLINE hn::Vec<Words> in_register(hn::Vec<Words> words) {
#if HWY_COMPILER_GCC_ACTUAL && HWY_ARCH_X86
  asm("" : "+v"(words.raw));
#endif
  return words;
}

// The table's entries for one vector of words, and the same with the odd ones moved to even places.
struct Keys {
  explicit HWY_INLINE Keys(std::size_t at)
      : even0(in_register(hn::LoadU(Words(), &kDigestTables.of_lane[0][at]))),
        even1(in_register(hn::LoadU(Words(), &kDigestTables.of_lane[1][at]))),
        odd0(odd_to_even(even0)),
        odd1(odd_to_even(even1)) {}

  hn::Vec<Words> even0;
  hn::Vec<Words> even1;
  hn::Vec<Words> odd0;
  hn::Vec<Words> odd1;
};

HWY_INLINE void add_vector(const std::byte* data, const Keys& keys, Accumulators& sums) {
  const hn::Repartition<std::uint8_t, Words> bytes;
  const auto even = in_register(hn::BitCast(Words(), hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(data))));
  const auto odd = odd_to_even(even);
  sums.sum0 = hn::Add(sums.sum0, hn::MulEven(even, keys.even0));
  sums.sum1 = hn::Add(sums.sum1, hn::MulEven(even, keys.even1));
  sums.sum0 = hn::Add(sums.sum0, hn::MulEven(odd, keys.odd0));
  sums.sum1 = hn::Add(sums.sum1, hn::MulEven(odd, keys.odd1));
}

HWY_INLINE Sums totals(const Accumulators& sums) {
  return {hn::GetLane(hn::SumOfLanes(Products(), sums.sum0)), hn::GetLane(hn::SumOfLanes(Products(), sums.sum1))};
}

// Part of one block.
HWY_INLINE Sums of_part(const WordRun& run) {
  const std::size_t lanes = hn::Lanes(Words());
  const auto at = static_cast<std::size_t>(run.first_word % kDigestBlockWords);
  std::size_t i = 0;
  Sums sums;
  if (run.words >= lanes) {
    Accumulators vectors;
    for (; i + lanes <= run.words; i += lanes) add_vector(run.data + 4 * i, Keys(at + i), vectors);
    sums = totals(vectors);
  }
  return with_words(sums, run.data + 4 * i, run.words - i, at + i);
}

HWY_INLINE Sums with_two_blocks(Sums all, const std::byte* first, std::uint64_t block) {
  const std::byte* second = first + 4 * kDigestBlockWords;
  Accumulators of_first;
  Accumulators of_second;
  for (std::size_t at = 0; at < kDigestBlockWords; at += hn::Lanes(Words())) {
    const Keys keys(at);
    add_vector(first + 4 * at, keys, of_first);
    add_vector(second + 4 * at, keys, of_second);
  }
  return with_block(with_block(all, totals(of_first), block), totals(of_second), block + 1);
}

Sums with_run(Sums all, const WordRun& whole) {
  WordRun run = whole;
  while (run.words > 0) {
    const auto at = static_cast<std::size_t>(run.first_word % kDigestBlockWords);
    const std::uint64_t block = run.first_word / kDigestBlockWords;
    std::size_t words = 2 * kDigestBlockWords;
    if (at == 0 && run.words >= words) {
      all = with_two_blocks(all, run.data, block);
    } else {
      words = std::min(run.words, kDigestBlockWords - at);
      all = with_block(all, of_part({run.data, words, run.first_word}), block);
    }
    run = {run.data + 4 * words, run.words - words, run.first_word + words};
  }
  return all;
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lading::device
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lading::device {
namespace {

HWY_EXPORT(with_run);

// Fewer are not worth the dispatch: tensors of one number are many.
constexpr std::size_t kFewWords = 8;

// Bytes that lie inside one word, the first of them at `place` of it.
Sums with_part_of_word(Sums all, std::span<const std::byte> bytes, std::uint64_t word, std::size_t place) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * (place + i));
  const auto at = static_cast<std::size_t>(word % kDigestBlockWords);
  const Sums part = {value * kDigestTables.of_lane[0][at], value * kDigestTables.of_lane[1][at]};
  return with_block(all, part, word / kDigestBlockWords);
}

}  // namespace

std::string Digest::text() const { return fmt::format("{:016x}{:016x}", lanes[0], lanes[1]); }

Digest digest_of(std::span<const std::byte> bytes, std::uint64_t global_begin_bytes) {
  Sums sums;
  std::uint64_t word = global_begin_bytes / 4;
  if (const auto place = static_cast<std::size_t>(global_begin_bytes % 4); place != 0) {
    const std::size_t head = std::min(4 - place, bytes.size());
    sums = with_part_of_word(sums, bytes.first(head), word, place);
    bytes = bytes.subspan(head);
    ++word;
  }
  const std::size_t words = bytes.size() / 4;
  const WordRun run = {bytes.data(), words, word};
  sums = words < kFewWords ? with_run_plainly(sums, run) : HWY_DYNAMIC_DISPATCH(with_run)(sums, run);
  if (const auto tail = bytes.subspan(4 * words); !tail.empty()) sums = with_part_of_word(sums, tail, word + words, 0);
  return {{sums.sum0, sums.sum1}};
}

}  // namespace lading::device
#endif  // HWY_ONCE
