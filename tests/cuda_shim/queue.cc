#include "cuda_shim/queue.h"

#include <thread>
#include <utility>

namespace lading::cuda_shim {

std::shared_ptr<Queue> Queue::open() {
  auto queue = std::make_shared<Queue>();
  // Not joined: as with a driver, the process may end while a stream is busy.
  std::thread([queue] { queue->work(); }).detach();
  return queue;
}

std::uint64_t Queue::issue(Operation operation) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(operation));
  changed_.notify_all();
  return ++issued_;
}

void Queue::wait_for(std::uint64_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= count; });
}

void Queue::wait() {
  std::unique_lock lock(mutex_);
  const std::uint64_t count = issued_;
  changed_.wait(lock, [&] { return done_ >= count; });
}

void Queue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void Queue::abandon() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  done_ += waiting_.size();
  waiting_.clear();
  changed_.notify_all();
  changed_.wait(lock, [&] { return done_ >= issued_; });
}

void Queue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Operation operation = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    operation();
    operation = nullptr;  // what it kept alive goes before anybody hears that it is done
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace lading::cuda_shim
