#include "plan/rank_groups.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace lading::plan {
namespace {

template <class Visit>
void for_each_transfer(const RankPlan& rank, const Visit& visit) {
  for (const Destination& d : rank.destinations) {
    for (const Transfer& transfer : d.transfers) visit(transfer);
    for (const auto& comparison : d.comparisons) {
      for (const Transfer& transfer : comparison) visit(transfer);
    }
  }
}

bool same_transfers(const std::vector<Transfer>& a, const std::vector<Transfer>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Transfer& x, const Transfer& y) {
    return x.source == y.source && x.run_elems == y.run_elems && x.loops == y.loops && x.fill == y.fill &&
           x.first_code == y.first_code;
  });
}

// A rank's own device has another name on each rank.
bool same_destination(const Destination& a, bool a_is_own, const Destination& b, bool b_is_own) {
  return a.statement == b.statement && a.root == b.root && a.slot == b.slot && a_is_own == b_is_own &&
         (a_is_own || a.device == b.device) && a.flat_parameter == b.flat_parameter &&
         a.buffer_bytes == b.buffer_bytes && a.owned_elems == b.owned_elems && a.aliases == b.aliases &&
         same_transfers(a.transfers, b.transfers) &&
         std::equal(a.comparisons.begin(), a.comparisons.end(), b.comparisons.begin(), b.comparisons.end(),
                    same_transfers);
}

bool same_read(const Read& a, const Read& b) {
  return a.file == b.file && a.size_bytes == b.size_bytes && a.count == b.count && a.stride_bytes == b.stride_bytes &&
         a.transfers == b.transfers;
}

bool same_scale_read(const ScaleRead& a, const ScaleRead& b) {
  return a.source == b.source && a.bytes.size_bytes() == b.bytes.size_bytes() &&
         a.zeros.size_bytes() == b.zeros.size_bytes();
}

class Grouper {
 public:
  explicit Grouper(const Plan& plan) : plan_(plan) {
    for (const RankPlan& rank : plan.ranks) devices_.push_back(plan.devices.of(rank.rank).text());
  }

