#include "planner/schedule.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/element_bytes.h"
#include "plan/equal_sources.h"

namespace lading::planner {
namespace {

// From this size on, a read straight into its destination beats a shared read and a copy.
constexpr std::uint64_t kAloneBytes = 32 << 10;

using Loops = std::vector<ByteLoop>;

// The bytes that a transfer takes from its file, from the inside out:
//
//   size                 a stretch: the run, and loops that continue it or leave gaps worth reading
//   count, stride        rows of such stretches, too far apart to read what is between them
//
// A loop that fits neither splits the transfer. Example: 4 rows of 6 bytes, 10 apart. With gaps of 4 bytes allowed and
// room for 36 bytes, one stretch of 3 * 10 + 6; with room for 20, two rows of 10 + 6, 20 apart; without gaps, 4 rows.
struct Footprint {
  std::uint64_t size_bytes = 0;
  std::uint64_t count = 1;
  std::uint64_t stride_bytes = 0;
  std::size_t inner_loops = 0;  // those within a row
  bool has_gaps = false;
};

// How a loop is to be cut for the transfer to have a footprint.
struct LoopSplit {
  std::size_t loop = 0;
  std::uint64_t at_once = 1;  // rounds that stay together
};

class Shaper {
 public:
  Shaper(std::uint64_t gap_bytes, std::uint64_t joined_bytes) : gap_bytes_(gap_bytes), joined_bytes_(joined_bytes) {}

  /// The footprint of `loops`, which are by source stride, least first; or false, and `split_at` says where to split.
  bool shape(const Loops& loops, std::uint64_t run_bytes, Footprint& print, LoopSplit& split_at) const {
    print = {run_bytes, 1, 0, 0, false};
    for (std::size_t i = 0; i < loops.size(); ++i) {
      const auto [count, stride, target] = loops[i];
      if (count == 1) continue;
      const std::uint64_t reach = (count - 1) * stride + print.size_bytes;
      if (print.count > 1) {
        if (stride != print.count * print.stride_bytes) return split_at = {i, 1}, false;
        print.count *= count;
      } else if (!print.has_gaps && stride <= print.size_bytes) {
        print.size_bytes = reach;
        ++print.inner_loops;
      } else if (stride <= print.size_bytes + gap_bytes_ && reach <= joined_bytes_) {
        print.size_bytes = reach;
        print.has_gaps = true;
        ++print.inner_loops;
      } else if (stride <= print.size_bytes + gap_bytes_ && print.size_bytes + stride <= joined_bytes_) {
        return split_at = {i, 1 + (joined_bytes_ - print.size_bytes) / stride}, false;
      } else if (stride > print.size_bytes) {
        print.count = count;
        print.stride_bytes = stride;
      } else {
        return split_at = {i, 1}, false;
      }
    }
    return true;
  }

 private:
  std::uint64_t gap_bytes_;
  std::uint64_t joined_bytes_;
};

void sort_by_source(Loops& loops) {
  const auto by_stride = [](const ByteLoop& a, const ByteLoop& b) {
    return a.source_stride_bytes < b.source_stride_bytes;
  };
  if (!std::is_sorted(loops.begin(), loops.end(), by_stride)) std::stable_sort(loops.begin(), loops.end(), by_stride);
}

Transfer moved(const Transfer& transfer, const ByteLoop& loop, std::uint64_t rounds) {
  Transfer made = transfer;
  made.source_begin_bytes += rounds * loop.source_stride_bytes;
  made.target_begin_bytes += rounds * loop.target_stride_bytes;
  return made;
}

// What one transfer reads.
struct Wanted {
  Read read;
  bool goes_alone = false;  // it is read in place, or row by row
  std::size_t device = 0;
  const Transfer* transfer = nullptr;
};

class Scheduler {
 public:
  Scheduler(const Plan& plan, RankPlan& rank) : plan_(plan), rank_(rank) {}

  void run() {
    // Splitting moves transfers about, so it comes before anything that points to them.
    for (Destination& destination : rank_.destinations) {
      split(destination.transfers);
      for (auto& comparison : destination.comparisons) split(comparison);
    }
    for (const DestinationId d : rank_.destinations.ids()) {
      const Destination& destination = rank_.destinations[d];
      device_ = device_of(destination.device);
      storage_ = plan_.statements[destination.statement].storage;
      add({d, 0, 0}, destination.transfers);
      for (std::uint32_t c = 0; c < destination.comparisons.size(); ++c) add({d, c + 1, 0}, destination.comparisons[c]);
    }
    join();
    for (const Read& read : rank_.reads) rank_.read_bytes += read.total_bytes();
  }

 private:
  [[nodiscard]] Shaper shaper_of(FileId file) const {
    return {plan_.read_limits.gap_of(file), plan_.read_limits.joined_bytes};
  }

  static bool reads(const Transfer& transfer) { return !transfer.is_fill() && transfer.elems() > 0; }

  // Replaces transfers that have no footprint by such as have one; the list stays sorted by target.
  void split(std::vector<Transfer>& list) {
    const auto is_shaped = [&](const Transfer& transfer) {
      if (!reads(transfer) || transfer.loops.empty()) return true;
      LoopSplit split_at;
      return shape(transfer, split_at);
    };
    if (std::all_of(list.begin(), list.end(), is_shaped)) return;
    std::vector<Transfer> todo(std::make_move_iterator(list.rbegin()), std::make_move_iterator(list.rend()));
    list.clear();
    while (!todo.empty()) {
      Transfer transfer = std::move(todo.back());
      todo.pop_back();
      LoopSplit split_at;
      if (!reads(transfer) || transfer.loops.empty() || shape(transfer, split_at)) {
        list.push_back(std::move(transfer));
        continue;
      }
      sort_by_source(transfer.loops);
      cut_up(std::move(transfer), split_at, todo);
    }
    std::stable_sort(list.begin(), list.end(),
                     [](const Transfer& a, const Transfer& b) { return a.target_begin_bytes < b.target_begin_bytes; });
  }

