// For tests: a random sequence of everything that a lane does, the same on every device.
//
// Writes do not overlap, as in a load. Moves have all shapes: dense, rows, nests of many loops in different orders on
// the two sides, every cast, any alignment.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <vector>

#include "base/element_bytes.h"
#include "device/cast.h"
#include "device/cuda/kernel_images.h"
#include "device/device.h"

namespace lading::device::cuda {

/// Why tests on the stand-in for the driver cannot run: no kernels in the build, or a machine that brought only the
/// test programs along. Empty: they can.
[[nodiscard]] inline std::string why_not_on_shim() {
  if (kernel_images().empty()) return "built without kernels";
  return std::filesystem::exists(LADING_CUDA_SHIM_PATH) ? "" : "the stand-in for the driver is not there";
}

struct LaneScript {
  static constexpr std::size_t kAccounts = 5;
  static constexpr std::uint64_t kMemoryBytes = 1 << 20;

  std::uint64_t seed = 0;
  std::size_t staging_buffer_bytes = 0;
  int steps = 12;
  bool with_digests = true;
};

struct ScriptOutcome {
  std::vector<std::byte> memory;   ///< of the destination, at the end
  std::vector<std::byte> fetched;  ///< on the way
};

/// One run of a script on a lane.
class ScriptRun {
 public:
  using Bytes = std::vector<std::byte>;

  ScriptRun(Lane& lane, std::byte* memory, const LaneScript& script)
      : lane_(lane), memory_(memory), script_(script), random_(script.seed) {}

  Result<ScriptOutcome> run() {
    ScriptOutcome outcome;
    LADING_TRY(lane_.fill({memory_, LaneScript::kMemoryBytes, DType::kU8, 0xEE}));
    LADING_TRY(lane_.finish());
    for (int step = 0; step < script_.steps; ++step) {
      LADING_TRY(one_step());
      if (below(4) != 0) continue;
      const std::uint64_t begin = below(LaneScript::kMemoryBytes - 1000);
      Bytes bytes(1 + below(1000));
      LADING_TRY(lane_.fetch(memory_ + begin, bytes));
      outcome.fetched.insert(outcome.fetched.end(), bytes.begin(), bytes.end());
    }
    if (script_.with_digests) LADING_TRY(lane_.digest({memory_ + 3, LaneScript::kMemoryBytes - 5, 12345, 0}));
    LADING_TRY(lane_.finish());
    outcome.memory.resize(LaneScript::kMemoryBytes);
    LADING_TRY(lane_.fetch(memory_, outcome.memory));
    return outcome;
  }

 private:
  [[nodiscard]] std::uint64_t below(std::uint64_t end) { return random_() % end; }

  Bytes noise(std::uint64_t size_bytes) {
    Bytes bytes(size_bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }

  /// A place that nothing else is written to; null when there is no room left.
  std::byte* place(std::uint64_t size_bytes) {
    const std::uint64_t begin = used_bytes_ + (below(2) == 0 ? below(20) : 16 - used_bytes_ % 16);
    if (begin + size_bytes > LaneScript::kMemoryBytes) return nullptr;
    used_bytes_ = begin + size_bytes;
    return memory_ + begin;
  }

  Result<void> one_step() {
    switch (below(6)) {
      case 0: return fill();
      case 1: return sample();
      case 2: return move_from_elsewhere();
      default: return move_from_staging_buffer();
    }
  }

  Result<void> digest(const std::byte* target, std::uint64_t size_bytes) {
    if (!script_.with_digests || below(3) == 0) return {};
    const auto account = static_cast<std::uint32_t>(below(LaneScript::kAccounts));
    return lane_.digest({target, size_bytes, below(10000), account});
  }

  Result<void> fill() {
    constexpr DType kTypes[] = {DType::kU8, DType::kBF16, DType::kF32, DType::kI64, DType::kF4, DType::kF8E4M3};
    const DType dtype = kTypes[below(std::size(kTypes))];
    const std::uint64_t elems = 8 * below(300);
    std::byte* const target = place(bytes_of_elems(elems, dtype));
    if (target == nullptr) return {};
    LADING_TRY(lane_.fill({target, elems, dtype, bits(dtype) % 8 != 0 ? 0 : random_()}));
    return digest(target, bytes_of_elems(elems, dtype));
  }

  Result<void> sample() {
    constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kF8E5M2};
    const DType dtype = kTypes[below(std::size(kTypes))];
    const std::uint64_t elems = below(3000);
    std::byte* const target = place(bytes_of_elems(elems, dtype));
    if (target == nullptr) return {};
    RandomRecipe recipe;
    recipe.distribution = static_cast<Distribution>(below(3));
    recipe.low = -1.5;
    LADING_ASSIGN_OR_RETURN(const SampleParameters parameters, prepare_sample(recipe));
    LADING_TRY(lane_.sample({target, below(1 << 20), elems, dtype, parameters, random_key(script_.seed, "a")}));
    return digest(target, bytes_of_elems(elems, dtype));
  }

  struct Pair {
    DType from = DType::kU8;
    DType to = DType::kU8;
  };

