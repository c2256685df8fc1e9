#include "gpu/expectation.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include "device/slab.h"

namespace lading::bench {
namespace {

constexpr std::uint64_t kBlockElems = std::uint64_t{2} << 20;
constexpr std::size_t kBlockBytes = kBlockElems * 4;

std::uint64_t elem_bytes(const std::string& dtype) {
  if (dtype == "BF16" || dtype == "F16") return 2;
  return dtype == "F32" ? 4 : 0;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool is_nan(std::uint16_t bits) { return (bits & 0x7FFFU) > 0x7F80U; }
bool is_nan(std::uint32_t bits) { return (bits & 0x7FFFFFFFU) > 0x7F800000U; }

// docs/how-it-works/casts.md: to the nearest, of two the even one; a NaN becomes quiet and keeps sign and upper
// payload.
std::uint16_t to_bf16(std::uint32_t bits) {
  if (is_nan(bits)) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

std::uint32_t to_f32(std::uint16_t bits) {
  return (std::uint32_t{bits} << 16) | (is_nan(bits) ? std::uint32_t{0x00400000} : 0U);
}

template <class To, class From, class Cast>
void cast_run(std::byte* to, const std::byte* from, std::uint64_t elems, Cast cast) {
  for (std::uint64_t i = 0; i < elems; ++i) {
    From value = 0;
    std::memcpy(&value, from + i * sizeof(From), sizeof(From));
    const To result = cast(value);
    std::memcpy(to + i * sizeof(To), &result, sizeof(To));
  }
}

// Read-only pages of a file, for the life of the process.
std::span<const std::byte> map_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  struct stat status = {};
  void* memory = MAP_FAILED;
  if (::fstat(file, &status) == 0 && status.st_size > 0) {
    memory = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED, file, 0);
  }
  ::close(file);
  if (memory == MAP_FAILED) return {};
  return {static_cast<const std::byte*>(memory), static_cast<std::size_t>(status.st_size)};
}

// Page faults would read a cold file in small pieces.
void fetch_ahead(const std::byte* from, std::uint64_t size_bytes) {
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(from) / 4096 * 4096;
  const std::uint64_t length = reinterpret_cast<std::uintptr_t>(from) + size_bytes - begin;
  ::madvise(reinterpret_cast<void*>(begin), length, MADV_WILLNEED);  // only a hint
}

// Elements [first, first + count) of the check, as memory must hold them.
void work_out(const Expected& check, const std::byte* tensor, std::uint64_t first, std::span<std::byte> into) {
  const std::uint64_t from_bytes = elem_bytes(check.source_dtype);
  const std::uint64_t to_bytes = elem_bytes(check.dtype);
  const std::uint64_t count = into.size() / to_bytes;
  fetch_ahead(tensor + (first / check.run_elems * check.stride_elems + check.skip_elems) * from_bytes,
              count * from_bytes);
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t run = (first + done) / check.run_elems;
    const std::uint64_t within = (first + done) % check.run_elems;
    const std::uint64_t elems = std::min(count - done, check.run_elems - within);
    const std::byte* from = tensor + (run * check.stride_elems + check.skip_elems + within) * from_bytes;
    std::byte* to = into.data() + done * to_bytes;
    if (check.source_dtype == check.dtype) {
      std::memcpy(to, from, elems * to_bytes);
    } else if (to_bytes == 2) {
      cast_run<std::uint16_t, std::uint32_t>(to, from, elems, to_bf16);
    } else {
      cast_run<std::uint32_t, std::uint16_t>(to, from, elems, to_f32);
    }
    done += elems;
  }
}

template <class Word>
std::uint64_t count_wrong(const Expected& check, std::span<const std::byte> found, std::span<const std::byte> wanted) {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < found.size(); i += sizeof(Word)) {
    Word is = 0;
    Word should = 0;
    std::memcpy(&is, found.data() + i, sizeof(Word));
    std::memcpy(&should, wanted.data() + i, sizeof(Word));
    if (is != should && !(check.any_nan && is_nan(is) && is_nan(should))) ++wrong;
  }
  return wrong;
}

struct Block {
  const Expected* check;
  const std::byte* tensor;
  std::byte* memory;
  std::uint64_t first;
  std::uint64_t count;
};

struct Findings {
  std::mutex mutex;
  Comparison comparison;

  void wrong(const std::string& name, const std::string& what, std::uint64_t elems) {
    const std::lock_guard lock(mutex);
    comparison.wrong_elems += elems;
    if (comparison.first_wrong.empty()) comparison.first_wrong = fmt::format("{}: {}", name, what);
  }
};

