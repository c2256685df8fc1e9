// Gpu: one GPU with our kernels loaded, in the primary context that frameworks use too.
//
// After an error that leaves the context unusable (an illegal address, a lost device) the GPU counts as lost: every
// later call is refused here, and the driver hears no more of us. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/driver.h"
#include "lading/result.h"

namespace lading::device::cuda {

class Gpu {
 public:
  /// As the process numbers them (CUDA_VISIBLE_DEVICES). Whoever uses one at the same time shares it, so that all hear
  /// of its loss. Waits for the work that the caller has under way there.
  static Result<std::shared_ptr<Gpu>> open(int index);

  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  /// Calls the driver, with the context current. `doing` completes "cuda:0: … failed".
  template <class... Parameters, class... Arguments>
  Result<void> call(std::string_view doing, Status (*function)(Parameters...), Arguments... arguments) {
    return judge(doing, call_freely(function, arguments...));
  }

  /// The same, where a refusal is no failure of the load. A status that spells the end is remembered all the same.
  template <class... Parameters, class... Arguments>
  Status call_freely(Status (*function)(Parameters...), Arguments... arguments) {
    if (is_lost()) return last_status_;
    const Current current(*this);
    if (current.status() != kSuccess) return lose(current.status());  // without its context, nothing can be done
    return note_status(function(arguments...));
  }

  /// Keeps the context current in this thread until detach(), so that calls need not ask for it.
  /// A thread is attached to one GPU at a time; for others attach() does nothing.
  void attach();
  void detach();

  /// Too little memory, before anything was written (R64).
  [[nodiscard]] Error short_of(std::uint64_t wanted_bytes, std::uint64_t free_bytes) const;

  /// An error if `status` is one.
  Result<void> judge(std::string_view doing, Status status) const;

  [[nodiscard]] const Driver& driver() const { return driver_; }
  [[nodiscard]] std::string name() const;  ///< "cuda:0"
  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] bool is_lost() const { return is_lost_.load(std::memory_order_acquire); }

  [[nodiscard]] Function move_kernel() const { return move_; }
  [[nodiscard]] Function dequantize_kernel() const { return dequantize_; }
  [[nodiscard]] Function digest_kernel() const { return digest_; }
  [[nodiscard]] Function fill_kernel() const { return fill_; }
  [[nodiscard]] Function sample_kernel() const { return sample_; }

  void add_note(std::string note);                 ///< each once
  [[nodiscard]] std::vector<std::string> notes();  ///< of all who use the GPU

 private:
  // While it lives, our context is the thread's; the caller's comes back afterwards.
  class Current {
   public:
    explicit Current(Gpu& gpu)
        : gpu_(gpu),
          is_attached_(attached_ == &gpu),
          status_(is_attached_ ? kSuccess : gpu.driver_.push_context(gpu.context_)) {}
    ~Current() {
      Context ours = nullptr;
      if (!is_attached_ && status_ == kSuccess) gpu_.driver_.pop_context(&ours);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    [[nodiscard]] Status status() const { return status_; }

   private:
    Gpu& gpu_;
    bool is_attached_;
    Status status_;
  };

  static Result<std::shared_ptr<Gpu>> in_use(const Driver& driver, int index);
  Gpu(const Driver& driver, int index) : driver_(driver), index_(index) {}
  Result<void> start();
  Result<void> load_kernels();
  Status note_status(Status status);
  Status lose(Status status);

  static thread_local Gpu* attached_;  ///< whose context is the thread's

  Driver driver_;
  int index_ = 0;
  Ordinal device_ = 0;
  Context context_ = nullptr;
  Module module_ = nullptr;
  Function move_ = nullptr;
  Function dequantize_ = nullptr;
  Function digest_ = nullptr;
  Function fill_ = nullptr;
  Function sample_ = nullptr;
  std::atomic<bool> is_lost_ = false;
  std::atomic<Status> last_status_ = kSuccess;
  std::mutex notes_mutex_;
  std::vector<std::string> notes_;
};

/// Machine code made for compute capability `sm` (90) runs on it and on its minor successors.
[[nodiscard]] bool runs_on(unsigned image_sm, int major, int minor);

}  // namespace lading::device::cuda
