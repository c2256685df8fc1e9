#include "planner/convert/key_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "base/name_list.h"
#include "base/near_names.h"
#include "base/text.h"
#include "mapping/made_targets.h"
#include "policy/policy.h"

namespace lading::planner {
namespace {

using mapping::MadeTarget;
using mapping::Rule;

// What each "*" of the pattern matched, the first ones as much as they can; nothing if the pattern does not match.
std::optional<std::vector<std::string_view>> stars_of(std::string_view pattern, std::string_view name) {
  const std::size_t first = pattern.find('*');
  const std::string_view head = pattern.substr(0, first);
  if (!name.starts_with(head)) return std::nullopt;
  std::vector<std::string_view> stars;
  std::size_t end = name.size();  // of what the rest of the pattern has to match
  for (std::size_t star = pattern.size(); star != first;) {
    const std::size_t before = pattern.rfind('*', star - 1);
    const std::string_view piece = pattern.substr(before + 1, star - before - 1);
    const bool is_last = star == pattern.size();
    if (end < head.size() + piece.size()) return std::nullopt;
    const std::size_t at = is_last ? end - piece.size() : name.rfind(piece, end - piece.size());
    if (at == std::string_view::npos || at < head.size() || name.substr(at, piece.size()) != piece) return std::nullopt;
    if (!is_last) stars.push_back(name.substr(at + piece.size(), end - at - piece.size()));
    end = at;
    star = before;
  }
  stars.push_back(name.substr(head.size(), end - head.size()));
  std::reverse(stars.begin(), stars.end());
  return stars;
}

std::string filled(std::string_view name, const std::vector<std::string_view>& stars) {
  std::string out;
  auto star = stars.begin();
  for (const char c : name) {
    if (c == '*') {
      out += *star++;
    } else {
      out += c;
    }
  }
  return out;
}

class KeyChanger {
 public:
  KeyChanger(const checkpoint::Catalog& catalog, PlainTensors plain, const ConvertedDTypes& dtypes,
             const KeyChanges& changes)
      : catalog_(catalog), plain_(std::move(plain)), dtypes_(dtypes), changes_(changes) {
    for (const PlainTensor& one : plain_.list) by_name_.emplace(one.tensor.name, &one);
  }

