#include "ledger/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "base/text.h"
#include "ledger/audit.h"

namespace lading::ledger {
namespace {

bool overlap(const std::vector<RecordedRun>& a, const std::vector<RecordedRun>& b) {
  return std::any_of(a.begin(), a.end(), [&](const RecordedRun& one) {
    return std::any_of(b.begin(), b.end(), [&](const RecordedRun& other) {
      return one.begin < other.begin + other.size && other.begin < one.begin + one.size;
    });
  });
}

// Whether they may have an element in common. Flat stretches are told apart only within one product: to join two groups
// too many makes a finding coarser, not wrong.
bool may_overlap(const RecordedRegion& a, const RecordedRegion& b) {
  if (a.elems() == 0 || b.elems() == 0) return false;
  for (std::size_t d = 0; d < a.runs.size(); ++d) {
    if (!overlap(a.runs[d], b.runs[d])) return false;
  }
  if (!a.flat || !b.flat || a.runs != b.runs) return true;
  return a.flat->begin < b.flat->end && b.flat->begin < a.flat->end;
}

// One side's view of a tensor: its shares, and the ledger that they are of.
struct Side {
  const Ledger& ledger;
  const SlotDigest& slot;

  [[nodiscard]] const RecordedRegion& region(const Share& share) const {
    return ledger.records[share.records.front()].region;
  }
};

// Parts of both sides that cover the same elements: all that hang together by overlaps.
struct Group {
  std::vector<const Share*> first;
  std::vector<const Share*> second;
};

std::vector<Group> groups_of(const Side& first, const Side& second) {
  const std::size_t count = first.slot.shares.size();
  std::vector<std::size_t> root(count + second.slot.shares.size());
  std::iota(root.begin(), root.end(), std::size_t{0});
  const auto find = [&](std::size_t i) {
    while (root[i] != i) i = root[i] = root[root[i]];
    return i;
  };
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < second.slot.shares.size(); ++j) {
      if (may_overlap(first.region(first.slot.shares[i]), second.region(second.slot.shares[j]))) {
        root[find(i)] = find(count + j);
      }
    }
  }
  std::map<std::size_t, Group> groups;
  for (std::size_t i = 0; i < count; ++i) groups[find(i)].first.push_back(&first.slot.shares[i]);
  for (std::size_t j = 0; j < second.slot.shares.size(); ++j) {
    groups[find(count + j)].second.push_back(&second.slot.shares[j]);
  }
  std::vector<Group> found;
  found.reserve(groups.size());
  for (auto& [key, group] : groups) found.push_back(std::move(group));
  return found;
}

device::Digest sum_of(const std::vector<const Share*>& shares) {
  device::Digest sum;
  for (const Share* share : shares) sum += *share->digest;
  return sum;
}

std::string ranks_of(const Side& side, const std::vector<const Share*>& shares) {
  std::vector<std::uint32_t> records;
  for (const Share* share : shares) records.insert(records.end(), share->records.begin(), share->records.end());
  return ranks_text(side.ledger, records);
}

// From the first to the last row of dim 0 that the parts touch; of a tensor without dims, nothing.
std::string rows_of(const Side& side, const std::vector<const Share*>& shares) {
  std::optional<RecordedRun> rows;
  for (const Share* share : shares) {
    const RecordedRegion& region = side.region(*share);
    if (region.runs.empty() || region.elems() == 0) continue;
    std::uint64_t begin = region.runs[0].front().begin;
    std::uint64_t end = region.runs[0].back().begin + region.runs[0].back().size;
    if (region.flat && region.runs[0].size() == 1) {
      const std::uint64_t inner = region.product_elems() / region.runs[0][0].size;
      end = begin + (region.flat->end - 1) / inner + 1;
      begin += region.flat->begin / inner;
    }
    const std::uint64_t low = rows ? std::min(rows->begin, begin) : begin;
    const std::uint64_t high = rows ? std::max(rows->begin + rows->size, end) : end;
    rows = RecordedRun{low, high - low};
  }
  if (!rows) return "";
  return rows->size == 1 ? fmt::format("row {}", rows->begin)
                         : fmt::format("rows {} to {}", rows->begin, rows->begin + rows->size - 1);
}

class Comparer {
 public:
  Comparer(const Ledger& first, const Ledger& second)
      : first_(first),
        second_(second),
        first_digests_(tensor_digests(first)),
        second_digests_(tensor_digests(second)) {}

  Comparison run() {
    for (const Error& error : disagreements(first_, first_digests_)) add(error, "first");
    for (const Error& error : disagreements(second_, second_digests_)) add(error, "second");
    for (std::uint32_t t = 0; t < first_.tensors.size(); ++t) {
      const auto other = second_.find(first_.tensors[t].name);
      other ? compare_tensor(t, *other) : only_in("first", first_.tensors[t]);
    }
    for (const Tensor& tensor : second_.tensors) {
      if (!first_.find(tensor.name)) only_in("second", tensor);
    }
    return std::move(found_);
  }

