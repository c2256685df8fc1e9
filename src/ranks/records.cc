#include "ranks/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ranks/search_limits.h"

namespace lading::ranks {
namespace {

// A tree over the digest of the names: two levels of 64 branches, then the records. Where a name stands does not depend
// on which others there are.
constexpr std::uint64_t kBranches = 64;
constexpr std::size_t kLevels = 2;

using Path = std::string;  // one character per level

std::string text_of(const Record& record) {
  std::string text = fmt::format("{}:{}", record.name.size(), record.name);
  for (const auto& [field, value] : record.fields)
    text += fmt::format("{}:{}{}:{}", field.size(), field, value.size(), value);
  return text;
}

char branch_character(std::uint64_t branch) { return static_cast<char>('0' + branch); }

Path path_of(const std::string& name) {
  const std::uint64_t digest = std::stoull(short_digest(name), nullptr, 16);
  return {branch_character(digest % kBranches), branch_character(digest / kBranches % kBranches)};
}

class Tree {
 public:
  explicit Tree(const std::vector<Record>& records) {
    for (const Record& record : records) leaves_[path_of(record.name)].push_back(&record);
    for (auto& [path, leaf] : leaves_) {
      std::sort(leaf.begin(), leaf.end(), [](const Record* a, const Record* b) { return a->name < b->name; });
    }
  }

  /// Of all records under a path.
  [[nodiscard]] std::string digest(const Path& path) const {
    std::string all;
    for (auto leaf = leaves_.lower_bound(path); leaf != leaves_.end() && leaf->first.starts_with(path); ++leaf) {
      for (const Record* record : leaf->second) all += text_of(*record);
    }
    return all.empty() ? "" : short_digest(all);
  }
  [[nodiscard]] const std::vector<const Record*>& leaf(const Path& path) const {
    static const std::vector<const Record*> none;
    const auto found = leaves_.find(path);
    return found != leaves_.end() ? found->second : none;
  }

 private:
  std::map<Path, std::vector<const Record*>> leaves_;
};

// Values of a field that only representatives fill in, each for the ranks of its share.
using Lists = std::vector<std::pair<RankSet, std::map<std::string, std::string>>>;

class Bisection {
 public:
  Bisection(Coordinator& ranks, std::string what, const Tree& tree, const std::vector<Share>& shares)
      : ranks_(ranks), what_(std::move(what)), tree_(tree), shares_(shares) {
    if (shares_.size() > kRepresentatives) shares_.resize(kRepresentatives);
  }

  Result<void, Verdict> run() {
    std::vector<Path> paths = {""};
    for (std::size_t level = 0; level < kLevels; ++level) {
      LADING_ASSIGN_OR_RETURN(const Lists lists, exchange(branches_below(paths)));
      paths = differing(lists);
    }
    LADING_ASSIGN_OR_RETURN(const Lists lists, exchange(records_at(paths)));
    const Failure failure{differences(lists), exit_code(Code::kRanksDiffer), false, {}};
    // All ranks found the same: this step only makes it everybody's verdict.
    LADING_TRY(ranks_.agree(fmt::format("the difference of {}", what_), {}, &failure));
    return {};
  }

 private:
  [[nodiscard]] bool is_representative() const {
    return std::any_of(shares_.begin(), shares_.end(),
                       [&](const Share& share) { return share.ranks.first() == ranks_.channel().rank(); });
  }

  [[nodiscard]] std::map<std::string, std::string> branches_below(const std::vector<Path>& paths) const {
    std::map<std::string, std::string> digests;
    for (const Path& path : paths) {
      for (std::uint64_t branch = 0; branch < kBranches; ++branch) {
        const Path below = path + branch_character(branch);
        if (std::string digest = tree_.digest(below); !digest.empty()) digests[below] = std::move(digest);
      }
    }
    return digests;
  }

