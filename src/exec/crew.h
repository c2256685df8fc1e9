// Crew: the threads of a load. Each has a lane of every device, takes tasks one by one, and stops at the first error.
//
// run() returns when every thread has finished what it began, whatever went wrong. Errors and counters may be added to
// from all threads; everything else belongs to the thread that called execute().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"
#include "exec/devices.h"
#include "exec/executor.h"

namespace lading::exec {

/// What one thread works with, by device.
using Lanes = std::vector<std::unique_ptr<device::Lane>>;

class Crew {
 public:
  using Task = std::function<Result<void>(const Lanes& lanes, std::size_t task)>;

  explicit Crew(const Options& options) : options_(options) {}

  /// Lanes for as many threads as are wanted and can be had, at least one.
  Result<void> open(const std::vector<LoadDevice>& devices, std::uint32_t threads);
  /// Gives the lanes back. The devices may go then.
  void close();

  /// Does tasks 0 … count - 1, each once, in this order as far as they begin; none after an error.
  void run(std::size_t count, const Task& task);

  void add_error(Error error);
  /// Whether an error has come up, or the caller has cancelled.
  bool stopped();

  void add_done(std::uint64_t bytes) { done_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void add_read(std::uint64_t bytes) { read_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void set_total(std::uint64_t bytes) { total_bytes_ = bytes; }
  void report_progress() const;

  [[nodiscard]] std::uint64_t read_bytes() const { return read_bytes_; }
  [[nodiscard]] std::size_t threads() const { return threads_.size(); }
  [[nodiscard]] Errors take_errors();

 private:
  void work(const Lanes& lanes, std::size_t count, const Task& task);

  const Options& options_;
  std::vector<Lanes> threads_;
  std::atomic<std::size_t> next_ = 0;
  std::uint64_t total_bytes_ = 0;
  std::atomic<std::uint64_t> done_bytes_ = 0;
  std::atomic<std::uint64_t> read_bytes_ = 0;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> is_out_of_memory_ = false;
  std::mutex errors_mutex_;
  Errors errors_;
};

/// What to say when memory for the load's own needs is gone.
[[nodiscard]] Error out_of_memory();

}  // namespace lading::exec
