// For tests: bytes between ranks that are threads of one process, and an exchange that goes wrong on request.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "ranks/bulk.h"

namespace lading::ranks {

/// Where ranks meet.
class BulkPost {
 public:
  struct Side {
    enum class State : std::uint8_t { kWaiting, kDone, kTakenBack };
    std::span<const std::byte> from;
    std::span<std::byte> to;
    State state = State::kWaiting;
  };
  using Pair = std::pair<std::uint64_t, std::uint64_t>;  // from, to

  /// Every handover passes through here: to break one. On the thread of either side.
  std::function<void(const Pair&, std::span<std::byte>)> on_arrival;
  /// A transfer of this pair is never over, and cannot be taken back either.
  std::function<bool(const Pair&)> hangs;

  std::shared_ptr<Side> meet(const Pair& pair, Side side) {
    const std::lock_guard lock(mutex_);
    auto mine = std::make_shared<Side>(side);
    if (hangs && hangs(pair)) return mine;
    auto& waiting = side.to.data() == nullptr ? receivers_[pair] : senders_[pair];
    std::erase_if(waiting, [](const auto& other) { return other->state == Side::State::kTakenBack; });
    if (waiting.empty()) {
      (side.to.data() == nullptr ? senders_[pair] : receivers_[pair]).push_back(mine);
      return mine;
    }
    const std::shared_ptr<Side> other = waiting.front();
    waiting.pop_front();
    const auto from = side.to.data() == nullptr ? mine->from : other->from;
    const auto to = side.to.data() == nullptr ? other->to : mine->to;
    fits_ = fits_ && from.size() == to.size();
    std::memcpy(to.data(), from.data(), std::min(from.size(), to.size()));
    if (on_arrival) on_arrival(pair, to);
    mine->state = other->state = Side::State::kDone;
    return mine;
  }
  bool is_over(const Side& side) {
    const std::lock_guard lock(mutex_);
    return side.state != Side::State::kWaiting;
  }
  void take_back(const Pair& pair, Side& side) {
    const std::lock_guard lock(mutex_);
    const bool can = !hangs || !hangs(pair);
    if (can && side.state == Side::State::kWaiting) side.state = Side::State::kTakenBack;
  }
  /// Whether both sides always meant as many bytes, and nobody is left waiting.
  [[nodiscard]] bool is_tidy() {
    const std::lock_guard lock(mutex_);
    const auto is_empty = [](const auto& one) { return one.second.empty(); };
    return fits_ && std::all_of(senders_.begin(), senders_.end(), is_empty) &&
           std::all_of(receivers_.begin(), receivers_.end(), is_empty);
  }

 private:
  std::mutex mutex_;
  std::map<Pair, std::list<std::shared_ptr<Side>>> senders_;
  std::map<Pair, std::list<std::shared_ptr<Side>>> receivers_;
  bool fits_ = true;
};

class ThreadBulk : public Bulk {
 public:
  ThreadBulk(BulkPost& post, std::uint64_t rank) : post_(post), rank_(rank) {}

  Result<BulkTransfer> send(std::uint64_t to, std::span<const std::byte> memory) override {
    return begin({rank_, to}, {memory, {}, BulkPost::Side::State::kWaiting});
  }
  Result<BulkTransfer> receive(std::uint64_t from, std::span<std::byte> memory) override {
    return begin({from, rank_}, {{}, memory, BulkPost::Side::State::kWaiting});
  }
  Result<bool> is_over(BulkTransfer transfer) override {
    const auto at = find(transfer);
    if (!post_.is_over(*at->side)) return false;
    begun_.erase(at);
    return true;
  }
  void take_back(BulkTransfer transfer) override {
    const auto at = find(transfer);
    post_.take_back(at->pair, *at->side);
  }
  [[nodiscard]] std::size_t most_at_once() const { return most_; }

 private:
  struct Begun {
    BulkPost::Pair pair;
    std::shared_ptr<BulkPost::Side> side;
  };

  Result<BulkTransfer> begin(const BulkPost::Pair& pair, const BulkPost::Side& side) {
    begun_.push_back({pair, post_.meet(pair, side)});
    most_ = std::max(most_, begun_.size());
    return BulkTransfer(begun_.back().side.get());
  }
  std::list<Begun>::iterator find(BulkTransfer transfer) {
    return std::find_if(begun_.begin(), begun_.end(), [&](const Begun& begun) { return begun.side.get() == transfer; });
  }

  BulkPost& post_;
  const std::uint64_t rank_;
  std::list<Begun> begun_;
  std::size_t most_ = 0;
};

}  // namespace lading::ranks
