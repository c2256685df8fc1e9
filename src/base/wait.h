// Waiting for a condition, however long it takes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace lading {

/// As changed.wait(lock, is_true). The symbol of that one is of GCC 12's libstdc++: with it the wheel would not run
/// where GCC 11's is.
template <class Condition>
void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, const Condition& is_true) {
  while (!changed.wait_for(lock, std::chrono::hours(1), is_true)) {
  }
}

}  // namespace lading
