// check_reads(): whether a rank's reads serve its transfers.
//
// A read is a table of bytes: `count` rows of `size_bytes`. A transfer in it takes the same columns from each row that
// it reaches, so a loop either steps over whole rows or stays within one. For each read two things are proved:
//
//   what is taken is read     every column of a transfer is below size_bytes, every row below count
//   what is read is taken     what nobody takes of a row are gaps of at most gap_bytes between taken columns
//
// Example: in rows of 10 bytes one transfer takes [0, 4), another [6, 10): right if gaps may have 2 bytes.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checker/check_bytes.h"
#include "checker/check_reads.h"
#include "checker/problem.h"

namespace lading::checker {
namespace {

// Where nothing simpler decides, stretches are looked at one by one, up to this many.
constexpr std::uint64_t kMaxStretches = std::uint64_t{1} << 24;

// Columns of a row, [begin, end).
struct Columns {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  friend bool operator<(const Columns& a, const Columns& b) { return a.begin < b.begin; }
};

// What a transfer takes from a read: from row `row` on, a stretch of columns; loops over rows and loops over columns.
struct Taken {
  std::uint64_t row = 0;
  Columns first;
  std::vector<ByteLoop> rows;     // strides in rows
  std::vector<ByteLoop> columns;  // strides in bytes, least first; none continues the one before
};

std::uint64_t last_of(const std::vector<ByteLoop>& loops) {
  std::uint64_t reach = 0;
  for (const ByteLoop& loop : loops) reach += (loop.count - 1) * loop.source_stride_bytes;
  return reach;
}

// Nothing if the transfer does not find its bytes in the read.
std::optional<Taken> taken_from(const Read& read, const Transfer& transfer, std::uint64_t run_bytes) {
  if (transfer.source_begin_bytes < read.begin_bytes) return std::nullopt;
  Taken taken;
  std::uint64_t column = transfer.source_begin_bytes - read.begin_bytes;
  if (read.count > 1) {
    taken.row = column / read.stride_bytes;
    column %= read.stride_bytes;
  }
  for (const ByteLoop& loop : transfer.loops) {
    if (loop.count == 1) continue;
    const bool is_row = read.count > 1 && loop.source_stride_bytes >= read.stride_bytes;
    if (!is_row) {
      taken.columns.push_back(loop);
      continue;
    }
    if (loop.source_stride_bytes % read.stride_bytes != 0) return std::nullopt;
    taken.rows.push_back({loop.count, loop.source_stride_bytes / read.stride_bytes, 0});
  }
  if (column + last_of(taken.columns) + run_bytes > read.size_bytes) return std::nullopt;
  if (taken.row + last_of(taken.rows) >= read.count) return std::nullopt;
  const auto by_stride = [](const ByteLoop& a, const ByteLoop& b) {
    return a.source_stride_bytes < b.source_stride_bytes;
  };
  std::sort(taken.rows.begin(), taken.rows.end(), by_stride);
  std::sort(taken.columns.begin(), taken.columns.end(), by_stride);
  taken.first = {column, column + run_bytes};
  auto loop = taken.columns.begin();
  for (; loop != taken.columns.end() && loop->source_stride_bytes <= taken.first.end - taken.first.begin; ++loop) {
    taken.first.end += (loop->count - 1) * loop->source_stride_bytes;
  }
  taken.columns.erase(taken.columns.begin(), loop);
  return taken;
}

// Whether it reaches every row of the read once.
bool takes_every_row(const Taken& taken, std::uint64_t count) {
  std::uint64_t rows = 1;
  for (const ByteLoop& loop : taken.rows) {
    if (loop.source_stride_bytes != rows) return false;
    rows *= loop.count;
  }
  return taken.row == 0 && rows == count;
}

// The columns as one, if gaps between its stretches are small; else nothing.
std::optional<Columns> whole_columns(const Taken& taken, std::uint64_t gap_bytes) {
  Columns whole = taken.first;
  for (const ByteLoop& loop : taken.columns) {
    if (loop.source_stride_bytes > whole.end - whole.begin + gap_bytes) return std::nullopt;
    whole.end += (loop.count - 1) * loop.source_stride_bytes;
  }
  return whole;
}

// Whether these columns fill a row but for small gaps.
bool fill_row(std::vector<Columns>& columns, std::uint64_t size_bytes, std::uint64_t gap_bytes) {
  std::sort(columns.begin(), columns.end());
  std::uint64_t reached = 0;
  bool is_first = true;
  for (const Columns& next : columns) {
    if (next.begin > reached + (is_first ? 0 : gap_bytes)) return false;
    reached = std::max(reached, next.end);
    is_first = false;
  }
  return !is_first && reached == size_bytes;
}

enum class Fit : std::uint8_t { kFull, kTooMuch, kTooLongToSay };

// Stretch by stretch: transfers that interleave, or take some rows only.
Fit fit_one_by_one(const std::vector<Taken>& list, const Read& read, std::uint64_t gap_bytes) {
  std::uint64_t work = read.count;
  for (const Taken& taken : list) {
    std::uint64_t stretches = 1;
    for (const auto* loops : {&taken.rows, &taken.columns}) {
      for (const ByteLoop& loop : *loops) {
        stretches = loop.count > kMaxStretches / stretches ? kMaxStretches + 1 : stretches * loop.count;
        if (stretches > kMaxStretches) return Fit::kTooLongToSay;
      }
    }
    work += stretches;
  }
  if (work > kMaxStretches) return Fit::kTooLongToSay;
  std::vector<std::vector<Columns>> rows(read.count);
  for (const Taken& taken : list) {
    std::vector<std::uint64_t> at = {taken.row};
    for (const ByteLoop& loop : taken.rows) {
      const std::size_t known = at.size();
      for (std::uint64_t i = 1; i < loop.count; ++i) {
        for (std::size_t k = 0; k < known; ++k) at.push_back(at[k] + i * loop.source_stride_bytes);
      }
    }
    std::vector<Columns> columns = {taken.first};
    for (const ByteLoop& loop : taken.columns) {
      const std::size_t known = columns.size();
      for (std::uint64_t i = 1; i < loop.count; ++i) {
        const std::uint64_t step = i * loop.source_stride_bytes;
        for (std::size_t k = 0; k < known; ++k) columns.push_back({columns[k].begin + step, columns[k].end + step});
      }
    }
    for (const std::uint64_t row : at) rows[row].insert(rows[row].end(), columns.begin(), columns.end());
  }
  const bool full = std::all_of(rows.begin(), rows.end(),
                                [&](std::vector<Columns>& row) { return fill_row(row, read.size_bytes, gap_bytes); });
  return full ? Fit::kFull : Fit::kTooMuch;
}

Fit fit(const std::vector<Taken>& list, const Read& read, std::uint64_t gap_bytes) {
  std::vector<Columns> columns;
  columns.reserve(list.size());
  for (const Taken& taken : list) {
    const auto whole = takes_every_row(taken, read.count) ? whole_columns(taken, gap_bytes) : std::nullopt;
    if (!whole) return fit_one_by_one(list, read, gap_bytes);
    columns.push_back(*whole);
  }
  return fill_row(columns, read.size_bytes, gap_bytes) ? Fit::kFull : Fit::kTooMuch;
}

class FeedCheck {
 public:
  FeedCheck(const Plan& plan, const RankPlan& rank) : plan_(plan), rank_(rank) {
    for (const Destination& destination : rank.destinations) {
      first_.push_back(count_);
      count_ += destination.transfers.size();
      for (const auto& comparison : destination.comparisons) count_ += comparison.size();
    }
    is_fed_.resize(count_, false);
  }

