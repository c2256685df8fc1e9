// How many threads a load or a verification has.
#pragma once

#include <cstdint>

namespace lading::exec {

/// Nobody gets more without asking: reading and adding up saturate a machine's memory long before.
inline constexpr std::uint32_t kMostThreads = 16;
inline constexpr std::uint32_t kMostThreadsOnRequest = 256;

/// The threads that help on a machine with so many usable processors, or the `requested` number if that is not 0.
[[nodiscard]] std::uint32_t thread_count(std::uint32_t requested, std::uint32_t processors);

/// The processors that this process can use at the same time.
[[nodiscard]] std::uint32_t usable_processors();

}  // namespace lading::exec
