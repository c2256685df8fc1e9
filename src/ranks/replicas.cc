#include "ranks/replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>

#include "ranks/search_limits.h"

namespace lading::ranks {
namespace {

constexpr std::size_t kParts = 256;    // that a range is divided into
constexpr std::size_t kSetsShown = 4;  // sets in which tensors are looked for
constexpr std::size_t kDigits = 16;    // of a short digest
constexpr std::string_view kPrefix = "replicas on ";
constexpr char kKept = '+';  // behind a digest that is told with its name; of other values '-'

// Of the digests [begin, end) of a set.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t size() const { return end - begin; }
  [[nodiscard]] std::string text() const { return fmt::format("{}-{}", begin, end); }
  /// Contiguous, none empty.
  [[nodiscard]] std::vector<Range> parts() const {
    std::vector<Range> parts;
    const std::uint64_t step = (size() + kParts - 1) / kParts;
    for (std::uint64_t i = begin; i < end; i += step) parts.push_back({i, std::min(end, i + step)});
    return parts;
  }
};

std::string with_length(std::string_view text) { return fmt::format("{}:{}", text.size(), text); }

std::string digest_of(const ReplicaSet& set, Range range) {
  std::string all;
  for (std::uint64_t i = range.begin; i < range.end; ++i) {
    const ReplicaDigest& one = set.digests[i];
    all += with_length(one.name) + with_length(one.slot) + with_length(one.digest) + (one.is_kept ? kKept : '-');
  }
  return short_digest(all);
}

// A field in which ranks said different things. Everybody knows it, members or not, and takes the same steps.
struct Difference {
  std::string field;
  std::vector<Share> shares;  // at most kRepresentatives
  std::uint64_t size = 0;     // of the lists; nothing in common to look for if they are not equally long: 0
};

std::uint64_t size_in(const std::string& value) {
  std::uint64_t size = 0;
  std::from_chars(value.data(), value.data() + value.size(), size);
  return size;
}

std::vector<Difference> differences_in(const Verdict& verdict) {
  std::vector<Difference> found;
  for (const auto& [field, shares] : verdict.fields) {
    if (!field.starts_with(kPrefix) || shares.list.size() < 2) continue;
    Difference difference{field, shares.list, size_in(shares.list.front().value)};
    if (difference.shares.size() > kRepresentatives) difference.shares.resize(kRepresentatives);
    for (const Share& share : difference.shares) {
      if (size_in(share.value) != difference.size) difference.size = 0;
    }
    found.push_back(std::move(difference));
  }
  return found;
}

// Finds the tensors of one set. All ranks take part; only the first of those that said the same speaks for them.
class Search {
 public:
  Search(Coordinator& ranks, const Difference& difference, const std::vector<ReplicaSet>& sets)
      : ranks_(ranks), difference_(difference) {
    const auto mine = std::find_if(sets.begin(), sets.end(), [&](const ReplicaSet& set) {
      return difference.field == fmt::format("{}{}", kPrefix, set.ranks.text());
    });
    const bool speaks = std::any_of(difference.shares.begin(), difference.shares.end(),
                                    [&](const Share& share) { return share.ranks.first() == ranks.channel().rank(); });
    if (mine != sets.end() && speaks) set_ = &*mine;
  }

  Result<void, Verdict> run(Errors& errors) {
    std::vector<Range> ranges;
    if (difference_.size > 0) ranges.push_back({0, difference_.size});
    while (std::any_of(ranges.begin(), ranges.end(), [](Range range) { return range.size() > 1; })) {
      LADING_ASSIGN_OR_RETURN(ranges, narrow(ranges));
    }
    LADING_ASSIGN_OR_RETURN(const auto names, say(ranges, [](const ReplicaSet& set, Range range) {
                              const ReplicaDigest& one = set.digests[range.begin];
                              return fmt::format("{}{}{}{}", one.digest, one.is_kept ? kKept : '-', one.name,
                                                 one.slot.empty() ? "" : fmt::format(" ({})", one.slot));
                            }));
    for (const Range range : ranges) {
      if (const auto found = names.find(range.text()); found != names.end()) errors.add(error_of(found->second));
    }
    if (errors.empty()) errors.add(message());
    return {};
  }

 private:
  using Said = std::map<std::string, std::vector<Share>>;  // by range

