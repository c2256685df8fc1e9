// FileTable: the files of a load, each open from its first read to its last, and unchanged all that time (R45).
//
// Tasks come in file order, so a checkpoint of a thousand shards needs a few descriptors at a time. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "exec/read_task.h"
#include "io/file.h"
#include "lading/result.h"

namespace lading::exec {

class FileTable {
 public:
  using Open = std::function<Result<io::File>(plan::FileId file)>;

  FileTable(Open open, std::size_t files, const std::vector<ReadTask>& tasks);

  /// The open file; valid until the release() that belongs to this call.
  Result<const io::File*> acquire(plan::FileId file);
  /// A task on the file has ended. After the last one the file is compared with what was opened, and closed.
  Result<void> release(plan::FileId file);
  /// The files that are unchanged as far as check_unchanged can see, but were doubtful when they were closed.
  [[nodiscard]] std::set<plan::FileId> take_doubtful() { return std::move(doubtful_); }

 private:
  struct Entry {
    std::mutex mutex;
    std::optional<io::File> file;
    std::uint64_t tasks_left = 0;
  };

  Open open_;
  std::unique_ptr<Entry[]> entries_;
  std::mutex doubtful_mutex_;
  std::set<plan::FileId> doubtful_;
};

}  // namespace lading::exec
