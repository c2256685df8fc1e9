// How fast bytes are digested: from the second-level cache, from memory, and in small runs. Each instruction set that
// this machine has. Prints one JSON object.
//
//   digest_speed
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include "device/digest.h"
#include "device/random_test_support.h"

namespace {

using Clock = std::chrono::steady_clock;

// Seconds per call, the best of several tries.
template <class F>
double seconds_per_call(F&& call) {
  double best = 1e9;
  std::uint64_t calls = 1;
  for (int attempt = 0; attempt < 12;) {
    const auto begin = Clock::now();
    for (std::uint64_t i = 0; i < calls; ++i) call(i);
    const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    if (elapsed < 0.02) {
      calls *= 2;
      continue;
    }
    best = std::min(best, elapsed / static_cast<double>(calls));
    ++attempt;
  }
  return best;
}

}  // namespace

int main() {
  std::vector<std::byte> bytes(256U << 20);
  std::uint64_t state = 1;
  for (auto& byte : bytes)
    byte = static_cast<std::byte>((state = state * 6364136223846793005U + 1442695040888963407U) >> 56);
  lading::device::Digest total;
  const auto measure = [&](std::size_t size, std::uint64_t begin, std::size_t offset) {
    const std::span<const std::byte> part = std::span(bytes).subspan(offset, size);
    return seconds_per_call([&](std::uint64_t i) { total += lading::device::digest_of(part, begin + 4096 * i); });
  };
  fmt::print("{{\"bench\": \"digest_speed\", \"targets\": [");
  const char* comma = "";
  lading::device::for_each_target([&](const char* target) {
    fmt::print("{}\n  {{\"target\": \"{}\"", comma, target);
    for (const std::size_t kib : {16U, 256U, 4096U, 262144U}) {
      fmt::print(", \"gb_per_s_{}_kib\": {:.1f}", kib,
                 1e-9 * static_cast<double>(kib << 10) / measure(kib << 10, 0, 0));
    }
    fmt::print(", \"gb_per_s_256_kib_unaligned\": {:.1f}", 1e-9 * (1U << 18) / measure(1U << 18, 1001, 3));
    for (const std::size_t size : {8U, 100U, 1000U, 4000U}) {
      fmt::print(", \"ns_{}_bytes\": {:.1f}", size, 1e9 * measure(size, 0, 0));
    }
    fmt::print(", \"ns_100_bytes_unaligned\": {:.1f}}}", 1e9 * measure(100, 1001, 3));
    comma = ",";
  });
  fmt::print("],\n \"digest\": \"{}\"}}\n", total.text());
}
