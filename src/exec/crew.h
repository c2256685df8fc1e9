// Crew: the threads of a load or a verification. Each takes tasks one by one, and stops at the first error. Those of a
// load have a lane of every device that it fills; a verification needs none.
//
// run() returns when every thread has finished what it began, whatever went wrong. Errors and counters may be added to
// from all threads; everything else belongs to the thread that has the crew.
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

/// Whom a crew listens to, and what it says when it has to stop. Borrowed.
struct CrewOptions {
  const std::atomic<bool>* cancelled = nullptr;                    ///< looked at between tasks
  const std::function<void(const Progress&)>* progress = nullptr;  ///< called a few times a second by run()
  Error (*when_cancelled)() = nullptr;
  Error (*when_out_of_memory)() = nullptr;
  const char* work = "";  ///< "the load"
};

class Crew {
 public:
  using Task = std::function<Result<void>(const Lanes& lanes, std::size_t task)>;

  explicit Crew(const CrewOptions& options) : options_(options) {}

  /// Lanes for each thread wanted, for fewer where memory is short, for at least one. Without devices, threads have no
  /// lanes.
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

  const CrewOptions options_;
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

}  // namespace lading::exec
