// The gate that every call of the driver goes through: counted, refused without initialisation or context, refused
// after a sticky error, failed where the test wants it.
#pragma once

#include "cuda_shim/state.h"

// The driver's functions, declared with the types that lading calls them by and exported by the driver's names.
#define LADING_SHIM_DECLARE(member, symbol, ...)    \
  extern "C" __attribute__((visibility("default"))) \
  lading::device::cuda::Status shim_##member(__VA_ARGS__) __asm__(symbol);

namespace lading::cuda_shim {

using device::cuda::Context;
using device::cuda::Event;
using device::cuda::Function;
using device::cuda::kInvalidValue;
using device::cuda::kNotInitialized;
using device::cuda::kOutOfMemory;
using device::cuda::kSuccess;
using device::cuda::Module;
using device::cuda::RowCopy;
using device::cuda::Stream;

LADING_CUDA_FUNCTIONS(LADING_SHIM_DECLARE)

/// Whether and how a call goes on.
struct Entry {
  Status status = kSuccess;  ///< what is returned, if it is an error
  bool is_done = true;       ///< whether the call does its work: those that give back or wait do, whatever they return
  Gpu* gpu = nullptr;        ///< of the current context
};

[[nodiscard]] Entry enter(Fn fn);

/// `body` is called with the GPU of the current context, which is there for all functions that need one.
template <class Body>
Status gated(Fn fn, const Body& body) {
  const Entry entry = enter(fn);
  if (!entry.is_done) return entry.status;
  const Status status = body(entry.gpu);
  return entry.status != kSuccess ? entry.status : status;
}

template <class Handle>
[[nodiscard]] std::uint64_t number_of(Handle handle) {
  return reinterpret_cast<std::uint64_t>(handle);
}

}  // namespace lading::cuda_shim
