// Names to numbers: the keys and targets that rules ask for by name, and the keys that a pattern may match. Internal.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/index.h"
#include "mapping/pattern.h"
#include "mapping/resolve.h"

namespace lading::mapping {

using KeyId = Index<struct KeyTag>;        ///< into the checkpoint's keys
using TargetId = Index<struct TargetTag>;  ///< into the model's tensors

class NameIndex {
 public:
  /// Borrows both, which are sorted.
  NameIndex(const std::vector<Target>& targets, const std::vector<std::string_view>& keys)
      : targets_(targets), keys_(keys) {}

  /// Before names are asked for.
  void build();
  [[nodiscard]] KeyId find_key(std::string_view key) const;         ///< or none
  [[nodiscard]] TargetId find_target(std::string_view name) const;  ///< or none
  /// The keys that a pattern may match, ascending: by how it begins or by how it ends, whichever leaves fewer.
  [[nodiscard]] std::vector<KeyId> keys_for(const Pattern& pattern);

 private:
  void sort_backward();

  const std::vector<Target>& targets_;
  const std::vector<std::string_view>& keys_;
  std::unordered_map<std::string_view, KeyId> key_index_;
  std::unordered_map<std::string_view, TargetId> target_index_;
  std::vector<std::pair<std::string, KeyId>> backward_;  // keys read from their ends, sorted; made when needed
};

}  // namespace lading::mapping
