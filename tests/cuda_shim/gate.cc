#include "cuda_shim/gate.h"

#include <fmt/format.h>
#include <unistd.h>

namespace lading::cuda_shim {
namespace {

enum class Needs : std::uint8_t { kNothing, kInitialised, kContext };

/// What a call is, once the GPU is lost: nobody minds, or an attempt to clean up, or a mistake.
enum class Role : std::uint8_t { kHarmless, kCleanup, kWork };

Needs needs_of(Fn fn) {
  switch (fn) {
    case Fn::init:
    case Fn::driver_version:
    case Fn::error_name:
    case Fn::error_text: return Needs::kNothing;
    case Fn::device_count:
    case Fn::device_get:
    case Fn::device_name:
    case Fn::device_attribute:
    case Fn::device_total_memory:
    case Fn::retain_context:
    case Fn::release_context:
    case Fn::push_context:
    case Fn::pop_context: return Needs::kInitialised;
    default: return Needs::kContext;
  }
}

Role role_of(Fn fn) {
  switch (fn) {
    case Fn::free:
    case Fn::unregister_host:
    case Fn::destroy_stream:
    case Fn::destroy_event:
    case Fn::unload_module: return Role::kCleanup;
    default: return needs_of(fn) == Needs::kContext ? Role::kWork : Role::kHarmless;
  }
}

/// An error of theirs is one that happened before: the thing is given back, the wait is over.
bool works_in_spite_of_errors(Fn fn) {
  switch (fn) {
    case Fn::release_context:
    case Fn::pop_context:
    case Fn::synchronize_context:
    case Fn::synchronize_stream:
    case Fn::synchronize_event: return true;
    default: return role_of(fn) == Role::kCleanup;
  }
}

Entry refused(Fn fn, Status status, Gpu* gpu) { return {status, works_in_spite_of_errors(fn), gpu}; }

Entry after_sticky(State& state, Fn fn, Gpu& gpu) {
  if (gpu.told.exchange(true)) {
    if (role_of(fn) == Role::kWork) {
      ++state.work_after_sticky;
      state.add_violation(fmt::format("{} after GPU {} was lost", symbol_of(fn), gpu.ordinal));
    } else {
      ++state.cleanup_after_sticky;
    }
  }
  return refused(fn, gpu.sticky, &gpu);
}

/// The GPU that was called, or all of them where that cannot be told.
void lose(State& state, Fn fn, const Gpu* which, Status code) {
  for (int i = 0; i < state.config().gpus; ++i) {
    Gpu* const gpu = state.gpu(i);
    if (which != nullptr && which != gpu) continue;
    gpu->sticky = code;
    gpu->told = fn != Fn::pop_context;  // of which nobody expects news
  }
}

}  // namespace

Entry enter(Fn fn) {
  State& state = State::get();
  const int owner = state.owner_process;
  // A child of fork() has the memory of the driver's state, and nothing of what that stands for.
  if (owner != 0 && owner != ::getpid() && needs_of(fn) != Needs::kNothing) return {kNotInitialized, false, nullptr};
  if (owner != 0 && owner != ::getpid() && fn == Fn::init) return {kNotInitialized, false, nullptr};
  const std::uint64_t count = ++state.calls[static_cast<std::size_t>(fn)];
  if (needs_of(fn) != Needs::kNothing && owner == 0) {
    state.add_violation(fmt::format("{} before cuInit", symbol_of(fn)));
    return {kNotInitialized, false, nullptr};
  }
  Gpu* const gpu = state.current();
  if (needs_of(fn) == Needs::kContext) {
    if (gpu == nullptr) {
      state.add_violation(fmt::format("{} without a context", symbol_of(fn)));
      return {kInvalidContext, false, nullptr};
    }
    if (gpu->retained == 0) {
      state.add_violation(fmt::format("{} in a context that is gone", symbol_of(fn)));
      return {kContextIsDestroyed, false, nullptr};
    }
    if (gpu->sticky != 0) return after_sticky(state, fn, *gpu);
  }
  for (const PlannedFault& fault : state.config().faults) {
    if (fault.fn != fn || count < fault.nth || (count > fault.nth && fault.lasting == Lasting::kOnce)) continue;
    if (fault.lasting == Lasting::kSticky) lose(state, fn, gpu, fault.code);
    return refused(fn, fault.code, gpu);
  }
  return {kSuccess, true, gpu};
}

}  // namespace lading::cuda_shim