  Result<ConvertedModel, Errors> run() {
    drop();
    if (changes_.mapping) {
      out_.mapping = *changes_.mapping;
      if (errors_.empty()) map();
    } else {
      rename();
    }
    for (const std::string& key : ignored_) out_.mapping.rules.push_back(Rule::ignore_key("drop:" + key, key));
    if (errors_.empty() && tensors_.empty() && !plain_.list.empty()) {
      errors_.add(Error(Code::kPlan, "no tensor is left").try_this("Drop fewer tensors."));
    }
    if (!errors_.empty()) return fail(std::move(errors_));
    LADING_ASSIGN_OR_RETURN(out_.skeleton, model::make_skeleton(std::move(tensors_), {}, {}));
    std::sort(out_.dropped.begin(), out_.dropped.end());
    out_.was_quantized = !plain_.parts.empty();
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool is_dropped(std::string_view name) const { return dropped_.contains(name); }

  void drop() {
    for (const NamePattern& pattern : changes_.drop) {
      if (!matches_any(pattern)) matches_nothing("drop", pattern);
    }
    const NameList list(changes_.drop);
    for (const PlainTensor& one : plain_.list) {
      if (!list.matches(one.tensor.name)) continue;
      dropped_.insert(one.tensor.name);
      out_.dropped.push_back(one.tensor.name);
      ignored_.insert(one.tensor.name);
      ignored_.insert(one.keys.begin(), one.keys.end());
    }
  }

  [[nodiscard]] bool matches_any(const NamePattern& pattern) const {
    if (pattern.is_one_name()) return by_name_.contains(pattern.text);
    return std::any_of(by_name_.begin(), by_name_.end(), [&](const auto& one) { return pattern.matches(one.first); });
  }

  void matches_nothing(std::string_view what, const NamePattern& pattern) {
    Error error =
        Error(Code::kPlan, fmt::format("{}: {} matches no tensor of the checkpoint", what, quote(pattern.text)))
            .by_rule("R43");
    std::vector<std::string_view> names;
    for (const auto& [name, one] : by_name_) names.push_back(name);
    std::vector<std::string> near;
    if (pattern.is_one_name()) {
      for (const std::string& name : near_names(names, pattern.text)) near.push_back(quote(name));
    }
    error.remedy = plain_.parts.contains(pattern.text)
                       ? "Name the weight that this key belongs to: it is dequantized with it."
                   : near.empty() ? "Correct the pattern: \"*\" matches any characters, dots included."
                                  : fmt::format("Correct the name: similar ones are {}.", fmt::join(near, ", "));
    errors_.add(std::move(error));
  }

  // Which entry of the renames names a tensor, and how.
  struct NewName {
    std::string name;
    const NamePattern* by = nullptr;
  };

  void rename() {
    std::map<std::string_view, NewName> named = exact_names();
    for (const auto& [from, to] : changes_.renames) {
      if (!from.is_one_name()) rename_by_pattern(from, to, named);
    }
    std::map<std::string, std::string_view> owners;  // by new name
    for (const PlainTensor& one : plain_.list) {
      const std::string& old_name = one.tensor.name;
      if (is_dropped(old_name)) continue;
      model::Tensor tensor = one.tensor;
      if (const auto found = named.find(old_name); found != named.end()) {
        tensor.name = found->second.name;
        if (tensor.name != old_name) {
          out_.mapping.rules.push_back(Rule::rename("rename:" + old_name, old_name, tensor.name));
        }
      }
      const auto [owner, is_new] = owners.try_emplace(tensor.name, old_name);
      if (!is_new) {
        errors_.add(
            Error(Code::kPlan, fmt::format("two tensors of the checkpoint would get the name {}", quote(tensor.name)))
                .of_tensor(old_name)
                .by_rule("R43")
                .got(fmt::format("{} has it too", quote(owner->second)))
                .try_this("Give one of them another name, or drop it."));
      }
      tensors_.push_back(std::move(tensor));
    }
  }

  std::map<std::string_view, NewName> exact_names() {
    std::map<std::string_view, NewName> named;
    for (const auto& [from, to] : changes_.renames) {
      if (!from.is_one_name()) continue;
      const auto found = by_name_.find(from.text);
      if (found == by_name_.end()) {
        matches_nothing("rename", from);
      } else if (is_dropped(from.text)) {
        errors_.add(Error(Code::kPlan, "the tensor is renamed and dropped")
                        .of_tensor(from.text)
                        .by_rule("R43")
                        .try_this("Rename it or drop it."));
      } else if (check_name(from, to)) {
        name(named, found->first, {to, &from});
      }
    }
    return named;
  }

  void rename_by_pattern(const NamePattern& from, const std::string& to, std::map<std::string_view, NewName>& named) {
    const auto stars = [](std::string_view text) { return std::count(text.begin(), text.end(), '*'); };
    if (stars(from.text) != stars(to)) {
      errors_.add(Error(Code::kPlan,
                        fmt::format("rename: {} and its new name have different numbers of \"*\"", quote(from.text)))
                      .by_rule("R43")
                      .got(quote(to))
                      .try_this("Write one \"*\" in the new name for each \"*\" of the pattern."));
      return;
    }
    if (!check_name(from, to)) return;
    bool has_matched = false;
    for (const auto& [old_name, one] : by_name_) {
      const auto matched = stars_of(from.text, old_name);
      if (!matched) continue;
      has_matched = true;
      const auto known = named.find(old_name);
      const bool is_exact = known != named.end() && known->second.by->is_one_name();
      if (!is_exact && !is_dropped(old_name)) name(named, old_name, {filled(to, *matched), &from});
    }
    if (!has_matched) matches_nothing("rename", from);
  }

  bool check_name(const NamePattern& from, const std::string& to) {
    if (!to.empty() && !find_invalid_utf8(to)) return true;
    errors_.add(Error(Code::kPlan, fmt::format("rename: the new name of {} is empty or not UTF-8", quote(from.text)))
                    .try_this("Give it a name."));
    return false;
  }

  void name(std::map<std::string_view, NewName>& named, std::string_view old_name, NewName made) {
    const auto [found, is_new] = named.try_emplace(old_name, made);
    if (is_new || found->second.name == made.name) return;
    errors_.add(Error(Code::kPlan, "two renames give the tensor different names")
                    .of_tensor(old_name)
                    .by_rule("R43")
                    .wanted(fmt::format("{} by {}", quote(found->second.name), quote(found->second.by->text)))
                    .got(fmt::format("{} by {}", quote(made.name), quote(made.by->text)))
                    .try_this("Make the patterns more specific, or rename this tensor by its whole name."));
  }

  void map() {
    std::vector<std::string_view> keys;
    for (const checkpoint::CatalogTensor& tensor : catalog_.tensors_of(0)) keys.push_back(tensor.name);
    for (const auto& [name, one] : by_name_) {
      if (catalog_.find(name) == nullptr) keys.push_back(name);  // of a packed weight
    }
    std::erase_if(keys, [&](std::string_view key) { return ignored_.contains(key); });
    std::sort(keys.begin(), keys.end());
    auto made = mapping::targets_of(*changes_.mapping, keys, [&](std::string_view key) -> const Shape* {
      if (const auto plain = by_name_.find(key); plain != by_name_.end()) return &plain->second->tensor.shape;
      const checkpoint::CatalogTensor* found = catalog_.find(key);
      return found == nullptr ? nullptr : &found->shape;
    });
    if (!made) return errors_.add(std::move(made).error());
    for (const MadeTarget& target : made->targets) add_made(target);
    for (const NamePattern& pattern : changes_.keep) {
      if (!matches_any(pattern)) matches_nothing("keep", pattern);
    }
    const NameList keep(changes_.keep);
    for (const PlainTensor& one : plain_.list) {
      const std::string& old_name = one.tensor.name;
      if (is_dropped(old_name) || made->ignored.contains(old_name)) continue;
      const auto is_read = [&](const std::string& key) { return read_.contains(key); };
      if (is_read(old_name) || std::any_of(one.keys.begin(), one.keys.end(), is_read)) continue;
      if (keep.matches(old_name) && !made->left_behind.contains(old_name)) {
        tensors_.push_back(one.tensor);
      } else {
        not_reached(old_name, made->left_behind.contains(old_name));
      }
    }
    if (!made->ignored.empty()) add_ignored(*made);
  }

  void add_ignored(const mapping::MadeTargets& made) {
    for (const PlainTensor& one : plain_.list) {
      if (made.ignored.contains(one.tensor.name) && !read_.contains(one.tensor.name)) {
        out_.dropped.push_back(one.tensor.name);
        ignored_.insert(one.keys.begin(), one.keys.end());
      }
    }
  }

  void not_reached(const std::string& name, bool is_left_behind) {
    const char* const what = is_left_behind ? "the mapping reads other keys of this name's form, and not this one"
                                            : "the mapping does not reach the tensor";
    const char* const remedy = is_left_behind ? "Correct the numbers in the rule, or drop the tensor (--drop)."
                                              : "Add a rule for it, keep its name (--keep), or drop it (--drop).";
    errors_.add(Error(Code::kPlan, what).of_tensor(name).by_rule("R38").try_this(remedy));
  }

  // A pattern renames scales with their weights; the planner reads them under the names that they have.
  void add_made(const MadeTarget& target) {
    const bool is_part = target.expression.op == mapping::Op::kSource && plain_.parts.contains(target.expression.key) &&
                         !by_name_.contains(target.expression.key);
    if (is_part && target.by == mapping::RuleKind::kRenamePattern) return;
    model::Tensor tensor;
    tensor.name = target.name;
    tensor.shape = target.shape;
    tensor.presence = model::Presence::kEmpty;
    tensor.device = "cpu";
    std::optional<DType> dtype;
    if (!add_dtypes(target.expression, target.name, dtype)) return;
    for (std::string& key : target.expression.keys()) read_.insert(std::move(key));
    tensor.dtype = dtype.value_or(DType::kF32);
    tensors_.push_back(std::move(tensor));
  }

  // Of all its sources together. False: they have none, which is told.
  bool add_dtypes(const mapping::Expression& expression, const std::string& name, std::optional<DType>& dtype) {
    if (expression.op == mapping::Op::kDequantize)
      return join(dtypes_.asked.value_or(dtypes_.dequantized), name, dtype);
    if (expression.op != mapping::Op::kSource) {
      const auto add = [&](const mapping::Expression& part) { return add_dtypes(part, name, dtype); };
      return std::all_of(expression.parts.begin(), expression.parts.end(), add);
    }
    const auto plain = by_name_.find(expression.key);
    if (plain != by_name_.end()) return join(plain->second->tensor.dtype, name, dtype);
    errors_.add(Error(Code::kPlan, "the mapping reads a key that is part of a quantized weight")
                    .of_tensor(name)
                    .by_rule("R48")
                    .got(quote(expression.key))
                    .try_this("Read the weight by the name that it has in a model of ordinary floats, or write its "
                              "\"dequantize\"."));
    return false;
  }

  bool join(DType other, const std::string& name, std::optional<DType>& dtype) {
    const auto both = policy::promote_types(dtype.value_or(other), other);
    if (both) {
      dtype = *both;
      return true;
    }
    Error error = both.error();
    errors_.add(std::move(error).of_tensor(name));
    return false;
  }

  const checkpoint::Catalog& catalog_;
  const PlainTensors plain_;
  const ConvertedDTypes& dtypes_;
  const KeyChanges& changes_;
  std::map<std::string_view, const PlainTensor*, std::less<>> by_name_;
  std::set<std::string_view> dropped_;
  std::set<std::string, std::less<>> ignored_;  // keys of what is dropped
  std::set<std::string, std::less<>> read_;     // keys that the mapping reads
  std::vector<model::Tensor> tensors_;
  ConvertedModel out_;
  Errors errors_;
};

}  // namespace

Result<ConvertedModel, Errors> change_keys(const checkpoint::Catalog& catalog, PlainTensors plain,
                                           const ConvertedDTypes& dtypes, const KeyChanges& changes) {
  return KeyChanger(catalog, std::move(plain), dtypes, changes).run();
}

}  // namespace lading::planner
