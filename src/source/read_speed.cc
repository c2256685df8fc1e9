#include "source/read_speed.h"

#include <algorithm>

#include "io/read_time.h"

namespace lading::source {
namespace {

constexpr std::uint64_t kSamples = 4;  // of each rank
constexpr std::uint64_t kMostSampleBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kSampledShare = 400;  // no more than a 400th of the files, by all ranks together
constexpr double kLeastSeconds = 1e-9;

std::uint64_t size_of(const CheckpointSource& source, std::uint32_t file) {
  return source.shards()[file].identity.size_bytes;
}

}  // namespace

Result<double> read_speed(const CheckpointSource& source, const std::vector<std::uint32_t>& files, Sampler sampler) {
  std::uint64_t total = 0;
  for (const std::uint32_t file : files) total += size_of(source, file);
  const std::uint64_t all_samples = kSamples * sampler.ranks;
  const std::uint64_t sample_bytes =
      std::clamp<std::uint64_t>(total / kSampledShare / all_samples, 1, kMostSampleBytes);
  std::uint64_t read_bytes = 0;
  double seconds = 0;
  for (std::uint64_t sample = 0; sample < kSamples; ++sample) {
    std::uint64_t place = total / all_samples * (sample * sampler.ranks + sampler.rank);  // in all files, end to end
    for (const std::uint32_t file : files) {
      const std::uint64_t size = size_of(source, file);
      if (place >= size) {
        place -= size;
        continue;
      }
      LADING_ASSIGN_OR_RETURN(const io::File opened, source.open_file(source.shards()[file]));
      const ByteRange range{place, std::min(size, place + sample_bytes)};
      LADING_ASSIGN_OR_RETURN(const double taken, io::seconds_to_read(opened, range));
      seconds += taken;
      read_bytes += range.size_bytes();
      break;
    }
  }
  return static_cast<double>(std::max<std::uint64_t>(read_bytes, 1)) / std::max(seconds, kLeastSeconds);
}

}  // namespace lading::source
