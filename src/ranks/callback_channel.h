// Entries in somebody else's store, through functions that the caller brings: torch.distributed's Store, for Python.
//
// The functions run on a thread of the channel's own, one at a time. One that does not come back in time is left behind
// with its thread, and the channel is gone from then on: a store whose process is stopped cannot hold a rank up.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ranks/channel.h"

namespace lading::ranks {

struct CallbackBackend {
  std::function<Reply(const std::string& key, const std::string& value)> put;
  std::function<Reply(const std::string& key, const std::string& value)> decide;
  /// Zero: look once.
  std::function<Reply(const std::vector<std::string>& keys, Time timeout)> wait;
};

struct CallbackRank {
  std::uint64_t rank = 0;
  std::uint64_t size = 1;
  bool is_host = false;
  Time answer_timeout{};
};

class CallbackChannel : public Channel {
 public:
  CallbackChannel(const CallbackRank& rank, CallbackBackend backend);
  ~CallbackChannel() override;

  [[nodiscard]] std::uint64_t rank() const override { return rank_.rank; }
  [[nodiscard]] std::uint64_t size() const override { return rank_.size; }
  [[nodiscard]] Time now() const override;
  [[nodiscard]] bool is_host() const override { return rank_.is_host; }
  Reply put(const std::string& key, const std::string& value) override;
  Reply decide(const std::string& key, const std::string& value) override;
  Reply wait(const std::vector<std::string>& keys, Time deadline) override;

 private:
  class Worker;
  Reply call(std::function<Reply()> function, Time patience);

  CallbackRank rank_;
  std::shared_ptr<CallbackBackend> backend_;  // shared with calls that were left behind
  std::shared_ptr<Worker> worker_;
};

}  // namespace lading::ranks
