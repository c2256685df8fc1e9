// Reads the documentation, so that tests can hold it and the code together. For tests only.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace lading::model {

/// The text of docs/<name>; empty if it is not there.
inline std::string doc_text(std::string_view name) {
  const auto root = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
  std::ifstream file(root / "docs" / name);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// What stands between `begin` and the next `end`; empty if there is no such thing.
inline std::string between(std::string_view text, std::string_view begin, std::string_view end) {
  const auto from = text.find(begin);
  if (from == std::string_view::npos) return "";
  const auto to = text.find(end, from + begin.size());
  if (to == std::string_view::npos) return "";
  return std::string(text.substr(from + begin.size(), to - from - begin.size()));
}

}  // namespace lading::model
