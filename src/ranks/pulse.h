// Signs of life while this rank is busy: a thread that polls a Coordinator, and says when the load has failed
// elsewhere.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "ranks/coordinator.h"

namespace lading::ranks {

class Pulse {
 public:
  /// `on_failure` is called once, on the pulse's thread; `on_beat` all the time, there too. All outlive the pulse.
  Pulse(Coordinator& ranks, std::function<void()> on_failure, std::function<void()> on_beat = {});
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  /// From now on a load that stands still is noticed. Any number that changes.
  void progress(std::uint64_t done, Activity activity = Activity::kReading) {
    activity_ = activity;
    done_ = done + 1;
  }
  /// Until progress() is called again, with another number: this rank waits for others, which is no standstill.
  void rest() { done_ = 0; }

 private:
  void run();

  Coordinator& ranks_;
  std::function<void()> on_failure_;
  std::function<void()> on_beat_;
  std::atomic<Activity> activity_ = Activity::kReading;
  std::atomic<std::uint64_t> done_ = 0;  // 0: nothing is loaded, yet or any more
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace lading::ranks
