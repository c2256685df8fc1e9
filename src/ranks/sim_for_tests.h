// A world of ranks in one thread: a store of entries, links that delay, reorder and lose, clocks that go wrong,
// processes that are stopped, killed and cut off. Time is simulated; the same seed gives the same run.
//
// Loss is below the channel, as under TCP: what is lost is sent again, which takes long. Entries of one rank may
// overtake each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ranks/channel.h"
#include "ranks/fiber_for_tests.h"

namespace lading::ranks::test {

inline constexpr Time kNever = Time::max();

/// Half-open. Empty unless set.
struct Span {
  Time begin = kNever;
  Time end = kNever;
  [[nodiscard]] bool contains(Time t) const { return begin <= t && t < end; }
};

struct RankFaults {
  Time killed = kNever;
  Span stopped;  ///< no thread of it runs; a store that it hosts does not answer
  Span cut_off;  ///< its link to the others carries nothing
  double clock_rate = 1;
  Time clock_offset{};
};

struct WorldOptions {
  std::uint64_t seed = 0;
  std::uint64_t size = 2;
  Time min_delay = std::chrono::microseconds(20);
  Time max_delay = std::chrono::milliseconds(2);
  double loss = 0;                               ///< of each message
  Time resend = std::chrono::milliseconds(200);  ///< at least, and up to four times as long
  Time service{};                                ///< of the store, per message
  std::optional<std::uint64_t> host = 0;  ///< whose process holds the store; nothing: a process that nothing happens to
  Time answer_timeout = std::chrono::seconds(10);
  std::vector<RankFaults> faults;
};

struct Traffic {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
};

class World {
 public:
  explicit World(WorldOptions options) : options_(std::move(options)), random_(options_.seed) {
    options_.faults.resize(options_.size);
    ranks_.resize(options_.size);
  }

  using Body = std::function<void(std::uint64_t rank)>;

  /// Runs all ranks until all of them have ended, or only dead ones are left. False: somebody hangs at `until`.
  bool run(const Body& body, Time until) {
    for (std::uint64_t r = 0; r < options_.size; ++r) {
      ranks_[r].fiber = std::make_unique<Fiber>([&body, r] { body(r); });
      wake(r, Time::zero());
    }
    while (!events_.empty() && now_ <= until) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      event.run();
    }
    bool all_ended = true;
    for (std::uint64_t r = 0; r < options_.size; ++r)
      all_ended = all_ended && (ranks_[r].fiber->is_done() || is_dead(r));
    drain();
    return all_ended;
  }

  // ---- for bodies

  void sleep(std::uint64_t rank, Time duration) {
    wake(rank, now_ + duration);
    pause(rank);
  }
  [[nodiscard]] Time now() const { return now_; }
  [[nodiscard]] bool is_dead(std::uint64_t rank) const { return now_ >= options_.faults[rank].killed; }
  [[nodiscard]] const WorldOptions& options() const { return options_; }
  [[nodiscard]] const Traffic& traffic() const { return traffic_; }
  [[nodiscard]] const Traffic& traffic_of(std::uint64_t rank) const { return ranks_[rank].traffic; }
  /// The process is gone, and with it the store, if it held it.
  void process_ended(std::uint64_t rank) {
    if (options_.host == rank) store_ended_ = std::min(store_ended_, now_);
  }

  // ---- for channels

  [[nodiscard]] Time clock(std::uint64_t rank) const {
    const RankFaults& f = options_.faults[rank];
    return f.clock_offset + Time(static_cast<Time::rep>(static_cast<double>(now_.count()) * f.clock_rate));
  }
  [[nodiscard]] Time from_clock(std::uint64_t rank, Time time) const {
    const RankFaults& f = options_.faults[rank];
    return Time(static_cast<Time::rep>(static_cast<double>((time - f.clock_offset).count()) / f.clock_rate));
  }