 private:
  void compare_tensor(std::uint32_t a, std::uint32_t b) {
    const Tensor& one = first_.tensors[a];
    const Tensor& two = second_.tensors[b];
    if (one.shape != two.shape || one.storage != two.storage) {
      return add(Error(Code::kValuesDiffer, "the loads have different shapes or dtypes for the tensor")
                     .of_tensor(one.name)
                     .wanted(fmt::format("{} {}", name(one.storage), one.shape.text()))
                     .got(fmt::format("{} {}", name(two.storage), two.shape.text())));
    }
    const SlotDigest* const first = digest_of(first_digests_[a]);
    const SlotDigest* const second = digest_of(second_digests_[b]);
    if (first == nullptr || second == nullptr) {
      return leave(one, fmt::format("the {} ledger has no record of it", first == nullptr ? "first" : "second"));
    }
    compare_parts(one, Side{first_, *first}, Side{second_, *second});
  }

  void compare_parts(const Tensor& tensor, const Side& first, const Side& second) {
    if (first.slot.digest && second.slot.digest && first.slot.digest == second.slot.digest) {
      ++found_.tensors_equal;
      return;
    }
    const bool are_whole = first.slot.coverage == Coverage::kWhole && second.slot.coverage == Coverage::kWhole;
    std::size_t compared = 0;
    std::size_t differing = 0;
    std::size_t left = 0;
    for (const Group& group : groups_of(first, second)) {
      if (!comparable(group, first, second, are_whole)) {
        ++left;
        continue;
      }
      ++compared;
      if (sum_of(group.first) == sum_of(group.second)) continue;
      ++differing;
      const std::string rows = rows_of(first, group.first);
      add(Error(Code::kValuesDiffer, fmt::format("{}{} of the first load and {} of the second have different values",
                                                 rows.empty() ? "" : rows + ": ", ranks_of(first, group.first),
                                                 ranks_of(second, group.second)))
              .of_tensor(tensor.name)
              .by_rule("R62")
              .wanted(sum_of(group.first).text())
              .got(sum_of(group.second).text()));
    }
    if (left > 0) {
      leave(tensor,
            compared == 0 ? "the ledgers have no digests of equal parts" : "not all of its parts can be compared");
    } else if (differing == 0) {
      ++found_.tensors_equal;
    }
  }

  // Where both sides tile the tensor, groups cover the same elements. Otherwise only equal parts are known to.
  static bool comparable(const Group& group, const Side& first, const Side& second, bool are_whole) {
    const auto known = [](const std::vector<const Share*>& shares) {
      return std::all_of(shares.begin(), shares.end(), [](const Share* share) { return share->digest.has_value(); });
    };
    if (!known(group.first) || !known(group.second)) return false;
    if (are_whole) return true;
    return group.first.size() == 1 && group.second.size() == 1 &&
           first.region(*group.first[0]) == second.region(*group.second[0]);
  }

  // The tensor's own memory; further slots are held against it by disagreements().
  static const SlotDigest* digest_of(const std::vector<SlotDigest>& slots) {
    return slots.empty() ? nullptr : &slots.front();
  }

  void only_in(const char* which, const Tensor& tensor) {
    add(Error(Code::kValuesDiffer, fmt::format("only the {} load has the tensor", which)).of_tensor(tensor.name));
  }

  void leave(const Tensor& tensor, std::string why) { found_.not_compared.emplace_back(tensor.name, std::move(why)); }

  void add(Error error, const char* which) {
    error.message = fmt::format("in the {} load, {}", which, error.message);
    add(std::move(error));
  }

  void add(Error error) {
    if (found_.differences.is_full()) return found_.differences.count_not_listed(1);
    found_.differences.add(std::move(error));
  }

  const Ledger& first_;
  const Ledger& second_;
  TensorDigests first_digests_;
  TensorDigests second_digests_;
  Comparison found_;
};

}  // namespace

Comparison compare(const Ledger& first, const Ledger& second) { return Comparer(first, second).run(); }

Result<Ledger> merge(std::vector<Ledger> ledgers) {
  LADING_CHECK(!ledgers.empty());
  Ledger whole = std::move(ledgers.front());
  for (std::size_t i = 1; i < ledgers.size(); ++i) {
    Ledger& other = ledgers[i];
    if (other.plan_digest != whole.plan_digest || other.tensors.size() != whole.tensors.size()) {
      return Unexpected<Error>{Error(Code::kValuesDiffer, "the ledgers are of different loads")
                                   .wanted("plan " + whole.plan_digest)
                                   .got("plan " + other.plan_digest)};
    }
    for (const std::uint64_t rank : other.ranks) {
      if (std::binary_search(whole.ranks.begin(), whole.ranks.end(), rank)) {
        return Unexpected<Error>{Error(Code::kValuesDiffer, fmt::format("two ledgers have records of rank {}", rank))};
      }
    }
    whole.complete = whole.complete && other.complete;
    whole.ranks.insert(whole.ranks.end(), other.ranks.begin(), other.ranks.end());
    std::sort(whole.ranks.begin(), whole.ranks.end());
    whole.records.insert(whole.records.end(), std::make_move_iterator(other.records.begin()),
                         std::make_move_iterator(other.records.end()));
  }
  std::stable_sort(whole.records.begin(), whole.records.end(), [](const Record& a, const Record& b) {
    return std::tie(a.rank, a.tensor, a.slot) < std::tie(b.rank, b.tensor, b.slot);
  });
  return whole;
}

}  // namespace lading::ledger