  Pair pair() {
    for (;;) {
      const std::span<const DType> all = all_dtypes();
      const Pair pair{all[below(all.size())], all[below(all.size())]};
      if (below(3) == 0) return {pair.from, pair.from};
      if (find_cast(pair.from, pair.to) != nullptr) return pair;
    }
  }

  Result<void> move_from_elsewhere() {
    const Pair types = pair();
    const std::uint64_t elems = 8 * (1 + below(400));
    std::byte* const target = place(bytes_of_elems(elems, types.to));
    if (target == nullptr) return {};
    const Bytes values = noise(bytes_of_elems(elems, types.from));
    // The memory is the caller's: it may be gone when the call returns.
    LADING_TRY(lane_.move({values.data(), target, elems, types.from, types.to, {}}));
    return digest(target, bytes_of_elems(elems, types.to));
  }

  /// Strides that put the loops one inside the other in any order, with gaps here and there. Returns the reach.
  std::uint64_t stride(std::vector<ByteLoop>& loops, std::uint64_t run_bytes, std::uint64_t ByteLoop::*stride_bytes) {
    std::vector<std::size_t> order(loops.size());
    std::iota(order.begin(), order.end(), 0);
    if (below(3) == 0) {
      std::shuffle(order.begin(), order.end(), random_);
    } else {
      std::reverse(order.begin(), order.end());
    }
    std::uint64_t reach = run_bytes;
    for (const std::size_t i : order) {
      const std::uint64_t step = reach + (below(2) == 0 ? 0 : below(9));
      loops[i].*stride_bytes = step;
      reach += (loops[i].count - 1) * step;
    }
    return reach;
  }

  struct Geometry {
    Pair types;
    std::uint64_t run_elems = 0;
    std::vector<ByteLoop> loops;
    std::uint64_t source_bytes = 0;
    std::uint64_t target_bytes = 0;
  };

  Geometry geometry(std::uint64_t room_bytes) {
    for (;;) {
      Geometry made{pair(), 0, {}, 0, 0};
      const std::uint64_t most = std::max<std::uint64_t>(1, room_bytes / bits(made.types.from));
      made.run_elems = below(4) == 0 ? 8 * most : 8 * (1 + below(below(2) == 0 ? most : 4));
      if (bits(made.types.from) % 8 == 0) made.run_elems = std::max<std::uint64_t>(1, made.run_elems - below(8));
      for (std::uint64_t l = below(3) == 0 ? below(9) : below(3); l > 0; --l)
        made.loops.push_back({1 + below(4), 0, 0});
      if (below(5) == 0 && !made.loops.empty()) made.loops.front().count = 1 + below(200);
      const std::uint64_t from_bytes = bytes_of_elems(made.run_elems, made.types.from);
      const std::uint64_t to_bytes = bytes_of_elems(made.run_elems, made.types.to);
      made.source_bytes = stride(made.loops, from_bytes, &ByteLoop::source_stride_bytes);
      made.target_bytes = stride(made.loops, to_bytes, &ByteLoop::target_stride_bytes);
      if (made.source_bytes <= room_bytes && made.target_bytes < LaneScript::kMemoryBytes / 4) return made;
    }
  }

  struct Written {
    const std::byte* target = nullptr;
    std::uint64_t size_bytes = 0;
  };

  Result<void> move_from_staging_buffer() {
    LADING_ASSIGN_OR_RETURN(const std::span<std::byte> buffer, lane_.acquire_staging_buffer());
    const Bytes bytes = noise(script_.staging_buffer_bytes);
    std::copy(bytes.begin(), bytes.end(), buffer.begin());
    std::vector<Written> written;
    for (std::uint64_t moves = 1 + below(6); moves > 0; --moves) {
      const Geometry made = geometry(script_.staging_buffer_bytes);
      const std::uint64_t begin = below(script_.staging_buffer_bytes - made.source_bytes + 1);
      std::byte* const target = place(made.target_bytes);
      if (target == nullptr) break;
      const Geometry& g = made;
      LADING_TRY(lane_.move({buffer.data() + begin, target, g.run_elems, g.types.from, g.types.to, g.loops}));
      written.push_back({target, made.target_bytes});
    }
    LADING_TRY(lane_.release_staging_buffer());
    for (const Written& place : written) LADING_TRY(digest(place.target, place.size_bytes));
    return {};
  }

  Lane& lane_;
  std::byte* memory_;
  const LaneScript& script_;
  std::mt19937_64 random_;
  std::uint64_t used_bytes_ = 0;
};

/// Opens a lane, allocates memory, runs the script.
inline Result<ScriptOutcome> run_script(Device& device, const LaneScript& script, const LaneOptions& options) {
  LADING_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> memory, device.allocate(LaneScript::kMemoryBytes));
  LADING_ASSIGN_OR_RETURN(const std::unique_ptr<Lane> lane, device.open_lane(options));
  LaneScript quiet = script;
  quiet.with_digests = script.with_digests && options.accounts != nullptr;
  Result<ScriptOutcome> outcome = ScriptRun(*lane, memory.get(), quiet).run();
  const Result<void> finished = lane->finish();
  if (outcome && !finished) return fail(finished.error());
  return outcome;
}

}  // namespace lading::device::cuda
