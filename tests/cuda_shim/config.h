// What the stand-in pretends to be, and what shall go wrong. Written as key=value, separated by commas:
//
//   gpus=2 memory=1G version=12040 capability=90   the machine; memory is per GPU
//   memlock=64M  memlockcode=304                   how much can be registered at once, and what is said beyond
//   fail=SYMBOL:N:CODE[:once|always|sticky]        the Nth call fails; so do all later ones; the GPU is lost with it
//   async=N:CODE                                   the GPU is lost while the Nth operation of a stream is done
//   flip=N  hang=N  slow=MS                        the Nth transfer: a bit flips; it waits for let_go; all take longer
//   delay=US  seed=N                               how much operations dawdle, at random
//   report=FILE  dump=FOLDER                       for other processes: a report at exit (%p: process), and what device
//                                                  memory holds when it is freed, as gpuN-M.bin
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/driver.h"

namespace lading::cuda_shim {

using device::cuda::Address;
using device::cuda::Ordinal;
using device::cuda::Status;

/// The driver's functions, by the names that lading gives them.
enum class Fn : std::uint8_t {
#define LADING_SHIM_FN(member, symbol, ...) member,
  LADING_CUDA_FUNCTIONS(LADING_SHIM_FN)
#undef LADING_SHIM_FN
      kCount
};

inline constexpr std::size_t kFunctions = static_cast<std::size_t>(Fn::kCount);

[[nodiscard]] const char* symbol_of(Fn fn);
/// kCount where there is none.
[[nodiscard]] Fn function_named(std::string_view symbol);

enum class Lasting : std::uint8_t { kOnce, kAlways, kSticky };

struct PlannedFault {
  Fn fn = Fn::kCount;
  std::uint64_t nth = 0;  ///< counted from 1
  Status code = 0;
  Lasting lasting = Lasting::kOnce;
};

struct Config {
  int gpus = 1;
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
  int version = 13000;
  int capability = 90;
  std::uint64_t memlock_bytes = ~std::uint64_t{0};
  Status memlock_code = device::cuda::kOutOfMemory;
  std::vector<PlannedFault> faults;
  std::uint64_t async_nth = 0;  ///< 0: never; so for the two below
  Status async_code = 0;
  std::uint64_t flip_nth = 0;
  std::uint64_t hang_nth = 0;
  std::uint64_t slow_ms = 0;
  std::uint64_t delay_us = 100;
  std::uint64_t seed = 1;
  std::string report_file;
  std::string dump_folder;
};

/// Ends the process where the text makes no sense: a test that asks for nothing tests nothing.
[[nodiscard]] Config parse_config(std::string_view text);

}  // namespace lading::cuda_shim