  /// Runs `serve` at the store when the request has come there, unless the store is gone.
  void send(std::uint64_t rank, std::size_t bytes, std::function<void()> serve) {
    count(rank, bytes);
    deliver(rank, [this, serve = std::move(serve)] {
      if (is_store_gone()) return;
      busy_until_ = std::max(busy_until_, now_) + options_.service;
      at_store(busy_until_, serve);
    });
  }
  /// An answer; `take` runs when it is there.
  void answer(std::uint64_t rank, std::size_t bytes, std::function<void()> take) {
    count(rank, bytes);
    deliver(rank, std::move(take));
  }
  [[nodiscard]] bool is_store_gone() const {
    return now_ >= store_ended_ || (options_.host && is_dead(*options_.host)) || draining_;
  }

  void at(Time time, std::function<void()> run) { events_.push({time, next_event_++, std::move(run)}); }
  void wake(std::uint64_t rank, Time time) {
    at(time, [this, rank] { resume(rank); });
  }
  void pause(std::uint64_t rank) {
    if (!draining_) ranks_[rank].fiber->pause();
  }
  [[nodiscard]] bool is_draining() const { return draining_; }

  std::map<std::string, std::string> entries;
  struct Waiter {
    std::vector<std::string> keys;
    std::function<void(std::vector<std::string>)> found;
    bool is_over = false;
  };

  void write(const std::string& key, const std::string& value) {
    entries[key] = value;
    const auto found = waiting_.find(key);
    if (found == waiting_.end()) return;
    const auto waiters = std::move(found->second);
    waiting_.erase(found);
    for (const auto& waiter : waiters) serve(waiter);
  }
  /// Answers it, or keeps it with the first entry that is missing.
  void serve(const std::shared_ptr<Waiter>& waiter) {
    if (waiter->is_over) return;
    std::vector<std::string> values;
    for (const std::string& key : waiter->keys) {
      const auto found = entries.find(key);
      if (found == entries.end()) {
        waiting_[key].push_back(waiter);
        return;
      }
      values.push_back(found->second);
    }
    waiter->is_over = true;
    waiter->found(std::move(values));
  }
  /// At the store: not while its process is stopped, and not when it is gone.
  void at_store(Time time, const std::function<void()>& run) {
    if (options_.host) {
      const Span& stop = options_.faults[*options_.host].stopped;
      if (stop.contains(time)) {
        if (stop.end == kNever) return;
        time = stop.end;
      }
    }
    at(time, [this, run] {
      if (!is_store_gone()) run();
    });
  }

 private:
  struct Event {
    Time at;
    std::uint64_t number;
    std::function<void()> run;
    bool operator<(const Event& other) const { return std::tie(other.at, other.number) < std::tie(at, number); }
  };
  struct Rank {
    std::unique_ptr<Fiber> fiber;
    Traffic traffic;
  };

  void resume(std::uint64_t rank) {
    if (is_dead(rank) || ranks_[rank].fiber->is_done()) return;
    const Span& stop = options_.faults[rank].stopped;
    if (stop.contains(now_)) {
      if (stop.end != kNever) wake(rank, stop.end);
      return;
    }
    ranks_[rank].fiber->resume();
  }

  // What is still under way when the run is over: every call answers "gone" at once, and the bodies end.
  void drain() {
    draining_ = true;
    for (Rank& rank : ranks_) {
      while (!rank.fiber->is_done()) rank.fiber->resume();
    }
  }

  void count(std::uint64_t rank, std::size_t bytes) {
    for (Traffic* traffic : {&traffic_, &ranks_[rank].traffic}) {
      ++traffic->messages;
      traffic->bytes += bytes;
    }
  }

  Time random_time(Time low, Time high) {
    return Time(std::uniform_int_distribution<Time::rep>(low.count(), std::max(low, high).count())(random_));
  }

  void deliver(std::uint64_t rank, std::function<void()> run) {
    Time there = now_ + random_time(options_.min_delay, options_.max_delay);
    while (options_.loss > 0 && std::uniform_real_distribution<>(0, 1)(random_) < options_.loss) {
      there += random_time(options_.resend, 4 * options_.resend);
    }
    // A process reaches itself. Cut off with the store in it, it is out of everybody else's reach.
    for (const std::uint64_t end : {rank, options_.host.value_or(rank)}) {
      const Span& cut = options_.faults[end].cut_off;
      if (options_.host == rank || !(cut.contains(there) || cut.contains(now_))) continue;
      if (cut.end == kNever) return;
      there = std::max(there, cut.end) + random_time(options_.min_delay, options_.resend);
    }
    at(there, std::move(run));
  }

