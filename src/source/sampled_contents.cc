#include "source/sampled_contents.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <span>

namespace lading::source {
namespace {

constexpr std::uint64_t kBlockBytes = 64;
constexpr std::uint64_t kBlocks = 128;  // of all shards together, but at least one of each

Result<void> add_blocks(const io::File& file, std::uint64_t count, std::string& sample) {
  const std::uint64_t size = file.size_bytes();
  const std::uint64_t block = std::min(kBlockBytes, size);
  for (std::uint64_t i = 0; i < count; ++i) {
    // The last one ends with the file; a single one lies in the middle.
    const std::uint64_t room = size - block;
    const std::uint64_t begin = count == 1 ? room / 2 : room / (count - 1) * i + room % (count - 1) * i / (count - 1);
    const std::size_t old = sample.size();
    sample.resize(old + block);
    LADING_TRY(file.read_exact(begin, std::span(sample).subspan(old)));
  }
  return {};
}

}  // namespace

Result<std::string> sampled_contents(const CheckpointSource& source) {
  const std::uint64_t shards = source.shards().size();
  const std::uint64_t each = std::max<std::uint64_t>(1, kBlocks / std::max<std::uint64_t>(1, shards));
  std::string sample;
  for (std::size_t i = 0; i < shards; ++i) {
    LADING_ASSIGN_OR_RETURN(const io::File file, source.open_file(source.shards()[i]));
    sample +=
        fmt::format("{}\n{}\n{}\n", source.shards()[i].checkpoint, source.catalog().files[i].name, file.size_bytes());
    LADING_TRY(add_blocks(file, each, sample));
  }
  const XXH128_hash_t hash = XXH3_128bits(sample.data(), sample.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace lading::source
