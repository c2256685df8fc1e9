#include "ranks/thread_channel.h"

#include <utility>

namespace lading::ranks {

Time steady_now() { return std::chrono::duration_cast<Time>(std::chrono::steady_clock::now().time_since_epoch()); }

void NoteStore::put(const std::string& key, const std::string& value) {
  {
    const std::lock_guard lock(mutex_);
    notes_[key] = value;
  }
  changed_.notify_all();
}

std::string NoteStore::decide(const std::string& key, const std::string& value) {
  std::string stands;
  {
    const std::lock_guard lock(mutex_);
    stands = notes_.emplace(key, value).first->second;
  }
  changed_.notify_all();
  return stands;
}

std::optional<std::vector<std::string>> NoteStore::find(const std::vector<std::string>& keys) const {
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    const auto found = notes_.find(key);
    if (found == notes_.end()) return {};
    values.push_back(found->second);
  }
  return values;
}

std::optional<std::vector<std::string>> NoteStore::look(const std::vector<std::string>& keys) const {
  const std::lock_guard lock(mutex_);
  return find(keys);
}

std::optional<std::vector<std::string>> NoteStore::wait(const std::vector<std::string>& keys, Time deadline) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (auto values = find(keys)) return values;
    const Time left = deadline - steady_now();
    if (left <= Time::zero()) return {};
    changed_.wait_for(lock, left);
  }
}

Reply ThreadChannel::put(const std::string& key, const std::string& value) {
  store_.put(key, value);
  return Reply::ready();
}

Reply ThreadChannel::decide(const std::string& key, const std::string& value) {
  return Reply::ready({store_.decide(key, value)});
}

Reply ThreadChannel::wait(const std::vector<std::string>& keys, Time deadline) {
  auto values = store_.wait(keys, deadline);
  return values ? Reply::ready(*std::move(values)) : Reply::absent();
}

}  // namespace lading::ranks
