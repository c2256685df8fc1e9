// A list of names and patterns; names cost one look-up.
#pragma once

#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/name_pattern.h"

namespace lading {

class NameList {
 public:
  explicit NameList(const std::vector<NamePattern>& patterns) {  // which it borrows
    for (const NamePattern& pattern : patterns) {
      if (pattern.is_one_name()) {
        exact_.insert(pattern.text);
      } else {
        wild_.push_back(&pattern);
      }
    }
  }

  [[nodiscard]] bool matches(std::string_view name) const {
    if (exact_.contains(name)) return true;
    for (const NamePattern* pattern : wild_) {
      if (pattern->matches(name)) return true;
    }
    return false;
  }

 private:
  std::unordered_set<std::string_view> exact_;
  std::vector<const NamePattern*> wild_;
};

}  // namespace lading
