// What happens to the ranks of a simulated load, and what was promised of it (docs/how-it-works/reliability.md).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "ranks/coordinator.h"
#include "ranks/sim_for_tests.h"

namespace lading::ranks::test {

using namespace std::chrono_literals;

enum class Kind : std::uint8_t {
  kNothing,
  kKilled,
  kStopped,  // for ever
  kStoppedAWhile,
  kShortStop,  // too short to be a failure
  kCutOff,     // for ever
  kCutOffAWhile,
  kError,    // while loading
  kRefusal,  // at the plan
  kDiffers,  // at the plan
  kNeverComes,
};

struct Fault {
  Kind kind = Kind::kNothing;
  std::uint64_t rank = 0;
  Time at{};
};

struct Scenario {
  WorldOptions world;
  Options options;
  std::vector<Time> arrives;
  std::vector<Time> loads;  ///< how long
  std::vector<Fault> faults;

  [[nodiscard]] bool has(std::uint64_t rank, Kind kind) const {
    return std::any_of(faults.begin(), faults.end(), [&](const Fault& f) { return f.rank == rank && f.kind == kind; });
  }
  [[nodiscard]] bool is_touched(std::uint64_t rank) const {
    return std::any_of(faults.begin(), faults.end(), [&](const Fault& f) { return f.rank == rank; });
  }
};

struct Outcome {
  bool has_ended = false;
  Time begun = kNever;       // all ranks had come, as this one saw it
  Time ended{};              // it knew how it ended
  bool is_complete = false;  // it had loaded everything
  bool is_well = false;
  bool is_lost = false;  // could not reach the store
  std::string text;
  RankSet at_fault;
};

struct Played {
  bool nobody_hangs = false;
  std::vector<Outcome> ranks;
};

template <class Made>
Played play(const Scenario& scenario) {
  World world(scenario.world);
  Played run;
  run.ranks.resize(scenario.world.size);
  const auto body = [&](std::uint64_t rank) {
    Outcome& out = run.ranks[rank];
    if (scenario.has(rank, Kind::kNeverComes)) {
      world.sleep(rank, 10min);
      out.has_ended = true;
      return;
    }
    world.sleep(rank, scenario.arrives[rank]);
    SimChannel channel(world, rank);
    Options options = scenario.options;
    options.process = fmt::format("process {}", rank);
    Made ranks(channel, options);
    const auto load = [&]() -> std::optional<Verdict> {
      if (auto begun = ranks.begin(); !begun) return std::move(begun).error();
      out.begun = world.now();
      const Failure refusal{Error(Code::kNotFound, "no such checkpoint"), Exit::kCheckpoint, false, {}};
      const std::string layout = scenario.has(rank, Kind::kDiffers) ? "b" : "a";
      auto agreed =
          ranks.agree("the plan", {{"layout", layout}}, scenario.has(rank, Kind::kRefusal) ? &refusal : nullptr);
      if (!agreed) return std::move(agreed).error();
      const Time end = world.now() + scenario.loads[rank];
      for (std::uint64_t done = 0; world.now() < end && !world.is_draining(); ++done) {
        world.sleep(rank, 300ms);
        if (auto polled = ranks.poll(done); !polled) return std::move(polled).error();
        for (const Fault& fault : scenario.faults) {
          if (fault.rank != rank || fault.kind != Kind::kError || world.now() < fault.at) continue;
          return ranks.fail({Error(Code::kReadFailed, "the disk is gone"), Exit::kLoad, true, {}});
        }
      }
      out.is_complete = !world.is_draining() && !world.is_dead(rank);
      if (auto committed = ranks.commit(); !committed) return std::move(committed).error();
      return {};
    };
    const auto failed = load();
    if (world.is_draining() || world.is_dead(rank)) return;
    out.has_ended = true;
    out.ended = world.now();
    out.is_well = !failed;
    if (failed) {
      out.text = failed->text();
      out.at_fault = failed->at_fault;
      out.is_lost = out.text.find("cannot be reached any more") != std::string::npos;
    }
    ranks.leave();
    world.process_ended(rank);
  };
  run.nobody_hangs = world.run(body, 20min);
  return run;
}

inline void set_fault(Scenario& scenario, const Fault& fault, Time while_long) {
  RankFaults& of_rank = scenario.world.faults[fault.rank];
  switch (fault.kind) {
    case Kind::kKilled: of_rank.killed = fault.at; break;
    case Kind::kStopped: of_rank.stopped = {fault.at, kNever}; break;
    case Kind::kStoppedAWhile:
    case Kind::kShortStop: of_rank.stopped = {fault.at, fault.at + while_long}; break;
    case Kind::kCutOff: of_rank.cut_off = {fault.at, kNever}; break;
    case Kind::kCutOffAWhile: of_rank.cut_off = {fault.at, fault.at + while_long}; break;
    default: break;
  }
  scenario.faults.push_back(fault);
}

inline Scenario make_scenario(std::uint64_t seed) {
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15U);
  const auto below = [&](std::uint64_t n) { return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random); };
  const auto until = [&](Time most) {
    return Time(static_cast<Time::rep>(below(static_cast<std::uint64_t>(most.count()) + 1)));
  };
  Scenario scenario;
  WorldOptions& world = scenario.world;
  world.seed = random();
  world.size = below(10) == 0 ? 17 + below(10) : 1 + below(7);
  world.max_delay = below(3) == 0 ? Time(300ms) : below(2) == 0 ? Time(20ms) : Time(1ms);
  world.loss = below(3) == 0 ? 0.03 : 0;
  if (below(3) == 0) world.host.reset();
  world.faults.resize(world.size);
  scenario.options.step_timeout = 30s;
  world.answer_timeout = scenario.options.deadline * 7 / 10;
  for (RankFaults& faults : world.faults) {
    faults.clock_rate = 0.98 + 0.04 * static_cast<double>(below(1000)) / 1000;
    faults.clock_offset = until(1000s);
  }
  for (std::uint64_t rank = 0; rank < world.size; ++rank) {
    scenario.arrives.push_back(until(below(4) == 0 ? Time(20s) : Time(1s)));
    scenario.loads.push_back(until(below(4) == 0 ? Time(15s) : Time(2s)));
  }
  // Most mistakes hide where a load begins and ends: half of the faults come there, as a run without faults has it.
  Time begun{};
  Time ended{};
  for (const Outcome& out : play<Coordinator>(scenario).ranks) {
    begun = std::max(begun, out.begun);
    ended = std::max(ended, out.ended);
  }
  const std::uint64_t count = below(3) == 0 ? 0 : 1 + (below(4) == 0 ? 1 : 0);
  for (std::uint64_t i = 0; i < count; ++i) {
    Fault fault;
    fault.kind = static_cast<Kind>(1 + below(10));
    fault.rank = below(3) == 0 ? 0 : below(world.size);
    const Time near = (below(3) == 0 ? begun : ended) + 3 * world.max_delay;
    fault.at = below(2) == 0 ? until(ended) : near - std::min(near, until(8 * world.max_delay));
    set_fault(scenario, fault, fault.kind == Kind::kShortStop ? until(2s) : 12s + until(20s));
  }
  return scenario;
}

