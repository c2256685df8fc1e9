// MemoryGate: how much memory the tasks of a verification may take together. Thread-safe.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/wait.h"

namespace lading::exec {

class MemoryGate {
 public:
  explicit MemoryGate(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Room for so many bytes, given back at the end. One that is larger than the limit waits until it is alone.
  class Room {
   public:
    Room(MemoryGate& gate, std::uint64_t bytes) : gate_(gate), bytes_(std::min(bytes, gate.limit_bytes_)) {
      std::unique_lock lock(gate_.mutex_);
      wait_until(gate_.changed_, lock, [&] { return gate_.used_bytes_ + bytes_ <= gate_.limit_bytes_; });
      gate_.used_bytes_ += bytes_;
    }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    ~Room() {
      const std::lock_guard lock(gate_.mutex_);
      gate_.used_bytes_ -= bytes_;
      gate_.changed_.notify_all();
    }

   private:
    MemoryGate& gate_;
    std::uint64_t bytes_;
  };

 private:
  const std::uint64_t limit_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t used_bytes_ = 0;
};

}  // namespace lading::exec
