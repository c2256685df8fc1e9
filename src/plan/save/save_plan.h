// SavePlan: which bytes of which rank's memory become which bytes of a new checkpoint. Pure data.
//
// It is the plan of a load of that checkpoint, read backwards. `load` says for every rank which bytes of the files
// its memory would be filled from; each of its transfers, turned round, is bytes of the files that this rank could
// write. Where several ranks hold the same bytes, one of them is the writer. checker/save proves that each byte has
// one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace lading::plan {

/// Runs of elements from a rank's memory to a file, each cast once from the statement's storage dtype to the source's:
/// a transfer of the load, or a part of one, turned round.
struct Write {
  TransferRef transfer;  ///< of the rank's plan in SavePlan::load
  std::uint64_t memory_begin_bytes = 0;
  std::uint64_t file_begin_bytes = 0;
  std::uint64_t run_elems = 0;  ///< contiguous on both sides
  std::vector<ByteLoop> loops;  ///< source: the memory; target: the file. The largest steps in the file come first

  [[nodiscard]] std::uint64_t elems() const;

  friend bool operator==(const Write&, const Write&) = default;
};

struct RankWrites {
  std::uint64_t rank = 0;
  std::vector<Write> writes;  ///< by file and place
  std::uint64_t bytes = 0;    ///< of the files
};

struct SavePlan {
  Plan load;                                   ///< of the new checkpoint, for all ranks
  IndexedVector<FileId, std::string> headers;  ///< what each file of `load` begins with, up to its data
  std::string index_name;                      ///< "" if there is no index
  std::string index;                           ///< its text
  std::vector<RankWrites> ranks;               ///< as SavePlan::load has them

  [[nodiscard]] const Source& source_of(const RankPlan& rank, const Write& write) const {
    return load.sources[rank.at(write.transfer).source];
  }
  /// Of the memory.
  [[nodiscard]] DType memory_dtype(const RankPlan& rank, const Write& write) const {
    return load.statements[rank.destinations[write.transfer.destination].statement].storage;
  }
};

/// 128 bits of everything in the plan, equal on ranks that agree.
std::string digest(const SavePlan& plan);

}  // namespace lading::plan
