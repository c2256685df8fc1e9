// Ranks in one process, one thread each: notes in a map. Also what a server of notes keeps them in.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ranks/channel.h"

namespace lading::ranks {

/// Steady, since an arbitrary beginning.
[[nodiscard]] Time steady_now();

/// Safe to use from all threads.
class NoteStore {
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
  std::map<std::string, std::string> notes_;
};

class ThreadChannel : public Channel {
 public:
  ThreadChannel(NoteStore& store, std::uint64_t rank, std::uint64_t size) : store_(store), rank_(rank), size_(size) {}

  [[nodiscard]] std::uint64_t rank() const override { return rank_; }
  [[nodiscard]] std::uint64_t size() const override { return size_; }
  [[nodiscard]] Time now() const override { return steady_now(); }
  /// The store outlives all of its channels.
  [[nodiscard]] bool is_host() const override { return false; }
  Reply put(const std::string& key, const std::string& value) override;
  Reply decide(const std::string& key, const std::string& value) override;
  Reply wait(const std::vector<std::string>& keys, Time deadline) override;

 private:
  NoteStore& store_;
  std::uint64_t rank_;
  std::uint64_t size_;
};

}  // namespace lading::ranks
