#include "device/random_tail.h"

#include <array>
#include <cmath>
#include <cstddef>

namespace lading::device {

namespace {

constexpr double kOneOverRootTwoPi = 0x1.9884533d43651p-2;

constexpr std::array<double, 15> kOneOverFactorials = [] {
  std::array<double, 15> out = {};
  double factorial = 1;  // exact up to 14!
  for (std::size_t n = 0; n < out.size(); ++n) {
    if (n > 0) factorial *= static_cast<double>(n);
    out[n] = 1 / factorial;
  }
  return out;
}();

// Of a number that is not positive. Taylor's series between -log(2) / 2 and log(2) / 2, times a power of two.
double exponential(double number) {
  constexpr double kOneOverLogOf2 = 0x1.71547652b82fep+0;
  constexpr double kLogOf2 = 0x1.62e42fefa39efp-1;
  constexpr double kLogOf2Rest = 0x1.abc9e3b39803fp-56;
  if (number < -745) return 0;
  const double power = std::floor(std::fma(number, kOneOverLogOf2, 0.5));
  const double rest = std::fma(-power, kLogOf2Rest, std::fma(-power, kLogOf2, number));
  double sum = kOneOverFactorials.back();
  for (std::size_t n = kOneOverFactorials.size() - 1; n-- > 0;) sum = std::fma(sum, rest, kOneOverFactorials[n]);
  return std::ldexp(sum, static_cast<int>(power));
}

}  // namespace

double normal_tail(double z) {
  if (std::isinf(z)) return 0;
  const double square = z * z;
  const double density = kOneOverRootTwoPi * exponential(-0.5 * square);
  if (z < 2) {
    // One half, less density * (z + z^3 / 3 + z^5 / (3 * 5) + …).
    double term = z;
    double sum = z;
    for (int n = 1; n <= 40; ++n) {
      term = term * square / (2 * n + 1);
      sum += term;
    }
    return std::fma(-density, sum, 0.5);
  }
  // density / (z + 1 / (z + 2 / (z + 3 / …))): 80 levels are more than enough from 2 on.
  double denominator = z;
  for (int n = 80; n >= 1; --n) denominator = z + n / denominator;
  return density / denominator;
}

#if defined(__x86_64__)

namespace {
// Round to nearest, subnormal numbers kept, nothing trapped. The lowest six bits only tell what has happened.
constexpr std::uint32_t kDefaultControl = 0x1f80;
constexpr std::uint32_t kHappened = 0x3f;
}  // namespace

DefaultFloatingPoint::DefaultFloatingPoint() : before_(__builtin_ia32_stmxcsr()) {
  if ((before_ & ~kHappened) != kDefaultControl) __builtin_ia32_ldmxcsr(kDefaultControl);
}

DefaultFloatingPoint::~DefaultFloatingPoint() {
  if ((before_ & ~kHappened) != kDefaultControl) __builtin_ia32_ldmxcsr(before_);
}

#else

DefaultFloatingPoint::DefaultFloatingPoint() {
  std::fegetenv(&before_);
  std::fesetenv(FE_DFL_ENV);
}

DefaultFloatingPoint::~DefaultFloatingPoint() { std::fesetenv(&before_); }

#endif

}  // namespace lading::device
