// Every F32 number to every other floating dtype, on every instruction set of this machine, against the reference.
//
//   cast_campaign [FIRST COUNT]    only these codes of F32; without them all 2^32. Exit 1 if anything differs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "device/cast.h"
#include "device/cast_check_for_tests.h"
#include "device/cast_paths.h"
#include "device/cast_reference_for_tests.h"

namespace lading::device::reference {
namespace {

constexpr std::uint64_t kAll = std::uint64_t{1} << 32;
constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 14;  // stays in the caches of a core

// One target: what the reference says, and how far each path has differed.
struct Target {
  Nearest nearest;
  std::vector<Cast> casts = {};
  std::vector<Differences> found = {};
};

void compare(std::span<const std::uint64_t> codes, const Layout& from, std::vector<Target>& targets) {
  const std::vector<std::byte> source = packed(from, codes);
  for (Target& target : targets) {
    const std::vector<std::byte> wanted = expected(from, target.nearest, codes);
    for (std::size_t i = 0; i < target.casts.size(); ++i) {
      const Differences now = differences(target.casts[i], {from, target.nearest.layout(), source, wanted});
      if (now.count == 0) continue;
      const std::size_t before = target.found[i].count;
      if (before == 0) target.found[i] = now;
      target.found[i].count = before + now.count;
    }
  }
}

int report(const std::vector<Target>& targets, const std::vector<CastPath>& paths) {
  int status = EXIT_SUCCESS;
  for (const Target& target : targets) {
    for (std::size_t i = 0; i < paths.size(); ++i) {
      const Differences& found = target.found[i];
      fmt::print("F32 to {:<12} {:<8} {:>12} different", name(target.nearest.layout().dtype), paths[i].name,
                 found.count);
      if (found.count != 0) {
        fmt::print(": first {:#010x} gives {:#x}, not {:#x}", found.source, found.found, found.wanted);
        status = EXIT_FAILURE;
      }
      fmt::print("\n");
    }
  }
  return status;
}

int run(std::uint64_t first, std::uint64_t count) {
  const auto start = std::chrono::steady_clock::now();
  const Layout& from = layout_of(DType::kF32);
  const std::vector<CastPath> paths = cast_paths();
  std::vector<Target> targets;
  for (const Layout& to : kLayouts) {
    if (to.dtype == from.dtype) continue;
    Target target{Nearest(to)};
    for (const CastPath& path : paths) {
      use_cast_path(path);
      target.casts.push_back(find_cast(from.dtype, to.dtype));
    }
    target.found.resize(paths.size());
    targets.push_back(std::move(target));
  }
  for (std::uint64_t done = 0; done < count; done += kAtOnce) {
    std::vector<std::uint64_t> codes(std::min(kAtOnce, count - done));
    std::iota(codes.begin(), codes.end(), first + done);
    compare(codes, from, targets);
  }
  const int status = report(targets, paths);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  fmt::print("{} numbers, {:.0f} s\n", count, elapsed.count());
  return status;
}

}  // namespace
}  // namespace lading::device::reference

int main(int count, char** words) {
  using namespace lading::device::reference;
  if (count == 1) return run(0, kAll);
  const std::uint64_t first = std::strtoull(words[1], nullptr, 0);
  const std::uint64_t codes = count == 3 ? std::strtoull(words[2], nullptr, 0) : 0;
  if (codes == 0 || first >= kAll || codes > kAll - first) {
    fmt::print(stderr, "cast_campaign: say FIRST COUNT, within 2^32\n");
    return 2;
  }
  return run(first, codes);
}
