// Names that a mistyped one may have meant.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lading {

/// How many characters to insert, delete or replace; gives up above `limit`.
inline std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  const std::size_t difference = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
  if (difference > limit) return limit + 1;
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

/// Those of `names` that are near `name` or contain it, the nearest first, at most five.
template <typename Names>
std::vector<std::string> near_names(const Names& names, std::string_view name) {
  constexpr std::size_t kShown = 5;
  constexpr std::size_t kLongest = 300;  // beyond, nobody typed it
  if (name.size() > kLongest) return {};
  const std::size_t limit = std::max<std::size_t>(3, name.size() / 4);
  std::vector<std::pair<std::size_t, std::string_view>> near;
  for (const std::string_view candidate : names) {
    if (candidate.size() > kLongest) continue;
    const bool part = !name.empty() && candidate.find(name) != std::string_view::npos;
    const std::size_t far = part ? 0 : edit_distance(name, candidate, limit);
    if (far <= limit) near.emplace_back(far, candidate);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> found;
  for (std::size_t i = 0; i < std::min(kShown, near.size()); ++i) found.emplace_back(near[i].second);
  return found;
}

}  // namespace lading
