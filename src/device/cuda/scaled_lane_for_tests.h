// For tests: moves out of quantized tensors on a lane, the same on every device for a seed.
#pragma once

#include <deque>
#include <memory>

#include "device/quantized/quantized_for_tests.h"

namespace lading::device::cuda {

inline constexpr std::uint64_t kScaledBytes = std::uint64_t{2} << 20;

/// One run: some quantized moves from each buffer, with a cast and plain bytes between them.
class ScaledRun {
 public:
  ScaledRun(Lane& lane, std::byte* memory, std::uint64_t seed) : lane_(lane), memory_(memory), random_(seed) {}

  /// The tensors, whose scales must be taken before the lane is given anything to do.
  void make(std::uint64_t staging_buffer_bytes) {
    for (int i = 0; i < 24; ++i) {
      const DType to = quantized::kResultTypes[random_() % quantized::kResultTypes.size()];
      if (random_() % 2 == 0) {
        const DType from = quantized::kPayloadTypes[random_() % quantized::kPayloadTypes.size()];
        made_.push_back(quantized::Maker(random_, from, to).make(staging_buffer_bytes / 2, random_() % 10));
      } else {
        const CodeType code = quantized::kCodeTypes[random_() % quantized::kCodeTypes.size()];
        made_.push_back(quantized::Maker(random_, code, to).make(staging_buffer_bytes / 2, random_() % 10));
      }
    }
  }
  [[nodiscard]] const std::deque<quantized::Made>& made() const { return made_; }

  Result<void> run() {
    for (std::size_t i = 0; i < made_.size(); i += 3) LADING_TRY(move_from_buffer({i, std::min(i + 3, made_.size())}));
    return {};
  }

 private:
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  Result<void> move_from_buffer(const Range& range) {
    LADING_ASSIGN_OR_RETURN(const std::span<std::byte> buffer, lane_.acquire_staging_buffer());
    std::uint64_t used_bytes = 0;
    for (std::size_t i = range.begin; i < range.end; ++i) {
      const quantized::Made& made = made_[i];
      const std::uint64_t begin = used_bytes + random_() % 17;
      std::byte* const target = place(made.target_bytes);
      if (begin + made.source.size() + 64 > buffer.size() || target == nullptr) continue;
      std::copy(made.source.begin(), made.source.end(), buffer.begin() + static_cast<std::ptrdiff_t>(begin));
      LADING_TRY(lane_.move(quantized::MadeMove(made, buffer.data() + begin, target).get()));
      used_bytes = begin + made.source.size();
      std::byte* const cast = place(64);
      if (cast == nullptr) continue;
      for (std::uint64_t b = 0; b < 64; ++b) buffer[used_bytes + b] = static_cast<std::byte>(random_());
      LADING_TRY(lane_.move({buffer.data() + used_bytes, cast, 32, DType::kF8E4M3, DType::kBF16, {}}));
      used_bytes += 64;
    }
    return lane_.release_staging_buffer();
  }

  // Half of them aligned, and half of them not.
  std::byte* place(std::uint64_t size_bytes) {
    const std::uint64_t begin = placed_bytes_ + (random_() % 2 == 0 ? 16 - placed_bytes_ % 16 : random_() % 16);
    if (begin + size_bytes > kScaledBytes) return nullptr;
    placed_bytes_ = begin + size_bytes;
    return memory_ + begin;
  }

  Lane& lane_;
  std::byte* memory_;
  quantized::Random random_;
  std::deque<quantized::Made> made_;
  std::uint64_t placed_bytes_ = 0;
};

/// What the memory holds at the end.
inline Result<quantized::Bytes> dequantize_on(Device& device, std::uint64_t seed, const LaneOptions& options) {
  LADING_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> memory, device.allocate(kScaledBytes));
  LADING_ASSIGN_OR_RETURN(const std::unique_ptr<Lane> lane, device.open_lane(options));
  LADING_TRY(lane->fill({memory.get(), kScaledBytes, DType::kU8, 0xEE}));
  LADING_TRY(lane->finish());
  ScaledRun run(*lane, memory.get(), seed);
  run.make(options.staging_buffer_bytes);
  for (const quantized::Made& made : run.made()) LADING_TRY(device.take_scales(made.scales));
  const Result<void> moved = run.run();
  LADING_TRY(lane->finish());
  LADING_TRY(moved);
  quantized::Bytes found(kScaledBytes);
  LADING_TRY(lane->fetch(memory.get(), found));
  return found;
}

}  // namespace lading::device::cuda