  WorldOptions options_;
  std::mt19937_64 random_;
  Time now_{};
  Time store_ended_ = kNever;
  Time busy_until_{};
  bool draining_ = false;
  std::map<std::string, std::vector<std::shared_ptr<Waiter>>> waiting_;
  std::priority_queue<Event> events_;
  std::uint64_t next_event_ = 0;
  std::vector<Rank> ranks_;
  Traffic traffic_;
};

class SimChannel : public Channel {
 public:
  SimChannel(World& world, std::uint64_t rank) : world_(world), rank_(rank) {}

  [[nodiscard]] std::uint64_t rank() const override { return rank_; }
  [[nodiscard]] std::uint64_t size() const override { return world_.options().size; }
  [[nodiscard]] Time now() const override { return world_.clock(rank_); }
  [[nodiscard]] bool is_host() const override { return world_.options().host == rank_; }

  Reply put(const std::string& key, const std::string& value) override {
    if (is_over()) return Reply::gone("over");
    world_.send(rank_, key.size() + value.size(), [this, key, value] { world_.write(key, value); });
    return Reply::ready();
  }

  Reply decide(const std::string& key, const std::string& value) override {
    if (is_over()) return Reply::gone("over");
    const auto call = begin_call(world_.now() + world_.options().answer_timeout);
    world_.send(rank_, key.size() + value.size(), [this, key, value, call] {
      if (world_.entries.count(key) == 0) world_.write(key, value);
      answer(call, Reply::ready({world_.entries.at(key)}));
    });
    return finish(call);
  }

  Reply wait(const std::vector<std::string>& keys, Time deadline) override {
    if (is_over()) return Reply::gone("over");
    const Time until = std::max(world_.now(), world_.from_clock(rank_, deadline));
    const auto call = begin_call(until + world_.options().answer_timeout);
    std::size_t bytes = 0;
    for (const std::string& key : keys) bytes += key.size();
    world_.send(rank_, bytes, [this, keys, until, call] {
      auto waiter = std::make_shared<World::Waiter>();
      waiter->keys = keys;
      waiter->found = [this, call](std::vector<std::string> values) { answer(call, Reply::ready(std::move(values))); };
      world_.serve(waiter);
      if (waiter->is_over) return;
      world_.at_store(std::max(until, world_.now()), [this, waiter, call] {
        if (!std::exchange(waiter->is_over, true)) answer(call, Reply::absent());
      });
    });
    return finish(call);
  }

 private:
  struct Call {
    std::optional<Reply> reply;
    bool is_over = false;
  };

  [[nodiscard]] bool is_over() const { return world_.is_draining() || world_.is_dead(rank_); }

  std::shared_ptr<Call> begin_call(Time give_up) {
    auto call = std::make_shared<Call>();
    world_.at(give_up, [this, call] { end(call, Reply::gone("no answer")); });
    return call;
  }
  void answer(const std::shared_ptr<Call>& call, Reply reply) {
    std::size_t bytes = 0;
    for (const std::string& value : reply.values) bytes += value.size();
    world_.answer(rank_, bytes, [this, call, reply = std::move(reply)] { end(call, reply); });
  }
  void end(const std::shared_ptr<Call>& call, Reply reply) {
    if (call->reply || call->is_over) return;
    call->reply = std::move(reply);
    world_.wake(rank_, world_.now());
  }
  Reply finish(const std::shared_ptr<Call>& call) {
    while (!call->reply && !is_over()) world_.pause(rank_);
    call->is_over = true;
    return call->reply && !is_over() ? *call->reply : Reply::gone("over");
  }

  World& world_;
  std::uint64_t rank_;
};

}  // namespace lading::ranks::test