  Errors run() {
    for (const Read& read : rank_.reads) check(read);
    for (const DestinationId d : rank_.destinations.ids()) {
      const Destination& destination = rank_.destinations[d];
      check_fed({d, 0, 0}, destination.transfers);
      for (std::uint32_t c = 0; c < destination.comparisons.size(); ++c) {
        check_fed({d, c + 1, 0}, destination.comparisons[c]);
      }
    }
    return std::move(errors_);
  }

 private:
  void check(const Read& read) {
    if (read.transfers.empty()) return refuse(read, "a read serves no transfer", "R64");
    list_.clear();
    for (const TransferRef& ref : read.transfers) {
      if (!exists(ref)) return refuse(read, "a read names a transfer that the rank does not have", "R11");
      if (is_fed_[number_of(ref)]) return refuse(read, "a transfer is in two reads", "R11");
      is_fed_[number_of(ref)] = true;
      const TransferRef& first = read.transfers.front();
      if (ref.is_comparison() != first.is_comparison() ||
          rank_.destinations[ref.destination].device != rank_.destinations[first.destination].device) {
        return refuse(read, "a read serves transfers of two devices, or writes and compares", "R11");
      }
      const Transfer& transfer = rank_.at(ref);
      if (!reads(transfer)) return refuse(read, "a read serves a transfer that takes no bytes", "R64");
      const Source& source = plan_.sources[transfer.source];
      std::optional<Taken> taken;
      if (source.file == read.file) taken = taken_from(read, transfer, *run_bytes_of(transfer, source));
      if (!taken) return refuse_unfed(ref);
      list_.push_back(*std::move(taken));
    }
    switch (fit(list_, read, plan_.read_limits.gap_of(read.file))) {
      case Fit::kFull: return;
      case Fit::kTooMuch: return refuse(read, "a read goes beyond the bytes that its transfers take", "R64");
      case Fit::kTooLongToSay: return refuse(read, "a read takes too many stretches to be checked", "R64");
    }
  }

