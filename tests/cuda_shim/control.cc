// The test's end of the stand-in, and the report when a process ends.
#include "cuda_shim/control.h"

#include <unistd.h>

#include <cstring>
#include <fstream>

#include "cuda_shim/state.h"

#define LADING_SHIM_CONTROL extern "C" __attribute__((visibility("default")))

namespace lading::cuda_shim {

LADING_SHIM_CONTROL void lading_shim_configure(const char* text) { State::get().configure(parse_config(text)); }

LADING_SHIM_CONTROL void lading_shim_faults(Faults* faults) { *faults = State::get().faults(); }

LADING_SHIM_CONTROL const char* lading_shim_report() {
  thread_local std::string report;
  report = State::get().report();
  return report.c_str();
}

LADING_SHIM_CONTROL std::uint64_t lading_shim_calls(const char* symbol) {
  const Fn fn = function_named(symbol);
  return fn == Fn::kCount ? 0 : State::get().calls[static_cast<std::size_t>(fn)].load();
}

LADING_SHIM_CONTROL int lading_shim_peek(std::uint64_t address, void* out, std::size_t size_bytes) {
  const std::shared_ptr<Region> region = State::get().memory.find(kAnyGpu, address, size_bytes);
  if (region == nullptr) return 0;
  std::memcpy(out, region->bytes + (address - region->address), size_bytes);
  return 1;
}

LADING_SHIM_CONTROL int lading_shim_gpu_of(std::uint64_t address) {
  const std::shared_ptr<Region> region = State::get().memory.find(kAnyGpu, address, 1);
  return region == nullptr ? -1 : region->gpu;
}

LADING_SHIM_CONTROL void lading_shim_let_go() { State::get().let_go(); }

namespace {

// A library is unloaded when the process ends, and not before: lading never closes it.
__attribute__((destructor)) void report_at_exit() {
  State& state = State::get();
  std::string file = state.config().report_file;
  if (file.empty()) return;
  if (const std::size_t at = file.find("%p"); at != std::string::npos) file.replace(at, 2, std::to_string(::getpid()));
  std::ofstream(file) << state.report();
}

}  // namespace
}  // namespace lading::cuda_shim
