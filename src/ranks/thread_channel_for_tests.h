// For tests: ranks in one process, one thread each, whose entries stand in a map.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ranks/channel.h"

namespace lading::ranks {

/// Safe to use from all threads.
class EntryStore {
 public:
  void put(const std::string& key, const std::string& value);
  std::string decide(const std::string& key, const std::string& value);
  /// Nothing: one of them is missing.
  [[nodiscard]] std::optional<std::vector<std::string>> look(const std::vector<std::string>& keys) const;
  /// By steady_now().
  std::optional<std::vector<std::string>> wait(const std::vector<std::string>& keys, Time deadline);

 private:
  [[nodiscard]] std::optional<std::vector<std::string>> find(const std::vector<std::string>& keys) const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> entries_;
};

class ThreadChannel : public Channel {
 public:
  ThreadChannel(EntryStore& store, std::uint64_t rank, std::uint64_t size) : store_(store), rank_(rank), size_(size) {}

  [[nodiscard]] std::uint64_t rank() const override { return rank_; }
  [[nodiscard]] std::uint64_t size() const override { return size_; }
  [[nodiscard]] Time now() const override { return steady_now(); }
  /// The store outlives all of its channels.
  [[nodiscard]] bool is_host() const override { return false; }
  Reply put(const std::string& key, const std::string& value) override;
  Reply decide(const std::string& key, const std::string& value) override;
  Reply wait(const std::vector<std::string>& keys, Time deadline) override;

 private:
  EntryStore& store_;
  std::uint64_t rank_;
  std::uint64_t size_;
};

inline void EntryStore::put(const std::string& key, const std::string& value) {
  {
    const std::lock_guard lock(mutex_);
    entries_[key] = value;
  }
  changed_.notify_all();
}

inline std::string EntryStore::decide(const std::string& key, const std::string& value) {
  std::string stands;
  {
    const std::lock_guard lock(mutex_);
    stands = entries_.emplace(key, value).first->second;
  }
  changed_.notify_all();
  return stands;
}

inline std::optional<std::vector<std::string>> EntryStore::find(const std::vector<std::string>& keys) const {
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return {};
    values.push_back(found->second);
  }
  return values;
}

inline std::optional<std::vector<std::string>> EntryStore::look(const std::vector<std::string>& keys) const {
  const std::lock_guard lock(mutex_);
  return find(keys);
}

inline std::optional<std::vector<std::string>> EntryStore::wait(const std::vector<std::string>& keys, Time deadline) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (auto values = find(keys)) return values;
    const Time left = deadline - steady_now();
    if (left <= Time::zero()) return {};
    changed_.wait_for(lock, left);
  }
}

inline Reply ThreadChannel::put(const std::string& key, const std::string& value) {
  store_.put(key, value);
  return Reply::ready();
}

inline Reply ThreadChannel::decide(const std::string& key, const std::string& value) {
  return Reply::ready({store_.decide(key, value)});
}

inline Reply ThreadChannel::wait(const std::vector<std::string>& keys, Time deadline) {
  auto values = store_.wait(keys, deadline);
  return values ? Reply::ready(*std::move(values)) : Reply::absent();
}

}  // namespace lading::ranks
