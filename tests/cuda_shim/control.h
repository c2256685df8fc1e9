// What tests ask of the stand-in for the CUDA driver, and what it tells them.
//
// The stand-in is found by dlopen(), as the real one is; Shim is the test's end of it. What can be set is listed in
// config.h; programs that are run by tests get the same text in the environment variable LADING_SHIM.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace lading::cuda_shim {

/// All zero after a run without mistakes.
struct Faults {
  std::uint64_t leaks = 0;                 ///< what was made and not given back, on GPUs that are not lost
  std::uint64_t violations = 0;            ///< what no driver promises to bear
  std::uint64_t work_after_sticky = 0;     ///< calls on a GPU that was known to be lost, cleaning up not counted
  std::uint64_t cleanup_after_sticky = 0;  ///< attempts to give back what was lost with the GPU

  friend bool operator==(const Faults&, const Faults&) = default;
};

// Exported with these names.
extern "C" {
void lading_shim_configure(const char* text);
void lading_shim_faults(Faults* faults);
const char* lading_shim_report();
std::uint64_t lading_shim_calls(const char* symbol);
int lading_shim_peek(std::uint64_t address, void* out, std::size_t size_bytes);
int lading_shim_gpu_of(std::uint64_t address);
void lading_shim_let_go();
}

/// The stand-in, loaded into the test's own process. One at a time: its state is the library's.
class Shim {
 public:
  /// Forgets all that was, and begins anew as `text` says. From now on lading finds this library.
  Shim(const char* library, const std::string& text) : library_(::dlopen(library, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) std::abort();
    ::setenv("LADING_LIBCUDA", library, 1);
    configure(text);
  }
  Shim(const Shim&) = delete;
  Shim& operator=(const Shim&) = delete;
  ~Shim() { ::unsetenv("LADING_LIBCUDA"); }

  void configure(const std::string& text) const { find<void (*)(const char*)>("lading_shim_configure")(text.c_str()); }
  [[nodiscard]] Faults faults() const {
    Faults faults;
    find<void (*)(Faults*)>("lading_shim_faults")(&faults);
    return faults;
  }
  /// JSON: GPUs, calls, and every leak and violation in words.
  [[nodiscard]] std::string report() const { return find<const char* (*)()>("lading_shim_report")(); }
  [[nodiscard]] std::uint64_t calls(const char* symbol) const {
    return find<std::uint64_t (*)(const char*)>("lading_shim_calls")(symbol);
  }
  /// Device memory as it is now; false where there is none.
  [[nodiscard]] bool peek(const std::byte* address, void* out, std::size_t size_bytes) const {
    const auto number = reinterpret_cast<std::uint64_t>(address);
    return find<int (*)(std::uint64_t, void*, std::size_t)>("lading_shim_peek")(number, out, size_bytes) != 0;
  }
  /// Whose memory this is; -1: nobody's.
  [[nodiscard]] int gpu_of(const std::byte* address) const {
    return find<int (*)(std::uint64_t)>("lading_shim_gpu_of")(reinterpret_cast<std::uint64_t>(address));
  }
  /// Ends what `hang` holds up.
  void let_go() const { find<void (*)()>("lading_shim_let_go")(); }

  /// A function of the driver itself.
  template <class F>
  [[nodiscard]] F find(const char* symbol) const {
    return reinterpret_cast<F>(::dlsym(library_, symbol));
  }

 private:
  void* library_;
};

}  // namespace lading::cuda_shim