  void check_fed(TransferRef ref, const std::vector<Transfer>& transfers) {
    for (; ref.transfer < transfers.size(); ++ref.transfer) {
      if (reads(transfers[ref.transfer]) && !is_fed_[number_of(ref)]) return refuse_unfed(ref);
    }
  }

  static bool reads(const Transfer& transfer) { return !transfer.is_fill() && transfer.elems() > 0; }

  [[nodiscard]] bool exists(const TransferRef& ref) const {
    if (!rank_.destinations.has(ref.destination)) return false;
    const Destination& destination = rank_.destinations[ref.destination];
    if (!ref.is_comparison()) return ref.transfer < destination.transfers.size();
    return ref.list <= destination.comparisons.size() && ref.transfer < destination.comparisons[ref.list - 1].size();
  }

  [[nodiscard]] std::size_t number_of(const TransferRef& ref) const {
    const Destination& destination = rank_.destinations[ref.destination];
    std::size_t number = first_[ref.destination] + ref.transfer;
    if (ref.is_comparison()) number += destination.transfers.size();
    for (std::uint32_t c = 1; c < ref.list; ++c) number += destination.comparisons[c - 1].size();
    return number;
  }

  void refuse(const Read& read, std::string message, std::string_view rule) {
    add(problem(std::move(message), rule)
            .in_file(plan_.files[read.file].name)
            .at({read.begin_bytes, read.begin_bytes + read.size_bytes}));
  }

  void refuse_unfed(const TransferRef& ref) {
    const Source& source = plan_.sources[rank_.at(ref).source];
    add(problem(fmt::format("bytes of {} that the tensor needs are not read", quote(source.key)), "R11")
            .of_tensor(plan_.statements[rank_.destinations[ref.destination].statement].name)
            .in_file(plan_.files[source.file].name)
            .at(source.bytes));
  }

  void add(Error error) {
    if (rank_.rank <= static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
      error.rank = static_cast<int>(rank_.rank);
    }
    errors_.add(std::move(error));
  }

  const Plan& plan_;
  const RankPlan& rank_;
  IndexedVector<DestinationId, std::size_t> first_;  // the number of its first transfer
  std::size_t count_ = 0;
  std::vector<bool> is_fed_;  // by number
  std::vector<Taken> list_;
  Errors errors_;
};

}  // namespace

Errors check_reads(const Plan& plan, const RankPlan& rank) { return FeedCheck(plan, rank).run(); }

}  // namespace lading::checker
