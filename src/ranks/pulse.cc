#include "ranks/pulse.h"

#include <optional>
#include <utility>

namespace lading::ranks {

Pulse::Pulse(Coordinator& ranks, std::function<void()> on_failure, std::function<void()> on_beat)
    : ranks_(ranks), on_failure_(std::move(on_failure)), on_beat_(std::move(on_beat)), thread_([this] { run(); }) {}

Pulse::~Pulse() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Pulse::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, ranks_.interval() / 4, [&] { return is_over_; })) {
    lock.unlock();
    if (on_beat_) on_beat_();
    const std::uint64_t done = done_;
    const bool is_well = ranks_.poll(done > 0 ? std::optional(done) : std::nullopt, activity_).has_value();
    if (!is_well) on_failure_();
    lock.lock();
    if (!is_well) return;
  }
}

}  // namespace lading::ranks
