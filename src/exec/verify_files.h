// VerifyFiles: the files of a verification, each open while tensors of it are worked on, and unchanged all that time
// (R45). MemoryGate: how much memory they may take together. Both thread-safe. For verify.cc only.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/wait.h"
#include "io/file.h"
#include "lading/result.h"

namespace lading::exec {

class VerifyFiles {
 public:
  using Open = std::function<Result<io::File>(std::uint32_t file)>;

  explicit VerifyFiles(Open open) : open_(std::move(open)) {}

  /// Before the first acquire(): a task that will use the file.
  void expect(std::uint32_t file) { ++entries_[file].tasks_left; }

  Result<const io::File*> acquire(std::uint32_t file) {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_.at(file);
    if (!entry.file) {
      LADING_ASSIGN_OR_RETURN(io::File opened, open_(file));
      entry.file = std::make_unique<io::File>(std::move(opened));
    }
    return entry.file.get();
  }

  /// A task that was expected has ended. After the last one the file is compared with what was opened, and closed.
  Result<void> release(std::uint32_t file) {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_.at(file);
    if (--entry.tasks_left > 0 || !entry.file) return {};
    auto unchanged = entry.file->check_unchanged();
    entry.file.reset();
    return unchanged;
  }

 private:
  struct Entry {
    std::unique_ptr<io::File> file;
    std::uint64_t tasks_left = 0;
  };

  Open open_;
  std::mutex mutex_;
  std::map<std::uint32_t, Entry> entries_;
};

class MemoryGate {
 public:
  explicit MemoryGate(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Room for so many bytes, given back at the end. One that is larger than the limit waits until it is alone.
  class Room {
   public:
    Room(MemoryGate& gate, std::uint64_t bytes) : gate_(gate), bytes_(std::min(bytes, gate.limit_bytes_)) {
      std::unique_lock lock(gate_.mutex_);
      wait_until(gate_.changed_, lock, [&] { return gate_.used_bytes_ + bytes_ <= gate_.limit_bytes_; });
      gate_.used_bytes_ += bytes_;
    }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    ~Room() {
      const std::lock_guard lock(gate_.mutex_);
      gate_.used_bytes_ -= bytes_;
      gate_.changed_.notify_all();
    }

   private:
    MemoryGate& gate_;
    std::uint64_t bytes_;
  };

 private:
  const std::uint64_t limit_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t used_bytes_ = 0;
};

}  // namespace lading::exec
