// FileTable: the files of a load or a verification, each open from its first task to its last, and unchanged all that
// time (R45).
//
// Tasks come in file order, so a checkpoint of a thousand shards needs a few descriptors at a time. Thread-safe, but
// for expect().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "io/file.h"
#include "lading/result.h"

namespace lading::exec {

class FileTable {
 public:
  /// Files are numbered as the caller numbers them: a plan or a catalog.
  using Open = std::function<Result<io::File>(std::uint32_t file)>;

  FileTable(Open open, std::size_t files);

  /// A task will release() the file once. Said of all tasks before the first acquire().
  void expect(std::uint32_t file) { ++entries_[file].tasks_left; }
  /// The file, opened by the first call; valid until the task's release().
  Result<const io::File*> acquire(std::uint32_t file);
  /// A task on the file has ended. After the last one the file is compared with what was opened, and closed.
  Result<void> release(std::uint32_t file);
  /// The files that are unchanged as far as check_unchanged can see, but were doubtful when they were closed.
  [[nodiscard]] std::set<std::uint32_t> take_doubtful() { return std::move(doubtful_); }

 private:
  struct Entry {
    std::mutex mutex;
    std::optional<io::File> file;
    std::uint64_t tasks_left = 0;
  };

  Open open_;
  std::unique_ptr<Entry[]> entries_;
  std::mutex doubtful_mutex_;
  std::set<std::uint32_t> doubtful_;
};

}  // namespace lading::exec
