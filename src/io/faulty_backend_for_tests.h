// FaultyBackend: another backend with disturbances, for tests.
//
// Disturbs operations by number, or by chance from a seed; which ones depends only on the plan and the operation's
// number, so a run can be repeated. Thread-safe; operations are numbered in the order in which they arrive.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <thread>

#include "io/read_backend.h"

namespace lading::io {

enum class FaultKind : std::uint8_t {
  kShortRead,  ///< half of what was asked for, at least one byte
  kEintr,
  kEagain,
  kEio,
  kEndOfFile,  ///< 0 bytes
  kEstale,
  kBitFlip,  ///< one bit of what was read, in the middle
  kDelay,
};

inline constexpr FaultKind kAllFaultKinds[] = {FaultKind::kShortRead, FaultKind::kEintr,     FaultKind::kEagain,
                                               FaultKind::kEio,       FaultKind::kEndOfFile, FaultKind::kEstale,
                                               FaultKind::kBitFlip,   FaultKind::kDelay};

struct FaultPlan {
  FaultKind kind = FaultKind::kShortRead;
  /// The operations [first, first + count), from 0 on. Nothing: none by number.
  std::optional<std::uint64_t> first;
  std::uint64_t count = 1;
  /// And every other operation with this probability.
  double probability = 0.0;
  std::uint64_t seed = 0;
  std::chrono::milliseconds delay{1};
};

class FaultyBackend final : public ReadBackend {
 public:
  /// `inner` must outlive it.
  FaultyBackend(ReadBackend& inner, FaultPlan plan) : inner_(inner), plan_(plan) {}

  [[nodiscard]] std::string_view name() const override { return "faulty"; }
  [[nodiscard]] std::uint64_t operations() const { return operations_; }
  [[nodiscard]] std::uint64_t faults() const { return faults_; }

  [[nodiscard]] ReadSome read_some(const File& file, std::uint64_t offset_bytes, std::span<char> out) override {
    const std::uint64_t number = operations_++;
    if (!is_disturbed(number)) return inner_.read_some(file, offset_bytes, out);
    ++faults_;
    switch (plan_.kind) {
      case FaultKind::kShortRead:
        return inner_.read_some(file, offset_bytes, out.first(out.size() > 1 ? out.size() / 2 : out.size()));
      case FaultKind::kEintr: return {.bytes = 0, .error = EINTR};
      case FaultKind::kEagain: return {.bytes = 0, .error = EAGAIN};
      case FaultKind::kEio: return {.bytes = 0, .error = EIO};
      case FaultKind::kEndOfFile: return {};
      case FaultKind::kEstale: return {.bytes = 0, .error = ESTALE};
      case FaultKind::kBitFlip: {
        const ReadSome got = inner_.read_some(file, offset_bytes, out);
        if (got.bytes > 0) out[got.bytes / 2] = static_cast<char>(out[got.bytes / 2] ^ 0x10);
        return got;
      }
      case FaultKind::kDelay: std::this_thread::sleep_for(plan_.delay); break;
    }
    return inner_.read_some(file, offset_bytes, out);
  }

 private:
  [[nodiscard]] bool is_disturbed(std::uint64_t number) const {
    if (plan_.first && number >= *plan_.first && number - *plan_.first < plan_.count) return true;
    if (plan_.probability <= 0) return false;
    const auto chance = static_cast<double>(scatter(plan_.seed ^ scatter(number)));
    return chance < plan_.probability * static_cast<double>(std::numeric_limits<std::uint64_t>::max());
  }

  // SplitMix64's finisher: neighbours come out unrelated.
  static std::uint64_t scatter(std::uint64_t value) {
    value += 0x9E3779B97F4A7C15U;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
    return value ^ (value >> 31);
  }

  ReadBackend& inner_;
  const FaultPlan plan_;
  std::atomic<std::uint64_t> operations_ = 0;
  std::atomic<std::uint64_t> faults_ = 0;
};

}  // namespace lading::io
