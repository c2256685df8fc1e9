// Coordinator: the ranks of one load agree before bytes move, notice when one of them fails or falls silent, and end
// together.
//
//   Coordinator ranks(channel, {});
//   LADING_TRY(ranks.begin());                                   who is there, and which lading
//   LADING_TRY(ranks.agree("the plan", {{"plan", digest}}));     any number of times, in the same order on all ranks
//   … load; in its progress hook: ranks.poll(done_bytes) …       or ranks.fail(failure)
//   LADING_TRY(ranks.commit());                                  only if all ranks are complete
//   ranks.leave();                                               in any case, last
//
// Each step ends with one decided entry, its verdict. The first rank writes "agreed" once everybody has spoken, a rank
// that fails or misses another writes "failed": whichever comes first stands, for all. What holds, and what cannot:
// docs/how-it-works/reliability.md.
//
// Invariants: commit() is well only if every rank has called it without a failure. Two ranks that learn a verdict learn
// the same. begin() and agree() wait at most step_timeout for ranks that live, and a deadline more for one that does
// not; commit() waits while others load, which stall_timeout watches on each of them. One thread makes the steps;
// poll() may be called from any thread, and has to be called several times per deadline.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lading/result.h"
#include "ranks/channel.h"
#include "ranks/entry.h"

namespace lading::ranks {

struct Options {
  std::string prefix = "lading";                   ///< of all keys: one per group of ranks
  Time deadline = std::chrono::seconds(10);        ///< from a rank's silence to the others' failure
  Time step_timeout = std::chrono::seconds(300);   ///< how far apart ranks may come to begin() and agree()
  Time stall_timeout = std::chrono::seconds(300);  ///< how long a load may make no progress
  std::string process;                             ///< tells processes apart; "": made up

  /// How long a neighbour may be silent, and a channel without an answer. The rest of the deadline is for seeing the
  /// last beat, for missing the next, and for telling the others. At a deadline of 10 s (interval 1 s), neighbours see
  /// a last beat at 0 s by 1 s. The rank counts as silent at 7 s, a tick notices by 8 s, and all ranks have polled the
  /// verdict by 9 s. The last second is for late polls and slow messages.
  [[nodiscard]] Time silence_limit() const { return deadline * 6 / 10; }
};

/// How long a step waits for ranks that live.
enum class Patience : std::uint8_t {
  kStepTimeout,
  kWhileAlive,  ///< after a load, which may take any time: stall_timeout watches over it
};

/// What a rank does that stands still: where to look.
enum class Activity : std::uint8_t {
  kReading,
  kExchanging,  ///< bytes, with other ranks
};

/// Why this rank cannot go on.
struct Failure {
  Errors problems;
  Exit exit_code = Exit::kLoad;
  bool begun = false;           ///< destinations are incomplete
  std::vector<Problem> others;  ///< beside `problems`: those of a front in another language
};

class Coordinator {
 public:
  Coordinator(Channel& channel, Options options);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;
  virtual ~Coordinator() = default;

  [[nodiscard]] Channel& channel() { return channel_; }
  [[nodiscard]] const Options& options() const { return options_; }

  /// Joins the others. They must have the same protocol, version, number of ranks, and `fields`.
  Result<void, Verdict> begin(std::vector<Field> fields = {});
  /// Ends when all ranks have come. With a failure on any rank, or a field that differs, it fails on all.
  Result<Verdict, Verdict> agree(const std::string& step, const std::vector<Field>& fields,
                                 const Failure* failure = nullptr, Patience patience = Patience::kStepTimeout);
  /// Cheap when called often. `done` is any number that changes as the load goes on; without it, only signs of life are
  /// given.
  Result<void, Verdict> poll(std::optional<std::uint64_t> done = {}, Activity activity = Activity::kReading);
  /// Tells all ranks at once. Answers what all of them are told, which may be another rank's failure that came first.
  Verdict fail(const Failure& failure);
  /// This rank is complete. Well: all ranks are.
  Result<void, Verdict> commit();
  /// The rank that holds the store stays until the others have read how it ended, for a deadline at most.
  void leave();

  [[nodiscard]] Time interval() const { return options_.deadline / 10; }

 protected:
  // The decisions. A simulation that cannot find one of them broken is worth nothing, so tests break them here.
  [[nodiscard]] virtual std::vector<std::uint64_t> awaited() const;
  [[nodiscard]] virtual std::vector<std::uint64_t> watched() const;
  [[nodiscard]] virtual Time silence_limit() const;
  [[nodiscard]] virtual bool has_overslept(Time gap) const;
  [[nodiscard]] virtual bool stays_for_others() const;
  [[nodiscard]] virtual Reply end_step(const std::string& key, const std::string& verdict);

 private:
  struct Step {
    std::string name;
    Verdict::Kind good = Verdict::Kind::kAgreed;
    Time limit{};  ///< of waiting
  };
  struct Seen {
    std::string beat;
    Time at{};
  };

  [[nodiscard]] std::uint64_t me() const { return channel_.rank(); }
  [[nodiscard]] std::string key(std::string_view name, std::uint64_t rank) const;
  [[nodiscard]] std::string step_key(std::string_view name, std::uint64_t rank) const;
  [[nodiscard]] std::string end_key(std::uint64_t step) const;

  std::optional<Verdict> choose_load();
  std::optional<Verdict> refuse_twin(std::uint64_t last, std::string_view who);
  Verdict run_step(const Step& step, RankReport mine);
  std::optional<Verdict> gather(const Step& step, RankReport& all);
  void hear(RankReport& all, std::uint64_t child, const std::string& entry) const;
  Verdict conclude(const Step& step, const RankReport& all);
  Verdict judge(const Step& step, const RankReport& all) const;
  Verdict await_end(const Step& step);
  std::optional<Verdict> after_waiting(const Step& step);
  std::optional<Verdict> look_at_end();
  Verdict read_end(const Reply& reply);

  std::optional<Verdict> tick();
  Result<void, Verdict> watch(Time gap);
  void start_heart();
  [[nodiscard]] Time last_sign();
  std::optional<Verdict> check_progress(std::optional<std::uint64_t> done, Activity activity);

  Verdict propose(const Verdict& failure);
  Verdict insist(Verdict failure);
  void find_silent(std::uint64_t top, RankSet& silent);
  [[nodiscard]] bool is_there(const std::string& key);
  Verdict lost(const Reply& reply);
  Verdict keep(const Verdict& verdict);
  [[nodiscard]] std::optional<Verdict> ended() const;
  [[nodiscard]] bool all_heard();

  Channel& channel_;
  const Options options_;
  std::uint64_t load_ = 0;               // its number, among those of this prefix
  std::atomic<std::uint64_t> step_ = 0;  // the first whose verdict this rank does not know
  bool has_left_ = false;

  mutable std::mutex ended_mutex_;
  std::optional<Verdict> ended_;  // committed or failed
  bool is_lost_ = false;

  std::mutex heart_mutex_;
  bool beats_ = false;
  std::uint64_t beat_ = 0;
  Time last_beat_{};
  std::map<std::uint64_t, Seen> seen_;
  std::optional<std::uint64_t> done_;
  Time last_progress_{};
};

}  // namespace lading::ranks
