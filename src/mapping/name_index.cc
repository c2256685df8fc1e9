#include "mapping/name_index.h"

#include <algorithm>
#include <numeric>

namespace lading::mapping {

void NameIndex::build() {
  key_index_.reserve(keys_.size());
  for (const std::string_view key : keys_) key_index_.emplace(key, KeyId(key_index_.size()));
  target_index_.reserve(targets_.size());
  for (const Target& target : targets_) target_index_.emplace(target.name, TargetId(target_index_.size()));
}

KeyId NameIndex::find_key(std::string_view key) const {
  const auto found = key_index_.find(key);
  return found == key_index_.end() ? KeyId::none() : found->second;
}

TargetId NameIndex::find_target(std::string_view name) const {
  const auto found = target_index_.find(name);
  return found == target_index_.end() ? TargetId::none() : found->second;
}

std::vector<KeyId> NameIndex::keys_for(const Pattern& pattern) {
  const auto narrow = [](const auto& sorted, std::string_view start, const auto& text_of) {
    const auto first = std::partition_point(sorted.begin(), sorted.end(), [&](const auto& one) {
      return text_of(one).compare(0, start.size(), start) < 0;
    });
    const auto last = std::partition_point(
        first, sorted.end(), [&](const auto& one) { return text_of(one).compare(0, start.size(), start) <= 0; });
    return std::pair(first, last);
  };
  const auto [first, last] = narrow(keys_, pattern.prefix(), [](std::string_view key) { return key; });
  if (!pattern.suffix().empty()) {
    if (backward_.empty()) sort_backward();
    const std::string end(pattern.suffix().rbegin(), pattern.suffix().rend());
    const auto [from, to] = narrow(backward_, end, [](const auto& one) { return std::string_view(one.first); });
    if (to - from < last - first) {
      std::vector<KeyId> found;
      for (auto one = from; one != to; ++one) found.push_back(one->second);
      std::sort(found.begin(), found.end());
      return found;
    }
  }
  std::vector<KeyId> found(static_cast<std::size_t>(last - first));
  std::iota(found.begin(), found.end(), KeyId(static_cast<std::size_t>(first - keys_.begin())));
  return found;
}

void NameIndex::sort_backward() {
  for (const std::string_view key : keys_) {
    backward_.emplace_back(std::string(key.rbegin(), key.rend()), KeyId(backward_.size()));
  }
  std::sort(backward_.begin(), backward_.end());
}

}  // namespace lading::mapping
