#include "cuda_shim/config.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>

namespace lading::cuda_shim {
namespace {

constexpr std::array<const char*, kFunctions> kSymbols = {
#define LADING_SHIM_SYMBOL(member, symbol, ...) symbol,
    LADING_CUDA_FUNCTIONS(LADING_SHIM_SYMBOL)
#undef LADING_SHIM_SYMBOL
};

[[noreturn]] void refuse(std::string_view text) {
  fmt::print(stderr, "LADING_SHIM: not understood: {}\n", text);
  std::_Exit(70);
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::uint64_t number(std::string_view text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || end - result.ptr > 1) refuse(text);
  if (result.ptr == end) return value;
  switch (*result.ptr) {
    case 'K': return value << 10;
    case 'M': return value << 20;
    case 'G': return value << 30;
    default: refuse(text);
  }
}

int small(std::string_view text) { return static_cast<int>(number(text)); }

PlannedFault planned_fault(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ':');
  if (parts.size() != 3 && parts.size() != 4) refuse(text);
  PlannedFault fault{function_named(parts[0]), number(parts[1]), small(parts[2]), Lasting::kOnce};
  if (fault.fn == Fn::kCount) refuse(text);
  if (parts.size() == 4 && parts[3] != "once") {
    if (parts[3] != "always" && parts[3] != "sticky") refuse(text);
    fault.lasting = parts[3] == "always" ? Lasting::kAlways : Lasting::kSticky;
  }
  return fault;
}

void set_async(std::string_view text, Config& config) {
  const std::vector<std::string_view> parts = split(text, ':');
  if (parts.size() != 2) refuse(text);
  config.async_nth = number(parts[0]);
  config.async_code = small(parts[1]);
}

}  // namespace

const char* symbol_of(Fn fn) { return kSymbols[static_cast<std::size_t>(fn)]; }

Fn function_named(std::string_view symbol) {
  std::size_t i = 0;
  while (i < kFunctions && kSymbols[i] != symbol) ++i;
  return static_cast<Fn>(i);
}

Config parse_config(std::string_view text) {
  Config config;
  if (text.empty()) return config;
  for (const std::string_view item : split(text, ',')) {
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) refuse(item);
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = item.substr(equals + 1);
    if (key == "gpus") {
      config.gpus = small(value);
    } else if (key == "memory") {
      config.memory_bytes = number(value);
    } else if (key == "version") {
      config.version = small(value);
    } else if (key == "capability") {
      config.capability = small(value);
    } else if (key == "memlock") {
      config.memlock_bytes = number(value);
    } else if (key == "memlockcode") {
      config.memlock_code = small(value);
    } else if (key == "fail") {
      config.faults.push_back(planned_fault(value));
    } else if (key == "async") {
      set_async(value, config);
    } else if (key == "flip") {
      config.flip_nth = number(value);
    } else if (key == "hang") {
      config.hang_nth = number(value);
    } else if (key == "slow") {
      config.slow_ms = number(value);
    } else if (key == "delay") {
      config.delay_us = number(value);
    } else if (key == "seed") {
      config.seed = number(value);
    } else if (key == "report") {
      config.report_file = value;
    } else if (key == "dump") {
      config.dump_folder = value;
    } else {
      refuse(item);
    }
  }
  return config;
}

}  // namespace lading::cuda_shim
