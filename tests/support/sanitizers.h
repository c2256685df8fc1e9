// Which sanitizer this build has, and how many random cases a test takes under one.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define LADING_HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LADING_HAS_ASAN 1
#endif
#endif
#ifndef LADING_HAS_ASAN
#define LADING_HAS_ASAN 0
#endif

#if defined(__SANITIZE_THREAD__)
#define LADING_HAS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LADING_HAS_TSAN 1
#endif
#endif
#ifndef LADING_HAS_TSAN
#define LADING_HAS_TSAN 0
#endif

namespace lading::test {

/// Under a sanitizer a quarter of the random cases: each takes some five times as long there, and it is the kind of a
/// case that a sanitizer looks at, not its values. Builds without sanitizers take all.
constexpr std::size_t random_cases(std::size_t count) { return LADING_HAS_ASAN || LADING_HAS_TSAN ? count / 4 : count; }

}  // namespace lading::test