  template <class Value>
  Result<Said, Verdict> say(const std::vector<Range>& ranges, const Value& value_of) {
    std::vector<Field> fields;
    for (const Range range : ranges) {
      if (set_ != nullptr) fields.push_back({range.text(), value_of(*set_, range), Field::Mode::kCollect});
    }
    LADING_ASSIGN_OR_RETURN(const Verdict agreed, ranks_.agree("where the replicas differ", fields));
    Said said;
    for (const auto& [field, shares] : agreed.fields) said[field] = shares.list;
    return said;
  }

  Result<std::vector<Range>, Verdict> narrow(const std::vector<Range>& ranges) {
    LADING_ASSIGN_OR_RETURN(const Said said, say(ranges, [](const ReplicaSet& set, Range range) {
                              std::string digests;
                              for (const Range part : range.parts()) digests += digest_of(set, part);
                              return digests;
                            }));
    std::vector<Range> differing;
    for (const Range range : ranges) {
      const auto found = said.find(range.text());
      if (found == said.end()) continue;
      const std::vector<Range> parts = range.parts();
      for (std::size_t i = 0; i < parts.size() && differing.size() < kFollowed; ++i) {
        const auto part_of = [&](const Share& share) { return share.value.substr(i * kDigits, kDigits); };
        const auto& shares = found->second;
        const bool is_same = std::all_of(shares.begin(), shares.end(),
                                         [&](const Share& share) { return part_of(share) == part_of(shares.front()); });
        if (!is_same) differing.push_back(parts[i]);
      }
    }
    return differing;
  }

  [[nodiscard]] static Error message() {
    return Error(Code::kValuesDiffer, "replicas of the tensor have different bytes on different ranks").by_rule("R17");
  }

  // What representatives said stands for all that said the same at first.
  [[nodiscard]] Error error_of(const std::vector<Share>& values) const {
    constexpr std::size_t kDigestDigits = 32;
    std::map<std::string, RankSet> holders;
    for (const Share& value : values) {
      for (const Share& share : difference_.shares) {
        if (value.ranks.contains(share.ranks.first())) holders[value.value].add(share.ranks);
      }
    }
    std::string found;
    bool is_kept = false;
    for (const auto& [value, who] : holders) {
      const bool is_this = value.size() > kDigestDigits && value[kDigestDigits] == kKept;
      is_kept = is_kept || is_this;
      found += fmt::format("{}{}{} on {}", found.empty() ? "" : "; ", value.substr(0, kDigestDigits),
                           is_this ? ", kept" : "", who.text());
    }
    const std::string& first = values.front().value;
    Error error = message().of_tensor(first.substr(std::min(kDigestDigits + 1, first.size()))).got(found);
    if (is_kept) {
      error.remedy =
          "Give it the same value on these ranks before the load, or name it in keep= if it is meant to differ.";
    }
    return error;
  }

  Coordinator& ranks_;
  const Difference& difference_;
  const ReplicaSet* set_ = nullptr;  // if this rank speaks
};

}  // namespace

Result<Verdict, Verdict> agree_replicas(Coordinator& ranks, const std::vector<ReplicaSet>& sets,
                                        std::vector<Field> fields, ModelState state) {
  for (const ReplicaSet& set : sets) {
    const std::string value = fmt::format("{} {}", set.digests.size(), digest_of(set, {0, set.digests.size()}));
    fields.push_back({fmt::format("{}{}", kPrefix, set.ranks.text()), value, Field::Mode::kCollect});
  }
  LADING_ASSIGN_OR_RETURN(Verdict agreed, ranks.agree("the replicas", fields, nullptr, Patience::kWhileAlive));
  std::vector<Difference> differences = differences_in(agreed);
  if (differences.empty()) return agreed;
  if (differences.size() > kSetsShown) differences.resize(kSetsShown);
  Errors errors;
  for (const Difference& difference : differences) {
    Errors found;
    LADING_TRY(Search(ranks, difference, sets).run(found));
    errors.add(std::move(found));
  }
  // All ranks found the same: this step only makes it everybody's verdict.
  const Failure failure{std::move(errors), exit_code(Code::kValuesDiffer), state == ModelState::kWritten, {}};
  return ranks.agree("the replicas that differ", {}, &failure);
}

}  // namespace lading::ranks
