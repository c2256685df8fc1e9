// A function that can stop in the middle and go on later, on one thread: many ranks in a simulation that can be
// replayed.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "support/sanitizers.h"

#if LADING_HAS_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace lading::ranks::test {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body) : body_(std::move(body)), stack_(take_stack()) {
    ::getcontext(&inside_);
    inside_.uc_stack.ss_sp = stack_.get();
    inside_.uc_stack.ss_size = kStackBytes;
    inside_.uc_link = &outside_;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    ::makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self >> 32),
                  static_cast<unsigned>(self));
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() { spare_stacks().push_back(std::move(stack_)); }

  /// Runs until the body pauses or ends.
  void resume() {
#if LADING_HAS_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stack_.get(), kStackBytes);
#endif
    ::swapcontext(&outside_, &inside_);
#if LADING_HAS_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }
  /// From within the body.
  void pause() {
#if LADING_HAS_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, caller_stack_, caller_bytes_);
#endif
    ::swapcontext(&inside_, &outside_);
#if LADING_HAS_ASAN
    __sanitizer_finish_switch_fiber(fake, &caller_stack_, &caller_bytes_);
#endif
  }
  [[nodiscard]] bool is_done() const { return is_done_; }

 private:
  static constexpr std::size_t kStackBytes = 256U << 10;
  using Stack = std::unique_ptr<char[]>;

  static std::vector<Stack>& spare_stacks() {
    static std::vector<Stack> stacks;
    return stacks;
  }
  static Stack take_stack() {
    std::vector<Stack>& spare = spare_stacks();
    if (spare.empty()) return Stack(new char[kStackBytes]);
    Stack stack = std::move(spare.back());
    spare.pop_back();
    return stack;
  }
  static void enter(unsigned high, unsigned low) {
    auto* self = reinterpret_cast<Fiber*>((static_cast<std::uintptr_t>(high) << 32) | low);
#if LADING_HAS_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &self->caller_stack_, &self->caller_bytes_);
#endif
    self->body_();
    self->is_done_ = true;
#if LADING_HAS_ASAN
    __sanitizer_start_switch_fiber(nullptr, self->caller_stack_, self->caller_bytes_);
#endif
  }

  std::function<void()> body_;
  Stack stack_;
  ucontext_t inside_{};
  ucontext_t outside_{};
  bool is_done_ = false;
#if LADING_HAS_ASAN
  const void* caller_stack_ = nullptr;
  std::size_t caller_bytes_ = 0;
#endif
};

}  // namespace lading::ranks::test
