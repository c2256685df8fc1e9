// How fast one core casts: GB/s of source bytes, each pair on each instruction set.
//
//   cast_speed [ELEMS]     default 4 Mi elements, more than the caches of a core hold; 8192 measures the arithmetic
//   alone
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "device/cast.h"
#include "device/cast_paths.h"

namespace lading::device {
namespace {

constexpr double kSecondsPerPair = 0.1;

// Normally distributed numbers with the deviation of ordinary weights.
std::vector<std::byte> weights(DType dtype, std::size_t elems) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(0, 0.02);
  const std::size_t width_bytes = bits(dtype) / 8;
  std::vector<std::byte> bytes(elems * width_bytes);
  for (std::size_t i = 0; i < elems; ++i) {
    const std::uint64_t element = bits_of(normal(random), dtype);
    std::memcpy(bytes.data() + i * width_bytes, &element, width_bytes);
  }
  return bytes;
}

double gigabytes_per_second(Cast cast, const std::vector<std::byte>& source, std::vector<std::byte>& target,
                            std::size_t elems) {
  using Clock = std::chrono::steady_clock;
  double best_s = 1e9;
  const auto begin = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - begin).count() < kSecondsPerPair) {
    const auto start = Clock::now();
    cast(source.data(), target.data(), elems);
    best_s = std::min(best_s, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return static_cast<double>(source.size()) / best_s / 1e9;
}

int measure(std::size_t elems) {
  const DType dtypes[] = {DType::kF8E4M3, DType::kF8E5M2, DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz,
                          DType::kF16,    DType::kBF16,   DType::kF32,        DType::kF64};
  std::vector<std::byte> target(elems * sizeof(double));
  fmt::print("{:<28}", fmt::format("GB/s of source, {} elements", elems));
  for (const CastPath& path : cast_paths()) fmt::print("{:>8}", path.name);
  fmt::print("\n");
  for (const DType from : dtypes) {
    const std::vector<std::byte> source = weights(from, elems);
    for (const DType to : dtypes) {
      if (from == to) continue;
      fmt::print("{:<28}", fmt::format("{} to {}", name(from), name(to)));
      for (const CastPath& path : cast_paths()) {
        use_cast_path(path);
        fmt::print("{:>8.1f}", gigabytes_per_second(find_cast(from, to), source, target, elems));
      }
      fmt::print("\n");
    }
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace lading::device

int main(int count, char** arguments) {
  const std::size_t elems = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : std::size_t{4} << 20;
  return lading::device::measure(elems);
}
