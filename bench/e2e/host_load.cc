// One contender of the host bench, in a process of its own: prints seconds, memory and whether the bytes are right.
//
//   host_load lading|lading-no-digests|memcpy CKPT
//
// "memcpy" is the ceiling: as many bytes copied into fresh memory of the same kind by as many threads.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "device/slab.h"
#include "lading/inspect.h"
#include "lading/load.h"

namespace {

using Clock = std::chrono::steady_clock;
using lading::device::Slab;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// From /proc/self/status, in kB.
std::uint64_t status_kb(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stoull(line.substr(field.size() + 1));
  }
  return 0;
}

std::vector<char> file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<char> bytes(static_cast<std::size_t>(file.tellg()));
  file.seekg(0);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

// Every tensor against the files, read in another way.
bool is_right(const lading::LoadReport& report, const lading::Inspection& inspection) {
  std::vector<std::vector<char>> files;
  for (const lading::ShardInfo& shard : inspection.shards) files.push_back(file_bytes(shard.path));
  if (report.tensors.size() != inspection.tensors.size()) return false;
  for (std::size_t i = 0; i < report.tensors.size(); ++i) {
    const lading::TensorInfo& tensor = inspection.tensors[i];
    const auto& memory = report.tensors[i].memory;
    if (report.tensors[i].destination.name != tensor.name || memory.size() != tensor.bytes.size_bytes()) return false;
    if (memory.empty()) continue;
    if (std::memcmp(memory.data(), files[tensor.shard].data() + tensor.bytes.begin, memory.size()) != 0) return false;
  }
  return true;
}

// As many bytes as the checkpoint has, from a source that no cache holds but that needs no memory to speak of: a second
// copy of the checkpoint would make the machine find new pages for it, and that is not the copy's fault.
int run_memcpy(const lading::Inspection& inspection) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  constexpr std::size_t kSourceBytes = std::size_t{256} << 20;
  auto source = Slab::allocate(kSourceBytes);
  if (!source) return 1;
  for (std::size_t i = 0; i < kSourceBytes; ++i) source->bytes()[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  const std::size_t blocks = inspection.tensor_bytes / kBlock;
  const auto source_of = [&](std::size_t block) { return source->bytes().data() + block * kBlock % kSourceBytes; };
  const Clock::time_point begin = Clock::now();
  auto slab = Slab::allocate(blocks * kBlock);
  if (!slab) return 1;
  std::atomic<std::size_t> next = 0;
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t) {
      threads.emplace_back([&] {
        for (std::size_t i = next++; i < blocks; i = next++) {
          std::memcpy(slab->bytes().data() + i * kBlock, source_of(i), kBlock);
        }
      });
    }
  }
  const double seconds = seconds_since(begin);
  bool right = true;
  for (std::size_t i = 0; i < blocks; ++i) {
    right &= std::memcmp(slab->bytes().data() + i * kBlock, source_of(i), kBlock) == 0;
  }
  fmt::print("{{\"seconds\": {}, \"bytes\": {}, \"right\": {}}}\n", seconds, blocks * kBlock, right);
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string what = argv[1];
  const auto inspection = lading::inspect({argv[2]});
  if (!inspection) {
    fmt::print(stderr, "{}\n", inspection.error().front().text());
    return 1;
  }
  if (what == "memcpy") return run_memcpy(*inspection);
  lading::LoadRequest request;
  request.plan.checkpoint.path = argv[2];
  if (what == "lading-no-digests") request.digests = lading::Digests::kOff;
  const std::uint64_t anon_before_kb = status_kb("RssAnon");
  const Clock::time_point begin = Clock::now();
  const auto report = lading::materialize(request);
  const double seconds = seconds_since(begin);
  if (!report) {
    fmt::print(stderr, "{}\n", report.error().problems.front().text());
    return 1;
  }
  const std::uint64_t anon_kb = status_kb("RssAnon");
  const std::uint64_t peak_kb = status_kb("VmHWM");
  const bool right = is_right(*report, *inspection);
  fmt::print(
      "{{\"seconds\": {}, \"bytes\": {}, \"right\": {}, \"planning_seconds\": {}, \"loading_seconds\": {}, "
      "\"anon_above_start_kb\": {}, \"peak_kb\": {}, \"threads\": {}}}\n",
      seconds, inspection->tensor_bytes, right, report->planning_seconds, report->loading_seconds,
      anon_kb - anon_before_kb, peak_kb, report->threads);
  return right ? 0 : 1;
}
