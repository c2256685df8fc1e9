// One contender of the host bench, in a process of its own: prints seconds, memory and whether the bytes are right.
//
//   host_load lading|lading-no-digests|memcpy CKPT
//
// "memcpy" is the ceiling: the same bytes, already in this process's memory, copied into fresh memory of the same kind
// by as many threads.
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
bool is_right(const lading::Report& report, const lading::Inspection& inspection) {
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

int run_memcpy(const lading::Inspection& inspection) {
  std::vector<Slab> files;  // in huge pages too: the ceiling should not suffer from small ones
  std::size_t size_bytes = 0;
  for (const lading::ShardInfo& shard : inspection.shards) {
    const std::vector<char> bytes = file_bytes(shard.path);
    auto slab = Slab::allocate(bytes.size());
    if (!slab) return 1;
    std::memcpy(slab->bytes().data(), bytes.data(), bytes.size());
    size_bytes += bytes.size();
    files.push_back(*std::move(slab));
  }
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  struct Block {
    const std::byte* from;
    std::size_t to;
    std::size_t size;
  };
  std::vector<Block> blocks;
  std::size_t to = 0;
  for (const Slab& file : files) {
    for (std::size_t at = 0; at < file.bytes().size(); at += kBlock) {
      const std::size_t size = std::min(kBlock, file.bytes().size() - at);
      blocks.push_back({file.bytes().data() + at, to, size});
      to += size;
    }
  }
  const Clock::time_point begin = Clock::now();
  auto slab = Slab::allocate(size_bytes);
  std::atomic<std::size_t> next = 0;
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t) {
      threads.emplace_back([&] {
        for (std::size_t i = next++; i < blocks.size(); i = next++) {
          std::memcpy(slab->bytes().data() + blocks[i].to, blocks[i].from, blocks[i].size);
        }
      });
    }
  }
  const double seconds = seconds_since(begin);
  bool right = true;
  for (const Block& block : blocks) right &= std::memcmp(slab->bytes().data() + block.to, block.from, block.size) == 0;
  fmt::print("{{\"seconds\": {}, \"bytes\": {}, \"right\": {}}}\n", seconds, size_bytes, right);
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string what = argv[1];
  const auto inspection = lading::inspect(argv[2]);
  if (!inspection) {
    fmt::print(stderr, "{}\n", inspection.error().front().text());
    return 1;
  }
  if (what == "memcpy") return run_memcpy(*inspection);
  lading::Request request;
  request.plan.checkpoint = argv[2];
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
