// Queue: the operations of one stream, carried out one after the other by a thread of its own, later than they were
// issued. What depends on an operation that nobody waited for shows as wrong bytes. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace lading::cuda_shim {

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  using Operation = std::function<void()>;

  /// Begins the thread, which ends some time after close().
  static std::shared_ptr<Queue> open();

  /// Its number: operations are counted from 1.
  std::uint64_t issue(Operation operation);
  /// Until so many are done.
  void wait_for(std::uint64_t count);
  /// Until all are done that have been issued.
  void wait();
  /// No more will come; what was issued is still done.
  void close();
  /// What has not begun is dropped; waits for the one that has.
  void abandon();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> waiting_;
  std::uint64_t issued_ = 0;
  std::uint64_t done_ = 0;
  bool closed_ = false;
};

}  // namespace lading::cuda_shim
