// Any bytes as an index: no crash, and every shard name that is accepted is a safe one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "checkpoint/index.h"

using namespace lading;
using namespace lading::checkpoint;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = parse_index(JsonBuffer::copy_of(text), "fuzzed.index.json");
  if (!index) {
    LADING_CHECK(!index.error().empty());
    for (const Error& error : index.error()) LADING_CHECK(!error.text().empty());
    return 0;
  }
  LADING_CHECK(!index->entries.empty());
  LADING_CHECK(std::is_sorted(index->shards.begin(), index->shards.end()));
  for (const std::string& shard : index->shards) {
    LADING_CHECK(shard.ends_with(".safetensors") && shard.front() != '/');
    LADING_CHECK(("/" + shard + "/").find("/../") == std::string::npos);
  }
  for (const IndexEntry& entry : index->entries) LADING_CHECK(entry.shard < index->shards.size());
  return 0;
}
