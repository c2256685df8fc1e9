// A list of names in which "*" stands for any characters; plain names cost one look-up.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "layout/layout.h"

namespace lading::plan {

class NameList {
 public:
  explicit NameList(const std::vector<std::string>& patterns) : patterns_(patterns) {
    for (const std::string& pattern : patterns_) {
      if (pattern.find('*') == std::string::npos) {
        exact_.insert(pattern);
      } else {
        wild_.push_back(pattern);
      }
    }
  }

  [[nodiscard]] bool matches(std::string_view name) const {
    if (exact_.contains(name)) return true;
    for (const std::string_view pattern : wild_) {
      if (layout::matches(pattern, name)) return true;
    }
    return false;
  }
  [[nodiscard]] const std::vector<std::string>& patterns() const { return patterns_; }

 private:
  const std::vector<std::string>& patterns_;
  std::unordered_set<std::string_view> exact_;
  std::vector<std::string_view> wild_;
};

}  // namespace lading::plan
