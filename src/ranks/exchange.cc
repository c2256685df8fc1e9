#include "ranks/exchange.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

namespace lading::ranks {
namespace {

constexpr std::size_t kUnderWay = 32;  // transfers at a time

// All transfers of one rank, one by one: by handover, then block by block, then member by member.
//
// All ranks follow this one order, so they cannot deadlock. Take the first transfer in it that is not yet over on both
// sides. All earlier ones are over, so it is the oldest that its sender and its receiver have left, and neither waits
// for anything else to begin it. Rank 0 owns A, rank 1 owns B, ranks 0, 1 and 2 hold both, one block each:
//
//   order     A 0->1    A 0->2    B 1->0    B 1->2
//   rank 0    send      send      receive
//   rank 1    receive             send      send
//   rank 2              receive             receive
//
// The order also replaces tags: Bulk pairs the n-th send to a rank with that rank's n-th receive from the sender.
// A kUnderWay of 1 would be correct; more keeps the network busy.
class Transfers {
 public:
  Transfers(Bulk& bulk, const std::vector<Handover>& handovers, const ExchangeOptions& options)
      : bulk_(bulk), handovers_(handovers), rank_(options.rank), block_bytes_(options.block_bytes) {}

  struct Begun {
    BulkTransfer transfer = nullptr;
    std::uint64_t bytes = 0;
  };

  /// Begins the next one; nothing: there is none.
  Result<std::optional<Begun>> begin_next() {
    for (; next_ < handovers_.size(); ++next_, begin_ = 0, member_ = 0) {
      const Handover& handover = handovers_[next_];
      for (; begin_ < handover.memory.size(); begin_ += block_bytes_, member_ = 0) {
        const std::uint64_t bytes = std::min<std::uint64_t>(block_bytes_, handover.memory.size() - begin_);
        const std::span<std::byte> block = handover.memory.subspan(begin_, bytes);
        while (member_ < handover.members->size()) {
          const std::uint64_t member = (*handover.members)[member_++];
          const bool is_ours = handover.owner == rank_;
          // An owner sends to all members but itself; any other rank receives once per block, at its own entry.
          if (is_ours == (member == rank_)) continue;
          LADING_ASSIGN_OR_RETURN(const BulkTransfer transfer,
                                  is_ours ? bulk_.send(member, block) : bulk_.receive(handover.owner, block));
          return std::optional(Begun{transfer, bytes});
        }
      }
    }
    return std::optional<Begun>();
  }

 private:
  Bulk& bulk_;
  const std::vector<Handover>& handovers_;
  const std::uint64_t rank_;
  const std::uint64_t block_bytes_;
  std::size_t next_ = 0;     // handover
  std::uint64_t begin_ = 0;  // of the block
  std::size_t member_ = 0;
};

class Exchange {
 public:
  Exchange(Bulk& bulk, const std::vector<Handover>& handovers, const ExchangeOptions& options)
      : bulk_(bulk), options_(options), transfers_(bulk, handovers, options) {}

  ExchangeOutcome run() {
    Result<void> result = carry_all();
    if (!result) take_back_all();
    return {std::move(result), under_way_.empty()};
  }

 private:
  Result<void> carry_all() {
    bool has_more = true;
    Time pause = kShortest;
    while (true) {
      while (has_more && under_way_.size() < kUnderWay) {
        LADING_ASSIGN_OR_RETURN(const auto begun, transfers_.begin_next());
        has_more = begun.has_value();
        if (begun) under_way_.push_back(*begun);
      }
      if (under_way_.empty()) return {};
      if (options_.is_cancelled && options_.is_cancelled()) {
        return fail(Error(Code::kCancelled, "the exchange between the ranks was stopped early"));
      }
      LADING_ASSIGN_OR_RETURN(const bool has_moved, look());
      // Polls, because a wait that blocks could not be cancelled when a peer dies.
      if (!has_moved) std::this_thread::sleep_for(pause);
      pause = has_moved ? kShortest : std::min(2 * pause, kLongest);
    }
  }

  // Whether something is over that was not.
  Result<bool> look() {
    const std::uint64_t before = moved_bytes_;
    for (std::size_t i = 0; i < under_way_.size();) {
      auto over = bulk_.is_over(under_way_[i].transfer);
      if (over && !*over) {
        ++i;
        continue;
      }
      moved_bytes_ += under_way_[i].bytes;
      // After an error too: is_over() has freed the transfer, and take_back_all() must not touch it.
      under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(i));
      if (!over) return fail(std::move(over).error());
    }
    if (moved_bytes_ != before && options_.on_progress) options_.on_progress(moved_bytes_);
    return moved_bytes_ != before;
  }

  void take_back_all() {
    for (const Transfers::Begun& begun : under_way_) bulk_.take_back(begun.transfer);
    // The memory of a transfer that is not over by then is still in use, and run() says so: the caller must keep it.
    const Time deadline = steady_now() + options_.patience;
    while (true) {
      std::erase_if(under_way_, [&](const Transfers::Begun& begun) {
        const auto over = bulk_.is_over(begun.transfer);
        return !over || *over;
      });
      if (under_way_.empty() || steady_now() >= deadline) return;
      std::this_thread::sleep_for(kLongest);
    }
  }

  static constexpr Time kShortest = std::chrono::microseconds(20);
  static constexpr Time kLongest = std::chrono::milliseconds(1);

  Bulk& bulk_;
  const ExchangeOptions& options_;
  Transfers transfers_;
  std::vector<Transfers::Begun> under_way_;
  std::uint64_t moved_bytes_ = 0;
};

}  // namespace

ExchangeOutcome exchange(Bulk& bulk, const std::vector<Handover>& handovers, const ExchangeOptions& options) {
  return Exchange(bulk, handovers, options).run();
}

}  // namespace lading::ranks
