#include "layout/region_table.h"

#include <string_view>

namespace lading::layout {
namespace {

void add(std::string& key, std::uint64_t number) { key.append(reinterpret_cast<const char*>(&number), sizeof(number)); }

template <class Numbers>
void add_list(std::string& key, const Numbers& numbers) {
  add(key, numbers.size());
  for (const std::uint64_t number : numbers) add(key, number);
}

// Everything that region_of() looks at; lists say their length, so different inputs have different keys.
std::string key_of(const Shape& shape, const std::vector<Cut>& cuts) {
  std::string key;
  add_list(key, shape.dims());
  for (const Cut& cut : cuts) {
    add(key, static_cast<std::uint64_t>(cut.kind));
    add_list(key, cut.axes);
    add_list(key, cut.owners);
    for (const std::uint64_t number :
         {std::uint64_t{cut.dim}, cut.split_factor, cut.pad_multiple, cut.group_offset_elems, cut.group_elems,
          std::uint64_t{cut.flat_parameter.size()}}) {
      add(key, number);
    }
    key += cut.flat_parameter;
  }
  return key;
}

// A mesh may have a million ranks, and be asked for all of them.
constexpr std::size_t kMostRanksKept = 4096;

}  // namespace

std::uint32_t RegionTable::kind_of(const Shape& shape, const std::vector<Cut>& cuts) {
  const auto [known, is_new] = numbers_.try_emplace(key_of(shape, cuts), static_cast<std::uint32_t>(kinds_.size()));
  if (is_new) kinds_.push_back({&shape, &cuts});
  return known->second;
}

const Region& RegionTable::of(std::uint32_t kind, std::uint64_t rank) {
  if (known_.size() > kMostRanksKept && !known_.contains(rank)) known_.clear();
  const auto [known, is_new] = known_[rank].try_emplace(kind);
  if (is_new) known->second = region_of(*kinds_[kind].shape, *kinds_[kind].cuts, mesh_, rank);
  return known->second;
}

}  // namespace lading::layout
