#include "gpu/memory_watch.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

namespace lading::bench {
namespace {

constexpr std::chrono::milliseconds kPause{5};

using Fields = std::map<std::string, std::uint64_t>;

// Lines such as "VmRSS:   12 kB".
Fields fields_of(const char* path) {
  Fields fields;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    const std::size_t digit = line.find_first_of("0123456789", colon);
    if (digit != std::string::npos) fields[line.substr(0, colon)] = std::strtoull(line.c_str() + digit, nullptr, 10);
  }
  return fields;
}

// `total` names the field that total_kb takes.
HostMemory look_now(const char* total) {
  Fields process = fields_of("/proc/self/status");
  Fields machine = fields_of("/proc/meminfo");
  return {process[total], process["RssAnon"], process["RssFile"], process["RssShmem"],
          machine["MemTotal"] - machine["MemAvailable"]};
}

std::uint64_t above(std::uint64_t most, std::uint64_t start) { return most > start ? most - start : 0; }

}  // namespace

MemoryWatch::MemoryWatch() {
  std::ofstream("/proc/self/clear_refs") << "5";  // the high-water mark begins anew
  start_ = look_now("VmRSS");
  most_ = start_;
  thread_ = std::jthread([this] {
    while (!stopped_) {
      look();
      std::this_thread::sleep_for(kPause);
    }
  });
}

void MemoryWatch::look() {
  const HostMemory now = look_now("VmHWM");
  most_.anon_kb = std::max(most_.anon_kb, now.anon_kb);
  most_.file_kb = std::max(most_.file_kb, now.file_kb);
  most_.shared_kb = std::max(most_.shared_kb, now.shared_kb);
  most_.machine_kb = std::max(most_.machine_kb, now.machine_kb);
  most_.total_kb = now.total_kb;
}

HostMemory MemoryWatch::stop() {
  stopped_ = true;
  thread_.join();
  look();
  return {above(most_.total_kb, start_.total_kb), above(most_.anon_kb, start_.anon_kb),
          above(most_.file_kb, start_.file_kb), above(most_.shared_kb, start_.shared_kb),
          above(most_.machine_kb, start_.machine_kb)};
}

}  // namespace lading::bench
