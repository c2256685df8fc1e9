// Scales of quantized sources, in host memory for as long as a load takes (R48).
//
// They are read before anything is written: one that is infinite or not a number fails the load while the model is
// still as it was.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "exec/executor.h"
#include "exec/file_set.h"

namespace lading::exec {

struct Load;

class Scales {
 public:
  /// Reads those that the load's ranks need, and hands them to the devices. What is wrong with them becomes an error of
  /// the load's crew.
  void read(const Load& load);
  /// Reads the scales that lie in these files again, and compares them with those in memory (R45).
  void compare_again(const Load& load, const FileSet& files) const;

  /// Of a source that has any, for a rank that takes elements of it.
  [[nodiscard]] const device::BlockScales& of(std::uint64_t rank, plan::SourceId source) const {
    return entries_.at({rank, source}).scales;
  }

  /// For the report: that scales are zero or negative.
  [[nodiscard]] std::vector<std::string> take_notes() { return std::move(notes_); }
  /// The files of which check_unchanged cannot tell whether they changed meanwhile.
  [[nodiscard]] FileSet take_doubtful() { return std::move(doubtful_); }

 private:
  struct Entry {
    plan::ScaleRead read;
    std::uint64_t rank = 0;
    device::BlockScales scales;
    std::set<std::uint32_t> devices;  // into Load::devices
  };
  using Entries = std::map<std::pair<std::uint64_t, plan::SourceId>, Entry>;
  class Reader;
  struct Gathered;

  void find_entries(const Load& load);
  void note_values(const Load& load);

  Entries entries_;
  std::vector<std::string> notes_;
  FileSet doubtful_;
};

}  // namespace lading::exec