  // Name and field in one key, of which the first part tells its length.
  [[nodiscard]] std::map<std::string, std::string> records_at(const std::vector<Path>& paths) const {
    std::map<std::string, std::string> values;
    for (const Path& path : paths) {
      for (const Record* record : tree_.leaf(path)) {
        values[fmt::format("{}:{}", record->name.size(), record->name)] = "there";
        for (const auto& [field, value] : record->fields) {
          values[fmt::format("{}:{}{}", record->name.size(), record->name, field)] = value;
        }
      }
    }
    return values;
  }

  Result<Lists, Verdict> exchange(const std::map<std::string, std::string>& mine) {
    std::vector<Field> fields;
    if (is_representative()) {
      for (const auto& [name, value] : mine) fields.push_back({name, value, Field::Mode::kCollect});
    }
    const std::string step = fmt::format("where {} differs", what_);
    LADING_ASSIGN_OR_RETURN(const Verdict agreed, ranks_.agree(step, fields));
    Lists lists;
    for (const Share& share : shares_) lists.emplace_back(share.ranks, std::map<std::string, std::string>{});
    for (const auto& [name, values] : agreed.fields) {
      for (const Share& value : values.list) {
        for (auto& [who, list] : lists) {
          if (value.ranks.contains(who.first())) list[name] = value.value;
        }
      }
    }
    return lists;
  }

  static std::set<std::string> differing_keys(const Lists& lists) {
    std::set<std::string> keys;
    for (const auto& [who, list] : lists) {
      for (const auto& [name, value] : list) {
        const bool is_same =
            std::all_of(lists.begin(), lists.end(), [&, &key = name, &wanted = value](const auto& other) {
              const auto found = other.second.find(key);
              return found != other.second.end() && found->second == wanted;
            });
        if (!is_same) keys.insert(name);
      }
    }
    return keys;
  }

  static std::vector<Path> differing(const Lists& lists) {
    std::vector<Path> paths;
    for (const std::string& path : differing_keys(lists)) {
      if (paths.size() < kFollowed) paths.push_back(path);
    }
    return paths;
  }

  Errors differences(const Lists& lists) const {
    Errors errors;
    const std::set<std::string> keys = differing_keys(lists);
    for (const std::string& key : keys) {
      const std::size_t colon = key.find(':');
      const std::size_t size = std::stoull(key.substr(0, colon));
      const std::string name = key.substr(colon + 1, size);
      const std::string field = key.substr(colon + 1 + size);
      const bool is_missing = keys.contains(fmt::format("{}:{}", size, name));
      if (is_missing && !field.empty()) continue;  // said once, of the whole tensor
      if (errors.size() == kFollowed) {
        errors.count_not_listed(1);
        continue;
      }
      std::string found;
      for (const auto& [who, list] : lists) {
        const auto value = list.find(key);
        found += fmt::format("{}{} on {}", found.empty() ? "" : "; ", value != list.end() ? value->second : "missing",
                             who.text());
      }
      const std::string message = fmt::format("the ranks differ in {}{}", what_, field.empty() ? "" : ": " + field);
      errors.add(Error(Code::kRanksDiffer, message).of_tensor(name).by_rule("R30").got(found));
    }
    if (errors.empty())
      errors.add(Error(Code::kRanksDiffer, fmt::format("the ranks differ in {}", what_)).by_rule("R30"));
    return errors;
  }

  Coordinator& ranks_;
  std::string what_;
  const Tree& tree_;
  std::vector<Share> shares_;
};

}  // namespace

Result<void, Verdict> agree_records(Coordinator& ranks, const std::string& what, const std::vector<Record>& records) {
  const Tree tree(records);
  LADING_ASSIGN_OR_RETURN(const Verdict agreed,
                          ranks.agree(what, {{"digest", tree.digest(""), Field::Mode::kCollect}}));
  const auto digests = agreed.fields.find("digest");
  const std::vector<Share> shares = digests != agreed.fields.end() ? digests->second.list : std::vector<Share>();
  if (shares.size() == 1) return {};
  return Bisection(ranks, what, tree, shares).run();
}

}  // namespace lading::ranks