// ---- what was promised

/// Whether anything happened to it that may keep it from hearing.
inline bool may_be_deaf(const Scenario& scenario, std::uint64_t rank) {
  return scenario.has(rank, Kind::kStopped) || scenario.has(rank, Kind::kStoppedAWhile) ||
         scenario.has(rank, Kind::kCutOff) || scenario.has(rank, Kind::kCutOffAWhile);
}

inline bool are_notes_safe(const Scenario& scenario) {
  if (!scenario.world.host) return true;
  const std::uint64_t host = *scenario.world.host;
  return scenario.world.faults[host].killed == kNever && !may_be_deaf(scenario, host);
}

inline std::string ending(const Played& run) {
  bool well = false;
  bool failed = false;
  bool lost = false;
  for (const Outcome& out : run.ranks) {
    if (!out.has_ended) continue;
    well = well || out.is_well;
    lost = lost || out.is_lost;
    failed = failed || (!out.is_well && !out.is_lost);
  }
  if (lost) return well ? "some cut off from the store, others well" : "some cut off from the store";
  return failed ? "all failed alike" : well ? "all well" : "nobody left";
}

/// From the fact to the end of every rank that still runs.
inline std::optional<Time> due(const Scenario& scenario, const Played& run) {
  if (scenario.faults.size() != 1) return {};
  const Fault& fault = scenario.faults.front();
  Time begun{};
  for (const Outcome& out : run.ranks) begun = std::max(begun, out.begun);
  const bool is_final = fault.kind == Kind::kKilled || fault.kind == Kind::kStopped || fault.kind == Kind::kError;
  if (!is_final || begun == kNever || fault.at < begun) return {};
  // Links take their time as well: each of the intervals that the deadline is made of has three questions and answers
  // in it.
  const Time links = 20 * scenario.world.max_delay + (scenario.world.loss > 0 ? 20 * scenario.world.resend : Time());
  return fault.at + scenario.options.deadline + links;
}

