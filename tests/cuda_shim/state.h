// Everything that the stand-in knows: GPUs, contexts, handles, what was asked for and what went wrong.
//
// One per process, made at first use and never destroyed: threads of streams may outlive main(). Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "cuda_shim/config.h"
#include "cuda_shim/control.h"
#include "cuda_shim/memory.h"
#include "cuda_shim/queue.h"

namespace lading::cuda_shim {

inline constexpr Status kInvalidContext = 201;
inline constexpr Status kInvalidDevice = 101;
inline constexpr Status kInvalidHandle = 400;
inline constexpr Status kNotFound = 500;
inline constexpr Status kIllegalAddress = 700;
inline constexpr Status kContextIsDestroyed = 709;
inline constexpr Status kAlreadyRegistered = 712;
inline constexpr Status kNotRegistered = 713;

struct StreamObject;

/// A GPU and its primary context, which has the address of this for a handle.
struct Gpu {
  int ordinal = 0;
  std::atomic<int> retained{0};
  std::atomic<Status> sticky{0};
  std::atomic<bool> told{false};  ///< some call has returned the sticky error
  std::atomic<std::uint64_t> written_bytes{0};
  std::atomic<std::uint64_t> peak_bytes{0};
  std::shared_ptr<StreamObject> null_stream;  ///< the one without a handle; made when it is first used
};

struct StreamObject {
  Gpu* gpu = nullptr;
  std::shared_ptr<Queue> queue;
};

struct EventObject {
  Gpu* gpu = nullptr;
  // Where it was last recorded: nowhere yet, or an operation's number.
  std::mutex mutex;
  std::shared_ptr<Queue> queue;
  std::uint64_t operation = 0;
};

struct ModuleObject {
  Gpu* gpu = nullptr;
};

struct FunctionObject {
  Gpu* gpu = nullptr;
  std::uint64_t module = 0;
  std::string kernel;
};

/// Handles are numbers that never come again, so that the use of an old one is noticed.
template <class T>
class Table {
 public:
  std::uint64_t add(std::shared_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    objects_[++last_ * kStep] = std::move(object);
    return last_ * kStep;
  }
  [[nodiscard]] std::shared_ptr<T> find(std::uint64_t handle) const {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<T> take(std::uint64_t handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : objects_.extract(found).mapped();
  }
  [[nodiscard]] std::vector<std::shared_ptr<T>> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<T>> all;
    for (const auto& [handle, object] : objects_) all.push_back(object);
    return all;
  }
  template <class Unwanted>
  void drop_if(Unwanted unwanted) {
    const std::lock_guard lock(mutex_);
    std::erase_if(objects_, [&](const auto& entry) { return unwanted(*entry.second); });
  }

 private:
  static constexpr std::uint64_t kStep = 0x10001;  // looks like nothing else

  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<T>> objects_;
  std::uint64_t last_ = 0;
};

/// What an operation of a stream did.
struct Outcome {
  Status status = 0;
  std::byte* written = nullptr;  ///< device memory, where a bit may flip
};

enum class OperationKind : std::uint8_t { kTransfer, kOther };

class State {
 public:
  static State& get();

  void configure(const Config& config);
  [[nodiscard]] Config config() const;
  [[nodiscard]] Gpu* gpu(int ordinal);
  /// The device of the thread's current context, or null.
  [[nodiscard]] Gpu* current() const;
  void push(Gpu* gpu);
  Gpu* pop();

  /// A stream of this GPU's context; null where there is none, which is noted.
  [[nodiscard]] std::shared_ptr<StreamObject> stream(Gpu& gpu, device::cuda::Stream handle);
  /// Has the stream's thread do it; an error then is the GPU's end.
  void issue(StreamObject& stream, OperationKind kind, std::function<Outcome()> operation);
  /// Waits for all streams of the GPU; its sticky error, if any.
  Status synchronize(Gpu& gpu);
  /// The context goes, and with it what is in it; which is a leak.
  void destroy_context(Gpu& gpu);

  void add_violation(std::string text);
  void note_allocated(Gpu& gpu);
  void note_registered();
  void let_go();
  [[nodiscard]] Faults faults() const;
  [[nodiscard]] std::string report() const;

  Memory memory;
  Table<StreamObject> streams;
  Table<EventObject> events;
  Table<ModuleObject> modules;
  Table<FunctionObject> functions;
  std::array<std::atomic<std::uint64_t>, kFunctions> calls = {};
  std::atomic<std::uint64_t> work_after_sticky{0};
  std::atomic<std::uint64_t> cleanup_after_sticky{0};
  std::atomic<int> owner_process{0};  ///< that called cuInit; 0: none has
  std::atomic<std::uint64_t> dumped{0};

 private:
  State();
  /// Dawdles, hangs, loses the GPU; whether the operation is the one whose bit flips.
  bool before_operation(Gpu& gpu, OperationKind kind);
  void do_operation(Gpu& gpu, OperationKind kind, const std::function<Outcome()>& operation);
  [[nodiscard]] std::vector<std::string> leaks() const;
  [[nodiscard]] std::vector<std::string> leaks_of(const Gpu& gpu) const;

  mutable std::mutex mutex_;
  std::condition_variable released_;
  Config config_;
  // Old ones stay: threads of abandoned streams may still look at them.
  std::deque<Gpu> gpus_;
  std::size_t first_gpu_ = 0;
  std::uint64_t generation_ = 0;  // of the configuration; context stacks of an older one are empty
  std::mt19937_64 random_;
  std::vector<std::string> violations_;
  std::vector<std::string> old_leaks_;
  std::uint64_t operations_ = 0;
  std::uint64_t transfers_ = 0;
  std::int64_t pushed_ = 0;
  std::uint64_t registered_peak_bytes_ = 0;
  bool let_go_ = false;
};

}  // namespace lading::cuda_shim
