#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

namespace lading::device::cuda {
namespace {

// Every function that is used is there since then.
constexpr int kOldestVersion = 12000;

constexpr const char* kAfterFork =
    "Start the process anew instead of forking it (multiprocessing: \"spawn\"): CUDA does not survive fork().";

std::string version_of(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

Error none(std::string message, std::string remedy) {
  return Error(Code::kNoDevice, std::move(message)).by_rule("R34").try_this(std::move(remedy));
}

Error too_old(const std::string& found) {
  return none(fmt::format("the NVIDIA driver is too old: {}", found),
              fmt::format("Install a driver for CUDA {} or newer.", version_of(kOldestVersion)));
}

}  // namespace

std::string Driver::version_text() const { return version_of(version_); }

std::string Driver::describe(Status status) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name(status, &name) != kSuccess || name == nullptr) name = "unknown error";
  if (error_text(status, &text) != kSuccess || text == nullptr) text = "no description";
  return fmt::format("{} ({}): {}", name, status, text);
}

Error Driver::error(Status status, std::string_view what) const {
  if (status == kNotInitialized) {
    return Error(Code::kDeviceFailed, fmt::format("{}: {}", what, describe(status))).try_this(kAfterFork);
  }
  return Error(Code::kDeviceFailed, fmt::format("{}: {}", what, describe(status)))
      .try_this("Check nvidia-smi and the kernel's log (dmesg).");
}

Result<Driver> Driver::find() {
  const char* const named = std::getenv(kLibraryVariable);
  const char* const library = named != nullptr && *named != 0 ? named : kLibrary;
  // Never closed: threads of the driver's own may be running in it.
  void* const handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return fail(none(fmt::format("the CUDA driver could not be opened: {}", why != nullptr ? why : library),
                     "Install the NVIDIA driver; in a container, pass the GPU through (--gpus all)."));
  }
  Driver driver;
#define LADING_FIND(member, symbol, ...)                                              \
  driver.member = reinterpret_cast<decltype(driver.member)>(::dlsym(handle, symbol)); \
  if (driver.member == nullptr) return fail(too_old("it has no " symbol));
  LADING_CUDA_FUNCTIONS(LADING_FIND)
#undef LADING_FIND
  if (const Status status = driver.init(0); status != kSuccess) {
    if (status == kNoGpu) {
      return fail(none("the CUDA driver sees no GPU", "Check nvidia-smi and CUDA_VISIBLE_DEVICES."));
    }
    return fail(none(fmt::format("the CUDA driver could not be started: {}", driver.describe(status)),
                     status == kNotInitialized
                         ? kAfterFork
                         : "Check nvidia-smi: driver and kernel module must have the same version."));
  }
  if (driver.driver_version(&driver.version_) != kSuccess || driver.version_ < kOldestVersion) {
    return fail(too_old(fmt::format("it is for CUDA {}", driver.version_text())));
  }
  return driver;
}

}  // namespace lading::device::cuda
