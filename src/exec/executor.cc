#include "exec/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <new>
#include <utility>

#include "base/text.h"
#include "device/slab.h"
#include "exec/compare_stage.h"
#include "exec/crew.h"
#include "exec/devices.h"
#include "exec/load.h"
#include "exec/make_stage.h"
#include "exec/read_stage.h"
#include "exec/work.h"

namespace lading::exec {
namespace {

Result<device::SampleParameters> parameters_of(const model::Recipe& recipe) {
  device::RandomRecipe random{device::Distribution::kNormal, recipe.mean, recipe.std, recipe.low, recipe.high};
  if (recipe.kind == model::RecipeKind::kUniform) random.distribution = device::Distribution::kUniform;
  if (recipe.kind == model::RecipeKind::kTruncatedNormal) {
    random.distribution = device::Distribution::kTruncatedNormal;
  }
  return device::prepare_sample(random);
}

// Two destinations in one place would be written twice and both be called complete. Those of a flat parameter share its
// buffer.
void refuse_overlaps(const WorkList& works, Crew& crew) {
  std::vector<const Work*> in_order;
  for (const auto& work : works) {
    if (work->destination->buffer_bytes > 0) in_order.push_back(work.get());
  }
  std::sort(in_order.begin(), in_order.end(), [](const Work* a, const Work* b) {
    return a->device != b->device ? a->device < b->device : std::less<>()(a->memory.data, b->memory.data);
  });
  const auto is_one_unit = [](const Work& a, const Work& b) {
    return a.rank == b.rank && !a.destination->flat_parameter.empty() &&
           a.destination->flat_parameter == b.destination->flat_parameter &&
           a.destination->slot == b.destination->slot && a.memory.data == b.memory.data;
  };
  for (std::size_t i = 1; i < in_order.size(); ++i) {
    const Work& before = *in_order[i - 1];
    const Work& work = *in_order[i];
    if (work.device != before.device) continue;
    if (!std::less<>()(work.memory.data, before.memory.data + before.destination->buffer_bytes)) continue;
    if (is_one_unit(before, work)) continue;
    crew.add_error(
        work.name(Error(Code::kUsage, "the memory that was handed in overlaps that of another tensor")
                      .by_rule("R11")
                      .wanted("memory of its own")
                      .got(fmt::format("bytes of {} on rank {}", quote(before.statement->name), before.rank))));
  }
}

// Other values are made where they are needed, and a shared buffer holds more than one tensor.
void refuse_to_receive(const Inputs& inputs, const Work& work, Crew& crew) {
  if (work.root->provenance != Provenance::kFile || !work.destination->flat_parameter.empty()) {
    crew.add_error(work.name(Error(Code::kUsage, "only a tensor from a file, in memory of its own, can be received")
                                 .try_this("let every rank load it (owners)")));
  } else if (!inputs.receive) {
    crew.add_error(work.name(Error(Code::kUsage, "a tensor shall be received, and nobody receives")));
  }
}

// Borrows the destinations, and refuses what cannot be filled before a byte is written.
void take_on(const Inputs& inputs, Outcome& outcome, WorkList& works, Crew& crew) {
  const plan::Plan& plan = inputs.plan;
  outcome.targets = targets_of(plan);
  std::uint64_t total_bytes = 0;
  for (const Target& target : outcome.targets) {
    const plan::RankPlan& rank = plan.ranks[target.rank];
    const plan::Destination& destination = rank.destinations[target.destination];
    const Memory memory = inputs.memory[target.rank][target.destination.number()];
    auto work = std::make_unique<Work>(plan, rank, destination, memory);
    if (memory.size_bytes < destination.buffer_bytes || (memory.data == nullptr && destination.buffer_bytes > 0)) {
      crew.add_error(work->name(Error(Code::kUsage, "the memory that was handed in is too small")
                                    .wanted(fmt::format("{} bytes", destination.buffer_bytes))
                                    .got(fmt::format("{} bytes", memory.data == nullptr ? 0 : memory.size_bytes))));
    }
    if (work->root->provenance == Provenance::kRandom) {
      if (auto sampling = parameters_of(work->root->recipe)) {
        work->sampling = *sampling;
      } else {
        crew.add_error(work->name(std::move(sampling).error()));
      }
    }
    if (memory.received) refuse_to_receive(inputs, *work, crew);
    work->digest_at_end = memory.received;
    total_bytes += work->expected_bytes;
    works.push_back(std::move(work));
  }
  crew.set_total(total_bytes);
}

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void close(Crew& crew, Outcome& outcome) {
  const Clock::time_point begin = Clock::now();
  crew.close();
  outcome.closing_seconds += seconds_since(begin);
}

void carry_out(const Load& load, std::uint32_t threads, Outcome& outcome) {
  const Clock::time_point begin = Clock::now();
  if (auto opened = load.crew.open(load.devices, threads); !opened) {
    load.crew.add_error(std::move(opened).error());
    return;
  }
  outcome.opening_seconds += seconds_since(begin);
  outcome.threads = static_cast<std::uint32_t>(load.crew.threads());
  outcome.staging_bytes = outcome.threads * lane_bytes(load.devices);
  fetch_values(load);
  if (load.crew.stopped()) return;
  outcome.begun = true;
  if (load.options.poison == Poison::kOn) poison(load);
  FileSet doubtful = read_files(load);
  make_values(load);
  doubtful.merge(compare_ties(load));
  compare_again(load, doubtful);
  if (!doubtful.empty()) {
    outcome.notes.push_back(fmt::format(
        "somebody may have been writing to {} file(s) when the load began: they were read twice and compared",
        doubtful.size()));
  }
  receive(load);
  run_calls(load);
  digest_rest(load);
  close(load.crew, outcome);
  for (const LoadDevice& device : load.devices) {
    if (load.crew.stopped()) return;
    auto collected = device.device->collect_digests();
    if (!collected) load.crew.add_error(std::move(collected).error());
  }
}

void add_up(const WorkList& works, Crew& crew, const device::DigestAccounts& accounts, Outcome& outcome) {
  outcome.errors = crew.take_errors();
  for (std::size_t t = 0; t < works.size(); ++t) {
    const Work& work = *works[t];
    TargetOutcome one{work.written_bytes, work.expected_bytes, {}};
    one.digest = accounts.of(t);
    if (outcome.errors.empty() && !one.complete()) {
      outcome.errors.add(work.name(Error(Code::kIncomplete, "a tensor has bytes that nobody wrote, or that two did")
                                       .by_rule("R11")
                                       .wanted(fmt::format("{} bytes", one.expected_bytes))
                                       .got(fmt::format("{} bytes", one.written_bytes))));
    }
    outcome.outcomes.push_back(one);
  }
  outcome.read_bytes = crew.read_bytes();
}

}  // namespace

std::vector<Target> targets_of(const plan::Plan& plan) {
  std::vector<Target> targets;
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (const plan::DestinationId d : plan.ranks[rank].destinations.ids()) targets.push_back({rank, d});
  }
  return targets;
}

