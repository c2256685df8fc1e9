// The tail of the normal distribution in F64, the same bits on every machine; and the floating-point modes it needs.
//
// Only operations that IEEE 754 rounds correctly, in a fixed order. Thread-safe, no state.
#pragma once

#include <cfenv>
#include <cstdint>

namespace lading::device {

/// The probability that a standard normal number is above `z`, for z >= 0, infinity included. Relative error below
/// 1e-12 where it is a normal number.
[[nodiscard]] double normal_tail(double z);

/// While it lives, this thread rounds to nearest and keeps subnormal numbers, whatever the process has set.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint();
  ~DefaultFloatingPoint();
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
#if defined(__x86_64__)
  std::uint32_t before_;  // a tenth of the time that fegetenv() takes, which also saves the registers of the x87
#else
  std::fenv_t before_;
#endif
};

}  // namespace lading::device
