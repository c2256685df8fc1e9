// Channel: the small messages of the ranks of one load, as a store of entries that all of them reach.
//
// Two ways to write: put() for an entry that has one writer, decide() for an entry that may have several, of which the
// first wins and all the others learn what it wrote. One way to read: wait(). Everything that ranks agree on is one
// decided entry; that is why it is the same everywhere (docs/adr/0006). Protocol stands in Coordinator, not here:
// backends stay small.
//
// Invariants: every call returns by its deadline and `answer_timeout` at the latest, not counting the time while the
// process was stopped. now() is the clock of all deadlines, it does not go back, and it belongs to the backend, so that
// a simulation owns time. Calls may come from several threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace lading::ranks {

/// Since an arbitrary beginning, of this rank's own clock.
using Time = std::chrono::nanoseconds;

/// Steady, since an arbitrary beginning.
[[nodiscard]] inline Time steady_now() {
  return std::chrono::duration_cast<Time>(std::chrono::steady_clock::now().time_since_epoch());
}

struct Reply {
  enum class State : std::uint8_t {
    kReady,   ///< the entries are there: `values`, in the order of the keys
    kAbsent,  ///< the store answered: not all of them are there
    kGone,    ///< no answer; whether an entry was written is not known. Nothing that comes later is of use
  };
  State state = State::kGone;
  std::vector<std::string> values;
  std::string why;  ///< kGone: in the backend's words

  [[nodiscard]] bool is_ready() const { return state == State::kReady; }
  [[nodiscard]] bool is_gone() const { return state == State::kGone; }
  static Reply ready(std::vector<std::string> values = {}) { return {State::kReady, std::move(values), {}}; }
  static Reply absent() { return {State::kAbsent, {}, {}}; }
  static Reply gone(std::string why) { return {State::kGone, {}, std::move(why)}; }
};

class Channel {
 public:
  Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  virtual ~Channel() = default;

  [[nodiscard]] virtual std::uint64_t rank() const = 0;
  [[nodiscard]] virtual std::uint64_t size() const = 0;
  [[nodiscard]] virtual Time now() const = 0;
  /// Whether the entries live and die with this rank's process: it then leaves last.
  [[nodiscard]] virtual bool is_host() const = 0;

  /// Writes an entry that only this rank writes, or that is the same whoever writes it. It may still be on its way when
  /// this returns.
  virtual Reply put(const std::string& key, const std::string& value) = 0;
  /// Writes an entry unless it is there; answers what stands there now.
  virtual Reply decide(const std::string& key, const std::string& value) = 0;
  /// Until all entries are there. A deadline that has passed asks once.
  virtual Reply wait(const std::vector<std::string>& keys, Time deadline) = 0;
};

}  // namespace lading::ranks