inline std::vector<std::string> broken_promises(const Scenario& scenario, const Played& run) {
  std::vector<std::string> broken;
  if (!run.nobody_hangs) {
    for (std::uint64_t rank = 0; rank < run.ranks.size(); ++rank) {
      const bool is_out = scenario.world.faults[rank].killed != kNever || scenario.has(rank, Kind::kStopped);
      if (!run.ranks[rank].has_ended && !is_out) broken.push_back(fmt::format("rank {} waits for ever", rank));
    }
  }
  bool any_well = false;
  bool all_complete = true;
  const Outcome* known = nullptr;
  for (const Outcome& out : run.ranks) {
    any_well = any_well || out.is_well;
    all_complete = all_complete && out.is_complete;
    if (out.has_ended && !out.is_lost && out.ended > Time::zero()) {
      if (known != nullptr && (known->is_well != out.is_well || known->text != out.text)) {
        broken.push_back(fmt::format("two verdicts: \"{}\" and \"{}\"", known->text, out.text));
      }
      known = &out;
    }
  }
  if (any_well && !all_complete) broken.emplace_back("a rank is well, though not all were complete");
  for (std::uint64_t rank = 0; rank < run.ranks.size(); ++rank) {
    const Outcome& out = run.ranks[rank];
    if (!out.has_ended) continue;
    if (out.is_lost && are_notes_safe(scenario) && !may_be_deaf(scenario, rank)) {
      broken.push_back(fmt::format("rank {} was cut off, though nothing happened to it or the store", rank));
    }
    if (const auto time = due(scenario, run); time && !scenario.is_touched(rank) && out.ended > *time && !out.is_well) {
      broken.push_back(
          fmt::format("rank {} ended {:.1f} s late", rank, std::chrono::duration<double>(out.ended - *time).count()));
    }
  }
  const bool is_quiet = std::all_of(scenario.faults.begin(), scenario.faults.end(),
                                    [](const Fault& f) { return f.kind == Kind::kShortStop; });
  if (is_quiet && known != nullptr && !known->is_well) broken.push_back("nothing happened, and yet: " + known->text);
  if (scenario.faults.size() == 1 && !is_quiet && known != nullptr && !known->is_well &&
      !known->at_fault.contains(scenario.faults.front().rank) && run.ranks.size() > 2 && are_notes_safe(scenario)) {
    broken.push_back("the wrong rank was named: " + known->text);
  }
  // A host that was away for longer than the others wait: it must not be alone with its success.
  if (scenario.world.host && any_well) {
    const std::uint64_t host = *scenario.world.host;
    const Span& stop = scenario.world.faults[host].stopped;
    const Outcome& out = run.ranks[host];
    const bool was_away = scenario.has(host, Kind::kStoppedAWhile) && stop.end <= out.ended && out.begun < stop.begin;
    for (const Outcome& other : run.ranks) {
      if (was_away && out.is_well && other.has_ended && other.is_lost) {
        broken.emplace_back("the rank that holds the store was stopped, and is well all the same");
        break;
      }
    }
  }
  return broken;
}

inline std::string describe(const Scenario& scenario, const Played& run) {
  const auto seconds = [](Time t) { return std::chrono::duration<double>(t).count(); };
  std::string out =
      fmt::format("{} ranks, delay {} s, loss {}, entries {}\n", scenario.world.size, seconds(scenario.world.max_delay),
                  scenario.world.loss, scenario.world.host ? "with rank 0" : "elsewhere");
  for (const Fault& fault : scenario.faults) {
    out += fmt::format("fault {} of rank {} at {:.4f}\n", static_cast<int>(fault.kind), fault.rank, seconds(fault.at));
  }
  for (std::uint64_t rank = 0; rank < run.ranks.size(); ++rank) {
    const Outcome& o = run.ranks[rank];
    out +=
        fmt::format("rank {}: arrives {:.4f}, loads {:.1f}, ended {:.4f}{}{}: {}\n", rank,
                    seconds(scenario.arrives[rank]), seconds(scenario.loads[rank]), seconds(o.ended),
                    o.is_complete ? ", complete" : "", o.has_ended ? "" : ", never ended", o.is_well ? "well" : o.text);
  }
  return out;
}

}  // namespace lading::ranks::test
