// Names that differ in numbers, or in what follows a common beginning, as patterns: "blocks.{0..31}.attn.*". Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lading {

/// The text with a mark in place of every number.
[[nodiscard]] std::string without_numbers(std::string_view text);

/// Texts that are equal without their numbers, as one: numbers that differ become "{0..31}", "{1,4..7}" or "*".
[[nodiscard]] std::string merged(std::span<const std::string_view> texts);

struct NamePatternCount {
  std::string pattern;
  std::vector<std::size_t> members;  ///< into the names
};

/// Every name is in one pattern. At most `most` patterns if names have a common beginning, up to a ".", that allows
/// it; otherwise as many as there are. A pattern without "*" stands for its members and for no other name.
[[nodiscard]] std::vector<NamePatternCount> fold_names(std::span<const std::string_view> names, std::size_t most);

}  // namespace lading
