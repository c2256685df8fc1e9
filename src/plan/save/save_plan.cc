#include "plan/save/save_plan.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <memory>
#include <string_view>

#include "base/loop_nest.h"

namespace lading::plan {
namespace {

class WriteHasher {
 public:
  WriteHasher() : state_(XXH3_createState(), &XXH3_freeState) {
    LADING_CHECK(state_ != nullptr && XXH3_128bits_reset(state_.get()) == XXH_OK);
  }

  void number(std::uint64_t number) {
    if constexpr (std::endian::native == std::endian::big) number = __builtin_bswap64(number);
    add(&number, sizeof number);
  }
  void text(std::string_view text) {
    number(text.size());
    add(text.data(), text.size());
  }
  std::string hex() {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  void add(const void* bytes, std::size_t size) {
    LADING_CHECK(XXH3_128bits_update(state_.get(), bytes, size) == XXH_OK);
  }

  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

void add_write(WriteHasher& hash, const Write& write) {
  hash.number(write.transfer.destination.number());
  hash.number(write.transfer.list);
  hash.number(write.transfer.transfer);
  hash.number(write.memory_begin_bytes);
  hash.number(write.file_begin_bytes);
  hash.number(write.run_elems);
  hash.number(write.loops.size());
  for (const ByteLoop& loop : write.loops) {
    hash.number(loop.count);
    hash.number(loop.source_stride_bytes);
    hash.number(loop.target_stride_bytes);
  }
}

}  // namespace

std::uint64_t Write::elems() const { return run_elems * rounds_of(loops); }

std::string digest(const SavePlan& plan) {
  WriteHasher hash;
  hash.text("lading.save/1");
  hash.text(digest(plan.load));
  hash.number(plan.headers.size());
  for (const std::string& header : plan.headers) hash.text(header);
  hash.text(plan.index_name);
  hash.text(plan.index);
  hash.number(plan.ranks.size());
  for (const RankWrites& rank : plan.ranks) {
    hash.number(rank.rank);
    hash.number(rank.writes.size());
    for (const Write& write : rank.writes) add_write(hash, write);
  }
  return hash.hex();
}

}  // namespace lading::plan
