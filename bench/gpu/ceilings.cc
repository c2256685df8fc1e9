#include "gpu/ceilings.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "device/slab.h"

namespace lading::bench {
namespace {

using Clock = std::chrono::steady_clock;
using device::Slab;

constexpr std::size_t kPinnedBytes = std::size_t{256} << 20;
constexpr std::size_t kCopyBytes = std::size_t{8} << 20;
constexpr unsigned kStreams = 4;
constexpr unsigned kPasses = 32;

double gb_per_second(std::uint64_t bytes, Clock::time_point begin) {
  return static_cast<double>(bytes) / std::chrono::duration<double>(Clock::now() - begin).count() / 1e9;
}

void fill_with_noise(std::span<std::byte> memory) {
  std::uint64_t state = 88172645463325252U;
  for (std::size_t i = 0; i + sizeof state <= memory.size(); i += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(memory.data() + i, &state, sizeof state);
  }
}

struct DirectFile {
  int descriptor = -1;
  std::uint64_t size_bytes = 0;
};

// The last block of a file is shorter; O_DIRECT is asked for a whole one all the same.
bool read_block(const DirectFile& file, std::uint64_t begin, std::span<std::byte> into) {
  const std::uint64_t end = std::min(begin + into.size(), file.size_bytes);
  while (begin < end) {
    const ssize_t got = ::pread(file.descriptor, into.data(), into.size(), static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    begin += static_cast<std::uint64_t>(got);
    // After a short read the next place may not be aligned, which only the end of a file may cause.
    if (begin < end && begin % 4096 != 0) return false;
  }
  return true;
}

struct Piece {
  const DirectFile* file;
  std::uint64_t begin;
};

}  // namespace

Result<double, std::string> pinned_copy_speed(const Cuda& cuda) {
  auto slab = Slab::allocate(kPinnedBytes);
  std::byte* device = cuda.allocate(kPinnedBytes);
  if (!slab || device == nullptr) return fail(std::string("no memory for the pinned copy"));
  fill_with_noise(slab->bytes());
  cuda.pin(slab->bytes());
  std::vector<Cuda::Stream> streams;
  for (unsigned i = 0; i < kStreams; ++i) streams.push_back(cuda.make_stream());
  const auto pass = [&] {
    for (std::size_t i = 0; i < kPinnedBytes / kCopyBytes; ++i) {
      const std::size_t begin = i * kCopyBytes;
      cuda.to_device_async(device + begin, slab->bytes().subspan(begin, kCopyBytes), streams[i % kStreams]);
    }
  };
  pass();  // warm
  cuda.synchronise();
  const Clock::time_point begin = Clock::now();
  for (unsigned i = 0; i < kPasses; ++i) pass();
  cuda.synchronise();
  const double speed = gb_per_second(std::uint64_t{kPasses} * kPinnedBytes, begin);
  cuda.unpin(slab->bytes());
  return speed;
}

Result<double, std::string> memcpy_speed() {
  const unsigned threads = std::max(1U, std::thread::hardware_concurrency());
  constexpr std::size_t kPart = std::size_t{64} << 20;
  auto from = Slab::allocate(threads * kPart);
  auto to = Slab::allocate(threads * kPart);
  if (!from || !to) return fail(std::string("no memory for memcpy"));
  const auto copy_all = [&](unsigned times) {
    std::vector<std::jthread> crew;
    for (unsigned t = 0; t < threads; ++t) {
      crew.emplace_back([&, t] {
        for (unsigned i = 0; i < times; ++i) {
          std::memcpy(to->bytes().data() + t * kPart, from->bytes().data() + t * kPart, kPart);
        }
      });
    }
  };
  fill_with_noise(from->bytes());
  copy_all(1);
  const Clock::time_point begin = Clock::now();
  constexpr unsigned kTimes = 8;
  copy_all(kTimes);
  return gb_per_second(std::uint64_t{kTimes} * threads * kPart, begin);
}

Result<double, std::string> direct_read_speed(const std::vector<std::string>& paths, const ReadShape& shape) {
  std::vector<DirectFile> files;
  std::uint64_t total_bytes = 0;
  for (const std::string& path : paths) {
    DirectFile file;
    struct stat status = {};
    file.descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (file.descriptor < 0 || ::fstat(file.descriptor, &status) != 0) {
      return fail(fmt::format("{}: no O_DIRECT: {}", path, std::strerror(errno)));
    }
    file.size_bytes = static_cast<std::uint64_t>(status.st_size);
    total_bytes += file.size_bytes;
    files.push_back(file);
  }
  std::vector<Piece> pieces;
  for (const DirectFile& file : files) {
    for (std::uint64_t begin = 0; begin < file.size_bytes; begin += shape.block_bytes) pieces.push_back({&file, begin});
  }
  auto slab = Slab::allocate(shape.threads * shape.block_bytes);
  if (!slab) return fail(std::string("no memory to read into"));
  std::memset(slab->bytes().data(), 1, slab->bytes().size());
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  const Clock::time_point begin = Clock::now();
  {
    std::vector<std::jthread> crew;
    for (unsigned t = 0; t < shape.threads; ++t) {
      crew.emplace_back([&, t] {
        const auto block = slab->bytes().subspan(t * shape.block_bytes, shape.block_bytes);
        for (std::size_t i = next++; i < pieces.size() && !failed; i = next++) {
          if (!read_block(*pieces[i].file, pieces[i].begin, block)) failed = true;
        }
      });
    }
  }
  const double speed = gb_per_second(total_bytes, begin);
  for (const DirectFile& file : files) ::close(file.descriptor);
  if (failed) return fail(std::string("a direct read failed"));
  return speed;
}

}  // namespace lading::bench