void compare_blocks(const std::vector<Block>& blocks, std::atomic<std::size_t>& next, const Cuda* cuda,
                    Findings& findings) {
  auto slab = device::Slab::allocate(2 * kBlockBytes);
  if (!slab) return findings.wrong("", "no host memory to compare with", 1);
  const std::span<std::byte> back = slab->bytes().first(kBlockBytes);
  if (cuda != nullptr) {
    cuda->bind_thread();
    cuda->pin(back);
  }
  for (std::size_t i = next++; i < blocks.size(); i = next++) {
    const Block& block = blocks[i];
    const std::uint64_t size = elem_bytes(block.check->dtype);
    const auto wanted = slab->bytes().subspan(kBlockBytes, block.count * size);
    const auto found = back.first(wanted.size());
    const std::byte* memory = block.memory + block.first * size;
    if (cuda != nullptr) {
      cuda->to_host(found, memory);
    } else {
      std::memcpy(found.data(), memory, found.size());
    }
    work_out(*block.check, block.tensor, block.first, wanted);
    if (std::memcmp(found.data(), wanted.data(), wanted.size()) == 0) continue;
    const std::uint64_t wrong = size == 2 ? count_wrong<std::uint16_t>(*block.check, found, wanted)
                                          : count_wrong<std::uint32_t>(*block.check, found, wanted);
    if (wrong != 0) {
      findings.wrong(block.check->name,
                     fmt::format("{} wrong in elements {} to {}", wrong, block.first, block.first + block.count),
                     wrong);
    }
  }
  if (cuda != nullptr) cuda->unpin(back);
}

}  // namespace

Result<std::vector<Expected>, std::string> read_expectations(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) return fail(fmt::format("{} cannot be read", path));
  std::vector<Expected> all;
  for (std::string line; std::getline(stream, line);) {
    const std::vector<std::string> fields = split(line, '\t');
    if (fields.size() != 10) return fail(fmt::format("{}: not ten fields in \"{}\"", path, line));
    Expected check;
    check.name = fields[0];
    check.file = fields[1];
    check.offset_bytes = std::stoull(fields[2]);
    check.source_dtype = fields[3];
    check.dtype = fields[5];
    check.any_nan = fields[9] == "nan";
    if (elem_bytes(check.source_dtype) == 0 || elem_bytes(check.dtype) == 0) {
      return fail(fmt::format("{}: a dtype that the bench does not know in \"{}\"", path, line));
    }
    std::vector<std::uint64_t> extents;
    if (fields[4] != "-") {
      for (const std::string& extent : split(fields[4], ',')) extents.push_back(std::stoull(extent));
    }
    const int cut = std::stoi(fields[6]);
    const std::size_t dim = cut < 0 ? 0 : static_cast<std::size_t>(cut);
    std::uint64_t inner = 1;
    for (std::size_t d = 0; d < extents.size(); ++d) {
      if (cut >= 0 && d < dim) check.outer_runs *= extents[d];
      if (cut < 0 || d > dim) inner *= extents[d];
    }
    check.run_elems = inner;
    if (cut >= 0) {
      const std::uint64_t first = std::stoull(fields[7]);
      check.run_elems = (std::stoull(fields[8]) - first) * inner;
      check.stride_elems = extents.at(dim) * inner;
      check.skip_elems = first * inner;
    }
    all.push_back(std::move(check));
  }
  if (all.empty()) return fail(fmt::format("{} expects nothing", path));
  return all;
}

Comparison compare(const std::vector<Expected>& expected,
                   const std::function<std::span<std::byte>(const std::string&)>& memory_of, const Cuda* cuda) {
  std::map<std::string, std::span<const std::byte>> files;
  std::vector<Block> blocks;
  Findings findings;
  for (const Expected& check : expected) {
    const auto known = files.find(check.file);
    const auto file =
        known != files.end() ? known->second : files.emplace(check.file, map_file(check.file)).first->second;
    const std::span<std::byte> memory = memory_of(check.name);
    const std::uint64_t last = (check.outer_runs - 1) * check.stride_elems + check.skip_elems + check.run_elems;
    if (memory.size() != check.elems() * elem_bytes(check.dtype)) {
      findings.wrong(check.name, fmt::format("{} bytes of memory", memory.size()), check.elems());
    } else if (check.offset_bytes + last * elem_bytes(check.source_dtype) > file.size()) {
      findings.wrong(check.name, fmt::format("{} is too short, or not there", check.file), check.elems());
    } else {
      for (std::uint64_t first = 0; first < check.elems(); first += kBlockElems) {
        blocks.push_back({&check, file.data() + check.offset_bytes, memory.data(), first,
                          std::min(kBlockElems, check.elems() - first)});
      }
      ++findings.comparison.checks;
      findings.comparison.bytes += memory.size();
    }
  }
  std::atomic<std::size_t> next = 0;
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < std::max(1U, std::thread::hardware_concurrency()); ++t) {
      threads.emplace_back([&] { compare_blocks(blocks, next, cuda, findings); });
    }
  }
  return findings.comparison;
}

}  // namespace lading::bench
