#include "exec/crew.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace lading::exec {
namespace {

constexpr auto kProgressInterval = std::chrono::milliseconds(100);

}  // namespace

Result<void> Crew::open(const std::vector<LoadDevice>& devices, std::uint32_t threads) {
  for (std::uint32_t i = 0; i < threads; ++i) {
    Lanes lanes;
    for (const LoadDevice& device : devices) {
      auto lane = device.device->open_lane(device.lane_options);
      if (!lane && threads_.empty()) return fail(std::move(lane).error());
      if (!lane) return {};  // fewer are slower, not wrong
      lanes.push_back(*std::move(lane));
    }
    threads_.push_back(std::move(lanes));
  }
  return {};
}

void Crew::close() {
  // Giving pinned memory back takes a device's driver a while: all at the same time, as far as threads can be had.
  std::vector<std::jthread> closing;
  closing.reserve(threads_.size());
  try {
    for (Lanes& lanes : threads_) closing.emplace_back([&lanes] { lanes.clear(); });
  } catch (const std::system_error&) {
    closing.clear();
  }
  closing.clear();
  threads_.clear();
}

void Crew::run(std::size_t count, const Task& task) {
  if (count == 0 || stopped()) return;
  next_ = 0;
  std::mutex mutex;
  std::condition_variable ended;
  std::size_t running = std::min(threads_.size(), count);
  std::vector<std::jthread> threads;  // joined before what they use is gone
  threads.reserve(running);
  const std::size_t wanted = running;
  for (std::size_t i = 0; i < wanted; ++i) {
    try {
      threads.emplace_back([this, &mutex, &ended, &running, &task, count, lanes = &threads_[i]] {
        work(*lanes, count, task);
        const std::lock_guard lock(mutex);
        --running;
        ended.notify_all();
      });
    } catch (const std::system_error&) {
      const std::lock_guard lock(mutex);
      running -= wanted - i;  // fewer are slower, not wrong
      break;
    }
  }
  if (threads.empty()) return work(threads_[0], count, task);
  std::unique_lock lock(mutex);
  while (!ended.wait_for(lock, kProgressInterval, [&] { return running == 0; })) {
    lock.unlock();
    report_progress();
    lock.lock();
  }
}

void Crew::work(const Lanes& lanes, std::size_t count, const Task& task) {
  for (const auto& lane : lanes) lane->attach();
  try {
    for (std::size_t i = next_++; i < count && !stopped(); i = next_++) {
      if (Result<void> done = task(lanes, i); !done) add_error(std::move(done).error());
    }
  } catch (const std::bad_alloc&) {
    is_out_of_memory_ = true;  // and no memory to say more
    failed_ = true;
  } catch (const std::exception& exception) {
    add_error(Error(Code::kInternal, std::string(options_.work) + " stopped: " + exception.what()));
  }
  // Also after an error: nothing may still be written when the caller gets the memory back.
  for (const auto& lane : lanes) {
    try {
      if (Result<void> done = lane->finish(); !done) add_error(std::move(done).error());
    } catch (const std::bad_alloc&) {
      is_out_of_memory_ = true;
      failed_ = true;
    }
    lane->detach();
  }
}

void Crew::add_error(Error error) {
  const std::lock_guard lock(errors_mutex_);
  failed_ = true;
  errors_.add(std::move(error));
}

Errors Crew::take_errors() {
  if (is_out_of_memory_) errors_.add(options_.when_out_of_memory());
  return std::move(errors_);
}

bool Crew::stopped() {
  if (failed_.load(std::memory_order_relaxed)) return true;
  if (options_.cancelled == nullptr || !options_.cancelled->load(std::memory_order_relaxed)) return false;
  if (!failed_.exchange(true)) add_error(options_.when_cancelled());
  return true;
}

void Crew::report_progress() const {
  if (options_.progress != nullptr && *options_.progress)
    (*options_.progress)({done_bytes_, total_bytes_, read_bytes_});
}

}  // namespace lading::exec
