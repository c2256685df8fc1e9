// Scales of quantized sources, in host memory while the batches of tasks run that need them (R48, R64).
//
// Those of the first batch are read before anything is written: if there is one batch, a scale that is infinite or not
// a number fails the load while the model is still as it was. What is read again must be what was read before (R45).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "exec/crew.h"
#include "exec/executor.h"
#include "exec/file_set.h"
#include "exec/file_table.h"
#include "exec/read_task.h"

namespace lading::exec {

struct Load;

class Scales {
 public:
  /// Of one source for one rank. Borrowed by the caller until forget().
  struct Entry {
    plan::ScaleRead read;
    std::uint64_t rank = 0;
    std::size_t first_batch = 0;
    std::size_t last_batch = 0;
    std::set<std::uint32_t> devices;  ///< into Load::devices
    bool is_taken = false;            ///< by the devices
    device::BlockScales scales;
  };

  /// Notes what the tasks of each batch will need, and forgets everything that earlier batches needed.
  void expect(const Load& load, const std::vector<std::vector<ReadTask>>& batches);
  /// What this batch needs and none before did.
  [[nodiscard]] std::vector<Entry*> first_needed_by(std::size_t batch);
  /// Reads one, and hands it to the devices. Thread-safe, for different ones.
  Result<void> read(const Load& load, Entry& entry);
  /// Of a source that has any, for a rank that takes elements of it: they were read.
  [[nodiscard]] const device::BlockScales& of(std::uint64_t rank, plan::SourceId source) const;
  /// The batch has ended, and nothing reads scales.
  void forget(const Load& load, std::size_t batch);

  /// Whether scales of what the read takes lie in these files.
  [[nodiscard]] static bool lie_in(const FileSet& files, const plan::Plan& plan, const plan::RankPlan& rank,
                                   const plan::Read& read);
  /// For the report: that scales are zero or negative.
  [[nodiscard]] std::vector<std::string> notes(const plan::Plan& plan) const;
  /// The files of which check_unchanged cannot tell whether they changed meanwhile.
  [[nodiscard]] FileSet take_doubtful();

 private:
  using Key = std::pair<std::uint64_t, plan::SourceId>;  // rank and source
  struct Gathered;

  Result<void> read_parts(const Load& load, Entry& entry, Gathered& gathered);

  std::map<Key, Entry> entries_;
  std::unique_ptr<FileTable> files_;  // of the entries that are expected
  std::mutex mutex_;                  // for what follows
  std::map<Key, device::Digest> seen_;
  std::set<plan::SourceId> odd_;
  FileSet doubtful_;
};

}  // namespace lading::exec