  std::vector<RankGroup> run() {
    std::unordered_map<std::uint64_t, std::vector<std::size_t>> by_hash;  // into groups_
    for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
      auto& candidates = by_hash[hash_of(plan_.ranks[r])];
      const auto same = std::find_if(candidates.begin(), candidates.end(),
                                     [&](std::size_t g) { return are_alike(groups_[g].members[0], r); });
      if (same != candidates.end()) {
        groups_[*same].members.push_back(r);
      } else {
        candidates.push_back(groups_.size());
        groups_.push_back({{r}, {}});
      }
    }
    for (RankGroup& group : groups_) add_offsets(group);
    return std::move(groups_);
  }

 private:
  static std::uint64_t hash_of(const RankPlan& rank) {
    std::uint64_t hash = 14695981039346656037ULL;
    const auto add = [&](std::uint64_t number) { hash = (hash ^ number) * 1099511628211ULL; };
    for (const Destination& d : rank.destinations) {
      add(d.statement.number());
      add(d.buffer_bytes);
      add(d.transfers.size());
    }
    for (const Read& read : rank.reads) {
      add(read.size_bytes);
      add(read.count);
    }
    return hash;
  }

  [[nodiscard]] bool are_alike(std::size_t a, std::size_t b) const {
    const RankPlan& x = plan_.ranks[a];
    const RankPlan& y = plan_.ranks[b];
    return std::equal(x.destinations.begin(), x.destinations.end(), y.destinations.begin(), y.destinations.end(),
                      [&](const Destination& p, const Destination& q) {
                        return same_destination(p, p.device == devices_[a], q, q.device == devices_[b]);
                      }) &&
           std::equal(x.reads.begin(), x.reads.end(), y.reads.begin(), y.reads.end(), same_read) &&
           std::equal(x.scale_reads.begin(), x.scale_reads.end(), y.scale_reads.begin(), y.scale_reads.end(),
                      same_scale_read) &&
           x.batch_ends == y.batch_ends;
  }

  static std::vector<std::uint64_t> offsets_of(const RankPlan& rank) {
    std::vector<std::uint64_t> offsets;
    for_each_transfer(rank, [&](const Transfer& transfer) {
      offsets.push_back(transfer.source_begin_bytes);
      offsets.push_back(transfer.target_begin_bytes);
    });
    for (const Read& read : rank.reads) offsets.push_back(read.begin_bytes);
    for (const ScaleRead& read : rank.scale_reads) {
      offsets.push_back(read.bytes.begin);
      if (read.zeros.size_bytes() > 0) offsets.push_back(read.zeros.begin);
    }
    return offsets;
  }

  [[nodiscard]] std::vector<std::uint64_t> coordinate_of(std::size_t r) const {
    const auto& axes = plan_.mesh.axes();
    std::vector<std::uint64_t> coordinate(axes.size(), 0);
    std::uint64_t rank = plan_.ranks[r].rank;
    for (std::size_t axis = axes.size(); axis-- > 0;) {
      coordinate[axis] = rank % axes[axis].size;
      rank /= axes[axis].size;
    }
    return coordinate;
  }

  // By axis: a member that differs from the first one in this axis only, or 0.
  static std::vector<std::size_t> neighbours(const std::vector<std::vector<std::uint64_t>>& coordinates) {
    std::vector<std::size_t> found(coordinates[0].size(), 0);
    for (std::size_t m = 1; m < coordinates.size(); ++m) {
      std::size_t axis = 0;
      std::size_t differ = 0;
      for (std::size_t a = 0; a < coordinates[0].size(); ++a) {
        if (coordinates[m][a] == coordinates[0][a]) continue;
        axis = a;
        ++differ;
      }
      if (differ == 1 && found[axis] == 0) found[axis] = m;
    }
    return found;
  }

  void add_offsets(RankGroup& group) const {
    std::vector<std::vector<std::uint64_t>> offsets;
    std::vector<std::vector<std::uint64_t>> coordinates;
    for (const std::size_t r : group.members) {
      offsets.push_back(offsets_of(plan_.ranks[r]));
      coordinates.push_back(coordinate_of(r));
    }
    const std::vector<std::size_t> next = neighbours(coordinates);
    std::vector<std::uint64_t> values(group.members.size());
    for (std::size_t k = 0; k < offsets[0].size(); ++k) {
      for (std::size_t m = 0; m < values.size(); ++m) values[m] = offsets[m][k];
      group.offsets.push_back(offset_of(values, coordinates, next));
    }
  }

  static Offset offset_of(const std::vector<std::uint64_t>& values,
                          const std::vector<std::vector<std::uint64_t>>& coordinates,
                          const std::vector<std::size_t>& next) {
    if (std::all_of(values.begin(), values.end(), [&](std::uint64_t value) { return value == values[0]; })) {
      return {values[0], {}, {}};
    }
    Offset listed{0, {}, values};
    Offset offset{values[0], {}, {}};
    for (std::size_t axis = 0; axis < next.size(); ++axis) {
      std::uint64_t step = 0;
      if (const std::size_t m = next[axis]; m > 0) {
        // The first member has the lowest rank, so a neighbour's coordinate is higher; its offset need not be.
        if (values[m] < values[0]) return listed;
        step = (values[m] - values[0]) / (coordinates[m][axis] - coordinates[0][axis]);
      }
      offset.steps.push_back(step);
      if (step * coordinates[0][axis] > offset.base) return listed;
      offset.base -= step * coordinates[0][axis];
    }
    for (std::size_t m = 0; m < values.size(); ++m) {
      std::uint64_t value = offset.base;
      for (std::size_t axis = 0; axis < next.size(); ++axis) value += offset.steps[axis] * coordinates[m][axis];
      if (value != values[m]) return listed;
    }
    return offset;
  }

  const Plan& plan_;
  std::vector<std::string> devices_;  // by Plan::ranks
  std::vector<RankGroup> groups_;
};

}  // namespace

std::vector<RankGroup> group_ranks(const Plan& plan) { return Grouper(plan).run(); }

}  // namespace lading::plan