Outcome execute(const Inputs& inputs, const Options& options) {
  Outcome outcome;
  WorkList works;
  std::vector<LoadDevice> devices;  // outlive the crew's lanes
  Crew crew(options);
  try {
    take_on(inputs, outcome, works, crew);
    const Clock::time_point begin = Clock::now();
    devices = open_devices(works, crew);
    outcome.opening_seconds = seconds_since(begin);
    refuse_overlaps(works, crew);
    io::Chooser chooser(options.choice);
    device::DigestAccounts accounts(works.size());
    if (!crew.stopped()) {
      for (const auto& work : works) {
        if (!devices[work->device].device->is_host()) continue;
        device::prefer_huge_pages({work->memory.data, work->memory.size_bytes});
      }
      const std::uint32_t threads = fit_lanes(inputs.plan, options, devices);
      for (LoadDevice& device : devices) {
        if (options.verify == Verify::kDigest) device.lane_options.accounts = &accounts;
      }
      carry_out({inputs, options, outcome.targets, works, devices, crew, chooser}, threads, outcome);
      close(crew, outcome);
    }
    for (std::string& note : chooser.take_notes()) outcome.notes.push_back(std::move(note));
    for (const LoadDevice& device : devices) {
      if (device.device == nullptr) continue;
      for (std::string& note : device.device->take_notes()) outcome.notes.push_back(std::move(note));
    }
    add_up(works, crew, accounts, outcome);
  } catch (const std::bad_alloc&) {
    outcome.errors.add(out_of_memory());
  } catch (const std::exception& exception) {
    outcome.errors.add(Error(Code::kInternal, fmt::format("the load stopped: {}", exception.what())));
  }
  crew.report_progress();
  return outcome;
}

}  // namespace lading::exec