  bool shape(const Transfer& transfer, LoopSplit& split_at) {
    const Source& source = plan_.sources[transfer.source];
    loops_ = transfer.loops;
    sort_by_source(loops_);
    return shaper_of(source.file)
        .shape(loops_, source.run_bytes(transfer.run_elems, transfer.first_code), print_, split_at);
  }

  // One loop of N rounds becomes one of N / at_once over one of at_once, and what is left over; or, where nothing
  // stays together, N transfers.
  static void cut_up(Transfer transfer, const LoopSplit& split_at, std::vector<Transfer>& out) {
    const ByteLoop loop = transfer.loops[split_at.loop];
    const auto at = transfer.loops.begin() + static_cast<std::ptrdiff_t>(split_at.loop);
    if (split_at.at_once == 1) {
      transfer.loops.erase(at);
      for (std::uint64_t i = 0; i < loop.count; ++i) out.push_back(moved(transfer, loop, i));
      return;
    }
    const std::uint64_t whole = loop.count / split_at.at_once;
    const std::uint64_t rest = loop.count % split_at.at_once;
    if (rest > 0) {
      Transfer last = moved(transfer, loop, whole * split_at.at_once);
      last.loops[split_at.loop].count = rest;
      out.push_back(std::move(last));
    }
    at->count = split_at.at_once;
    transfer.loops.insert(
        at + 1, {whole, split_at.at_once * loop.source_stride_bytes, split_at.at_once * loop.target_stride_bytes});
    out.push_back(std::move(transfer));
  }

  // Ranks have few devices: their own, and the CPU.
  std::size_t device_of(std::string_view name) {
    const auto found = std::find(devices_.begin(), devices_.end(), name);
    if (found == devices_.end()) return devices_.push_back(name), devices_.size() - 1;
    return static_cast<std::size_t>(found - devices_.begin());
  }

  void add(TransferRef ref, const std::vector<Transfer>& transfers) {
    for (; ref.transfer < transfers.size(); ++ref.transfer) {
      const Transfer& transfer = transfers[ref.transfer];
      if (!reads(transfer)) continue;
      const Source& source = plan_.sources[transfer.source];
      LoopSplit split_at;
      const bool is_shaped = shape(transfer, split_at);
      LADING_CHECK(is_shaped);
      Wanted& wanted = wanted_.emplace_back();
      wanted.read = {source.file,  transfer.source_begin_bytes, print_.size_bytes,
                     print_.count, print_.stride_bytes,         {}};
      wanted.read.transfers.push_back(ref);
      const bool in_place = !ref.is_comparison() && devices_[device_] == "cpu" && !source.scaling &&
                            source.dtype == storage_ && print_.inner_loops == 0;
      wanted.goes_alone = print_.count > 1 || (in_place && print_.size_bytes >= kAloneBytes);
      wanted.device = device_;
      wanted.transfer = &transfer;
    }
  }

  void join() {
    const auto is_before = [](const Wanted& a, const Wanted& b) {
      const auto key = [](const Wanted& w) {
        return std::tuple(w.read.is_comparison(), w.read.file, w.read.begin_bytes, w.read.transfers[0]);
      };
      return key(a) < key(b);
    };
    // Files often have the order of the model.
    if (!std::is_sorted(wanted_.begin(), wanted_.end(), is_before)) {
      std::sort(wanted_.begin(), wanted_.end(), is_before);
    }
    std::vector<std::optional<std::size_t>> last_of(devices_.size());  // into wanted_, which is joined in place
    std::size_t joined = 0;
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      Wanted& next = wanted_[i];
      std::optional<std::size_t>& last = last_of[next.device];
      if (last && join(wanted_[*last], next)) continue;
      last = joined;
      if (joined != i) wanted_[joined] = std::move(next);
      ++joined;
    }
    rank_.reads.reserve(joined);
    for (std::size_t i = 0; i < joined; ++i) rank_.reads.push_back(std::move(wanted_[i].read));
  }

  bool join(Wanted& last, const Wanted& next) const {
    Read& read = last.read;
    const Read& other = next.read;
    if (read.file != other.file || read.is_comparison() != other.is_comparison()) return false;
    if (last.transfer != nullptr && plan::have_equal_sources(*last.transfer, *next.transfer)) {
      read.transfers.push_back(other.transfers[0]);
      return true;
    }
    if (read.count > 1 || other.count > 1) return false;
    const std::uint64_t last_end = read.begin_bytes + read.size_bytes;
    const std::uint64_t end = std::max(last_end, other.begin_bytes + other.size_bytes);
    const bool overlaps = other.begin_bytes < last_end;
    const bool is_near = other.begin_bytes <= last_end + plan_.read_limits.gap_of(read.file);
    if (!overlaps && (!is_near || last.goes_alone || next.goes_alone)) return false;
    if (end - read.begin_bytes > plan_.read_limits.joined_bytes) return false;
    read.size_bytes = end - read.begin_bytes;
    read.transfers.push_back(other.transfers[0]);
    last.transfer = nullptr;
    return true;
  }

  const Plan& plan_;
  RankPlan& rank_;
  std::vector<std::string_view> devices_;
  std::vector<Wanted> wanted_;
  std::size_t device_ = 0;
  DType storage_ = DType::kF32;
  Loops loops_;      // of the transfer that is looked at
  Footprint print_;  // of the same
};

}  // namespace

void schedule_reads(const Plan& plan, RankPlan& rank) { Scheduler(plan, rank).run(); }

}  // namespace lading::planner
