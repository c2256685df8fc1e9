// How fast one core dequantizes: billions of elements a second, to BF16.
//
//   dequantize_speed [ROWS]     default 2048 rows of 4096 elements
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "device/quantized/dequantize.h"

namespace lading::device {
namespace {

constexpr double kSecondsPerCase = 0.3;
constexpr std::uint64_t kColumns = 4096;

struct Case {
  const char* what = "";
  std::optional<CodeType> code;
  DType scales = DType::kBF16;
  Shape shape;
  Shape block;
  bool has_zeros = false;
  double tensor_scale = 1;
};

double billions_per_second(const Move& move, std::uint64_t elems) {
  using Clock = std::chrono::steady_clock;
  double best_s = 1e9;
  const auto begin = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - begin).count() < kSecondsPerCase) {
    const auto start = Clock::now();
    dequantize_on_host(move);
    best_s = std::min(best_s, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return static_cast<double>(elems) / best_s / 1e9;
}

BlockScales scales_of(const Case& one, std::mt19937_64& random) {
  BlockScales scales;
  scales.shape = one.shape;
  scales.block = one.block;
  scales.dtype = one.scales;
  scales.code = one.code;
  scales.tensor_scale = one.tensor_scale;
  std::uint64_t count = 1;
  for (std::size_t d = 0; d < one.shape.rank(); ++d) count *= (one.shape[d] + one.block[d] - 1) / one.block[d];
  const std::size_t width_bytes = bits(one.scales) / 8;
  scales.values.resize(count * width_bytes);
  // The upper byte is that of numbers near 1.
  for (std::size_t i = 0; i < scales.values.size(); ++i) {
    const bool is_last = i % width_bytes == width_bytes - 1;
    scales.values[i] =
        static_cast<std::byte>(is_last ? (one.scales == DType::kF8E8M0 ? 120 + random() % 8 : 0x3C) : random());
  }
  if (one.has_zeros) scales.zeros.assign(count, std::byte{7});
  return scales;
}

// As it stands, and as a transpose of `columns` codes in each row.
void measure_case(const Case& one, std::uint64_t rows) {
  std::mt19937_64 random(1);
  const BlockScales scales = scales_of(one, random);
  const std::uint64_t elems = rows * kColumns;
  const std::uint64_t in_byte = one.code ? 8 / bits(*one.code) : 1;
  std::vector<std::byte> source(elems / in_byte);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random() & 0x77);
  std::vector<std::byte> target(elems * 2);
  Scaling scaling{&scales, 0, {}};
  Move move;
  move.source = source.data();
  move.target = target.data();
  move.from = DType::kF8E4M3;
  move.to = DType::kBF16;
  move.scaling = &scaling;
  move.run_elems = elems;
  const double dense = billions_per_second(move, elems);
  // Of a transpose, one of the moves for each place in a byte.
  const ByteLoop loops[] = {{kColumns / in_byte, 1, 2 * rows * in_byte}, {rows, kColumns / in_byte, 2}};
  const std::uint64_t strides[] = {in_byte, kColumns};
  move.run_elems = 1;
  move.loops = loops;
  scaling.strides_elems = strides;
  fmt::print("{:<48}{:>8.2f}{:>12.2f}\n", one.what, dense, billions_per_second(move, elems / in_byte));
}

int measure(std::uint64_t rows) {
  const std::uint64_t groups = kColumns / 8;
  const Case cases[] = {
      {"F8_E4M3, blocks of 128 by 128", {}, DType::kF32, {rows, kColumns}, {128, 128}},
      {"F8_E4M3, blocks of 32", {}, DType::kF8E8M0, {rows, kColumns}, {1, 32}},
      {"F4, blocks of 32, E8M0 (MXFP4)", CodeType::kF4, DType::kF8E8M0, {rows, kColumns / 32, 16, 2}, {1, 1, 16, 2}},
      {"F4, blocks of 16, E4M3 / F32 (NVFP4)",
       CodeType::kF4,
       DType::kF8E4M3,
       {rows, kColumns / 2, 2},
       {1, 8, 2},
       false,
       3},
      {"U4, blocks of 128, BF16", CodeType::kU4, DType::kBF16, {rows, groups, 8}, {1, 16, 8}},
      {"U4, blocks of 128, F16, zero points", CodeType::kU4, DType::kF16, {rows, groups, 8}, {1, 16, 8}, true},
      {"U4, blocks of 32, F32, zero points", CodeType::kU4, DType::kF32, {rows, groups, 8}, {1, 4, 8}, true},
      {"U4, blocks of 16 rows and 8 (GPTQ)", CodeType::kU4, DType::kF16, {rows, groups, 8}, {16, 1, 8}, true},
      {"U4, blocks of 128 rows and 1 (AWQ)", CodeType::kU4, DType::kF16, {rows, groups, 8}, {128, 1, 1}, true},
      {"U8, blocks of 128, BF16", CodeType::kU8, DType::kBF16, {rows, kColumns / 4, 4}, {1, 32, 4}},
      {"U2, blocks of 64, BF16", CodeType::kU2, DType::kBF16, {rows, kColumns / 4, 4}, {1, 16, 4}},
  };
  fmt::print("{:<48}{:>8}{:>12}\n", fmt::format("10^9 elements/s, {} rows", rows), "dense", "transposed");
  for (const Case& one : cases) measure_case(one, rows);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace lading::device

int main(int count, char** arguments) {
  return lading::device::measure(count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 2048);
}
