// From rules, the model's names and the checkpoint's keys to one expression per model tensor. Pure.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lading/result.h"
#include "lading/shape.h"
#include "mapping/expression.h"
#include "mapping/mapping.h"

namespace lading::mapping {

/// A tensor of the model, as far as mapping cares.
struct Target {
  std::string_view name;
  const Shape* shape;
  bool in_files = true;  ///< false: never in a state dict, so that keys meant for it are left alone (R46)
};

/// What `Resolved::unread` says of keys that are meant for a target that is never in a file.
inline constexpr std::string_view kNonPersistent = "non-persistent";

/// By name, which is borrowed from a Target. There is one for each tensor of the model, so it is a plain list: a map
/// would take as long to make as all the rest.
template <class T>
class ByName {
 public:
  using value_type = std::pair<std::string_view, T>;
  using iterator = typename std::vector<value_type>::iterator;
  using const_iterator = typename std::vector<value_type>::const_iterator;

  void reserve(std::size_t count) { entries_.reserve(count); }
  /// Names must ascend.
  void append(std::string_view name, T value) { entries_.emplace_back(name, std::move(value)); }

  [[nodiscard]] iterator begin() { return entries_.begin(); }
  [[nodiscard]] iterator end() { return entries_.end(); }
  [[nodiscard]] const_iterator begin() const { return entries_.begin(); }
  [[nodiscard]] const_iterator end() const { return entries_.end(); }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] const_iterator find(std::string_view name) const {
    const auto found = std::lower_bound(
        begin(), end(), name, [](const value_type& entry, std::string_view wanted) { return entry.first < wanted; });
    return found != end() && found->first == name ? found : end();
  }
  [[nodiscard]] bool contains(std::string_view name) const { return find(name) != end(); }
  /// It must be there.
  [[nodiscard]] const T& at(std::string_view name) const {
    const auto found = find(name);
    LADING_CHECK(found != end());
    return found->second;
  }

 private:
  std::vector<value_type> entries_;
};

struct Resolved {
  /// By model tensor. A tensor that is not here has no source in the checkpoint.
  ByName<Expression> expressions;
  /// By model tensor, the same ones: the id of the rule that decided; "" for equal names.
  ByName<std::string> decided_by;
  /// Keys that no tensor reads, by the id of the rule that ignores them; kNonPersistent if their tensor is never in
  /// a file; "" if nothing ignores them.
  std::map<std::string, std::string, std::less<>> unread;
  /// By unread key: why, where a rule had to do with it ("rule … renames it to …, which the model does not have").
  std::map<std::string, std::string, std::less<>> key_notes;
  /// By model tensor without a source: the rule that would have made it, and of what.
  std::map<std::string, std::string, std::less<>> tensor_notes;
};

/// `targets` and `keys` sorted by name, each once. Every key is read or in `unread`, never both. `shape_of` must
/// know every key; it is asked only where an expression depends on a source's shape (chunk, transpose, …).
///
/// A rule that is not optional is a user's word: it must match, and its rename holds even if the model has no
/// such tensor. An optional one renames only onto tensors that the model has. An ignored key is never renamed
/// by a pattern and never taken for its name; a rule that names it outright contradicts the ignoring one.
Result<Resolved, Errors> resolve(const Mapping& mapping, const std::vector<Target>& targets,
                                 const std::vector<std::string_view>& keys, const ShapeOf& shape_of);

/// As far as it can be told in spite of problems, so that others can be looked for in the rest.
struct Resolution {
  Resolved resolved;  ///< without what is disputed: neither those targets nor the keys that they dispute
  Errors problems;
  std::set<std::string, std::less<>> disputed;  ///< targets that a problem is about
  /// False: other names may be missing, or left over, only because a rule could not be understood. What a rule that
  /// matches nothing could have supplied is disputed instead.
  bool settled = true;
};
Resolution resolve_partly(const Mapping& mapping, const std::vector<Target>& targets,
                          const std::vector<std::string_view>& keys, const ShapeOf& shape_of);

}  // namespace lading::mapping
