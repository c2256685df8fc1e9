#include "exec/file_table.h"

#include <utility>

namespace lading::exec {

FileTable::FileTable(Open open, std::size_t files)
    : open_(std::move(open)), entries_(std::make_unique<Entry[]>(files)) {}

Result<const io::File*> FileTable::acquire(std::uint32_t file) {
  Entry& entry = entries_[file];
  const std::lock_guard lock(entry.mutex);
  if (!entry.file) {
    LADING_ASSIGN_OR_RETURN(io::File opened, open_(file));
    entry.file.emplace(std::move(opened));
  }
  return &*entry.file;
}

Result<void> FileTable::release(std::uint32_t file) {
  Entry& entry = entries_[file];
  const std::lock_guard lock(entry.mutex);
  if (--entry.tasks_left > 0 || !entry.file) return {};
  Result<void> unchanged = entry.file->check_unchanged();
  if (entry.file->is_doubtful()) {
    const std::lock_guard doubtful_lock(doubtful_mutex_);
    doubtful_.insert(file);
  }
  entry.file.reset();
  return unchanged;
}

}  // namespace lading::exec
