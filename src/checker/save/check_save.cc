#include "checker/save/check_save.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checker/cast_rules.h"
#include "checker/checker.h"
#include "checker/plan_types.h"
#include "checker/problem.h"
#include "checker/save/check_files.h"
#include "checker/save/check_writes.h"

namespace lading::checker {
namespace {

using plan::RankWrites;
using plan::SavePlan;
using plan::Write;

class SaveCheck {
 public:
  explicit SaveCheck(const SavePlan& save) : save_(save), load_(save.load), written_(load_.sources.size()) {}

  Result<SaveCheckReport, Errors> run() {
    if (auto proved = check_plan(load_); !proved) return fail(std::move(proved).error());
    check_ranks();
    if (!errors_.empty()) return fail(std::move(errors_));
    errors_.add(check_files(save_));
    for (std::size_t r = 0; r < load_.ranks.size(); ++r) check_rank(load_.ranks[r], save_.ranks[r]);
    for (const SourceId id : load_.sources.ids()) check_source(id);
    if (!errors_.empty()) return fail(std::move(errors_));
    return report_;
  }

 private:
  // Only all ranks together have every byte.
  void check_ranks() {
    std::uint64_t count = 1;
    for (const layout::Axis& axis : load_.mesh.axes()) count *= axis.size;
    std::vector<std::uint64_t> ranks;
    for (const RankPlan& rank : load_.ranks) ranks.push_back(rank.rank);
    std::sort(ranks.begin(), ranks.end());
    for (std::uint64_t r = 0; r < ranks.size(); ++r) {
      if (ranks[r] != r) return errors_.add(problem("the plan has not every rank once", "R69"));
    }
    const bool is_parallel = std::equal(load_.ranks.begin(), load_.ranks.end(), save_.ranks.begin(), save_.ranks.end(),
                                        [](const RankPlan& a, const RankWrites& b) { return a.rank == b.rank; });
    if (ranks.size() != count || !is_parallel) errors_.add(problem("the plan has not every rank once", "R69"));
  }

  void check_rank(const RankPlan& rank, const RankWrites& writes) {
    std::uint64_t bytes = 0;
    for (const Write& write : writes.writes) {
      if (errors_.is_full()) return;
      const Transfer* transfer = find(rank, write.transfer);
      if (transfer == nullptr || transfer->is_fill()) {
        errors_.add(at_rank(problem("a write turns round what is not a transfer from a file", "R69"), rank));
        continue;
      }
      bytes += check_write(rank, write, *transfer);
    }
    if (bytes != writes.bytes) {
      errors_.add(at_rank(problem("the rank's writes do not add up to what the plan states", "R69"), rank)
                      .wanted(std::to_string(bytes))
                      .got(std::to_string(writes.bytes)));
    }
  }

  std::uint64_t check_write(const RankPlan& rank, const Write& write, const Transfer& transfer) {
    const Source& source = load_.sources[transfer.source];
    const DType storage = load_.statements[rank.destinations[write.transfer.destination].statement].storage;
    const auto refuse = [&](Error error) {
      errors_.add(at_rank(std::move(error), rank).of_tensor(source.key));
      return std::uint64_t{0};
    };
    if (source.scaling) return refuse(problem("a write is into a quantized key", "R48"));
    if (!cast_is_sound(storage, source.dtype)) {
      return refuse(problem("a write casts between dtypes that cannot be cast", "R24")
                        .got(fmt::format("{} to {}", name(storage), name(source.dtype))));
    }
    if (auto why = why_not_turned_round(write, transfer, source, storage)) return refuse(*std::move(why));
    const auto stretches = bytes_written(write, source);
    if (!stretches) return refuse(problem("a write has runs that do not end at bytes", "R69"));
    std::uint64_t bytes = 0;
    std::vector<ByteRange>& written = written_[transfer.source];
    for (const ByteRange& stretch : *stretches) {
      bytes += stretch.size_bytes();
      if (stretch.size_bytes() > 0) written.push_back(stretch);
    }
    return bytes;
  }

  // One writer for each byte: the stretches tile the source.
  void check_source(SourceId id) {
    const Source& source = load_.sources[id];
    std::vector<ByteRange>& written = written_[id];
    std::sort(written.begin(), written.end(), [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
    std::uint64_t at = source.bytes.begin;
    for (const ByteRange& stretch : written) {
      if (stretch.begin != at) {
        errors_.add(
            problem(stretch.begin < at ? "bytes of a file have two writers" : "bytes of a file have no writer", "R69")
                .of_tensor(source.key)
                .at({std::min(at, stretch.begin), std::max(at, stretch.begin)}));
        return;
      }
      at = stretch.end;
    }
    if (at != source.bytes.end) {
      errors_.add(
          problem(at < source.bytes.end ? "bytes of a file have no writer" : "a write goes beyond its key", "R69")
              .of_tensor(source.key)
              .at({std::min(at, source.bytes.end), std::max(at, source.bytes.end)}));
      return;
    }
    report_.bytes_proved += source.bytes.size_bytes();
    written = {};
  }

  [[nodiscard]] const Transfer* find(const RankPlan& rank, const TransferRef& ref) const {
    if (!rank.destinations.has(ref.destination)) return nullptr;
    const Destination& destination = rank.destinations[ref.destination];
    if (ref.list > destination.comparisons.size()) return nullptr;
    const auto& list = ref.list == 0 ? destination.transfers : destination.comparisons[ref.list - 1];
    return ref.transfer < list.size() ? &list[ref.transfer] : nullptr;
  }

  static Error at_rank(Error error, const RankPlan& rank) {
    return std::move(error).on_rank(static_cast<int>(rank.rank));
  }

  const SavePlan& save_;
  const Plan& load_;
  IndexedVector<SourceId, std::vector<ByteRange>> written_;
  SaveCheckReport report_;
  Errors errors_;
};

}  // namespace

Result<SaveCheckReport, Errors> check_save(const SavePlan& save) { return SaveCheck(save).run(); }

}  // namespace lading::checker
