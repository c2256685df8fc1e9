// Notes: what was done in another way than asked, each said once.
//
// A kernel without io_uring or a file system without O_DIRECT is no error: the load goes on, buffered, and the
// report says so in one line, however many files and threads met it. Thread-safe.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lading::io {

class Notes {
 public:
  /// Keeps `text` unless there was a note of this kind before.
  void once(std::string_view kind, std::string text) {
    const std::lock_guard lock(mutex_);
    if (kinds_.emplace(kind).second) texts_.push_back(std::move(text));
  }

  /// The notes since the last call, oldest first. A kind that was taken does not come back.
  [[nodiscard]] std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(texts_, {});
  }

 private:
  std::mutex mutex_;
  std::set<std::string, std::less<>> kinds_;
  std::vector<std::string> texts_;
};

}  // namespace lading::io
