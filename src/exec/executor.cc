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
#include "exec/destination_state.h"
#include "exec/devices.h"
#include "exec/load.h"
#include "exec/make_stage.h"
#include "exec/read_stage.h"
#include "exec/sample_parameters.h"

namespace lading::exec {
namespace {

Error load_was_cancelled() {
  return Error(Code::kCancelled, "the load was cancelled, and the destinations are incomplete")
      .try_this("Load again before you use the model.");
}

Error load_is_out_of_memory() {
  return Error(Code::kOutOfMemory, "the host has no memory left for the load, and the destinations are incomplete")
      .try_this("Free memory, or set a smaller \"budget_bytes\" for staging buffers.");
}

// Two destinations in one place would be written twice and both be called complete. Those of a flat
// parameter share its buffer.
void refuse_overlaps(const DestinationStates& states, Crew& crew) {
  std::vector<const DestinationState*> in_order;
  for (const auto& state : states) {
    if (state->destination->buffer_bytes > 0) in_order.push_back(state.get());
  }
  std::sort(in_order.begin(), in_order.end(), [](const DestinationState* a, const DestinationState* b) {
    return a->device != b->device ? a->device < b->device : std::less<>()(a->memory.data, b->memory.data);
  });
  const auto is_one_flat_parameter = [](const DestinationState& a, const DestinationState& b) {
    return a.rank == b.rank && !a.destination->flat_parameter.empty() &&
           a.destination->flat_parameter == b.destination->flat_parameter &&
           a.destination->slot == b.destination->slot && a.memory.data == b.memory.data;
  };
  for (std::size_t i = 1; i < in_order.size(); ++i) {
    const DestinationState& before = *in_order[i - 1];
    const DestinationState& state = *in_order[i];
    if (state.device != before.device) continue;
    if (!std::less<>()(state.memory.data, before.memory.data + before.destination->buffer_bytes)) continue;
    if (is_one_flat_parameter(before, state)) continue;
    crew.add_error(
        state.name(Error(Code::kUsage, "the given memory overlaps the memory of another tensor")
                       .by_rule("R11")
                       .wanted("separate memory")
                       .got(fmt::format("bytes of {} on rank {}", quote(before.statement->name), before.rank))
                       .try_this("Give each tensor its own memory.")));
  }
}

// Other values are made where they are needed, and a shared buffer holds more than one tensor.
void refuse_to_receive(const Inputs& inputs, const DestinationState& state, Crew& crew) {
  if (state.root->provenance != Provenance::kFile || !state.destination->flat_parameter.empty()) {
    crew.add_error(state.name(
        Error(Code::kUsage, "only a tensor from a file, in separate memory, can be received from another rank")
            .try_this("Let every rank load it: remove its owner.")));
  } else if (!inputs.receive) {
    crew.add_error(state.name(
        Error(Code::kUsage, "the tensor has an owner on another rank, but the request has no receive function")
            .try_this("Set LoadRequest::receive, or remove the owner.")));
  }
}

// Borrows the destinations, and refuses what cannot be filled before a byte is written.
void take_on(const Inputs& inputs, Outcome& outcome, DestinationStates& states, Crew& crew) {
  const plan::Plan& plan = inputs.plan;
  outcome.destinations = destinations_of(plan);
  std::uint64_t total_bytes = 0;
  for (const DestinationRef& ref : outcome.destinations) {
    const plan::RankPlan& rank = plan.ranks[ref.rank];
    const plan::Destination& destination = rank.destinations[ref.destination];
    const DestinationMemory memory = inputs.memory[ref.rank][ref.destination.number()];
    auto state = std::make_unique<DestinationState>(plan, rank, destination, memory);
    if (memory.size_bytes < destination.buffer_bytes || (memory.data == nullptr && destination.buffer_bytes > 0)) {
      crew.add_error(state->name(Error(Code::kUsage, "the given memory is too small")
                                     .wanted(fmt::format("{} bytes", destination.buffer_bytes))
                                     .got(fmt::format("{} bytes", memory.data == nullptr ? 0 : memory.size_bytes))
                                     .try_this("Allocate at least size_bytes of the destination.")));
    }
    if (state->root->provenance == Provenance::kRandom) {
      if (auto sampling = sample_parameters(state->root->recipe)) {
        state->sampling = *sampling;
      } else {
        crew.add_error(state->name(std::move(sampling).error()));
      }
    }
    if (memory.received) refuse_to_receive(inputs, *state, crew);
    state->digest_at_end = memory.received;
    total_bytes += state->expected_bytes;
    states.push_back(std::move(state));
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
  const Batches batches = begin_files(load);
  if (load.crew.stopped()) return;
  outcome.begun = true;
  if (load.options.poison == Poison::kOn) poison(load);
  make_deferred_values(load);
  FileSet doubtful = read_files(load, batches);
  make_values(load);
  doubtful.merge(compare_ties(load));
  compare_again(load, doubtful);
  for (std::string& note : load.scales.notes(load.inputs.plan)) outcome.notes.push_back(std::move(note));
  if (!doubtful.empty()) {
    outcome.notes.push_back(fmt::format(
        "another program may have been writing to {} file(s) when the load began; lading read them twice and compared",
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

void add_up(const DestinationStates& states, Crew& crew, const device::DigestAccounts& accounts, Outcome& outcome) {
  outcome.errors = crew.take_errors();
  for (std::size_t d = 0; d < states.size(); ++d) {
    const DestinationState& state = *states[d];
    DestinationOutcome one{state.written_bytes, state.expected_bytes, {}};
    one.digest = accounts.of(d);
    if (outcome.errors.empty() && !one.complete()) {
      outcome.errors.add(state.name(Error(Code::kIncomplete, "some bytes of the tensor were not written exactly once")
                                        .by_rule("R11")
                                        .wanted(fmt::format("{} bytes", one.expected_bytes))
                                        .got(fmt::format("{} bytes", one.written_bytes))
                                        .try_this("Please report this bug in lading, and load again.")));
    }
    outcome.outcomes.push_back(one);
  }
  outcome.read_bytes = crew.read_bytes();
}

}  // namespace

std::vector<DestinationRef> destinations_of(const plan::Plan& plan) {
  std::vector<DestinationRef> destinations;
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (const plan::DestinationId d : plan.ranks[rank].destinations.ids()) destinations.push_back({rank, d});
  }
  return destinations;
}

Outcome execute(const Inputs& inputs, const Options& options) {
  Outcome outcome;
  DestinationStates states;
  std::vector<LoadDevice> devices;  // outlive the crew's lanes
  Crew crew({options.cancelled, &options.progress, load_was_cancelled, load_is_out_of_memory, "the load"});
  try {
    take_on(inputs, outcome, states, crew);
    const Clock::time_point begin = Clock::now();
    devices = open_devices(states, crew);
    outcome.opening_seconds = seconds_since(begin);
    refuse_overlaps(states, crew);
    io::Chooser chooser(options.method);
    device::DigestAccounts accounts(states.size());
    if (!crew.stopped()) {
      for (const auto& state : states) {
        if (!devices[state->device].device->is_host()) continue;
        device::prefer_huge_pages({state->memory.data, state->memory.size_bytes});
      }
      const std::uint32_t threads = fit_lanes(inputs.plan, options, devices);
      for (LoadDevice& device : devices) {
        if (options.verify == Verify::kDigest) device.lane_options.accounts = &accounts;
      }
      Scales scales;
      carry_out({inputs, options, states, devices, crew, chooser, scales}, threads, outcome);
      close(crew, outcome);
    }
    for (std::string& note : chooser.take_notes()) outcome.notes.push_back(std::move(note));
    for (const LoadDevice& device : devices) {
      if (device.device == nullptr) continue;
      for (std::string& note : device.device->take_notes()) outcome.notes.push_back(std::move(note));
    }
    add_up(states, crew, accounts, outcome);
  } catch (const std::bad_alloc&) {
    outcome.errors.add(load_is_out_of_memory());
  } catch (const std::exception& exception) {
    outcome.errors.add(Error(Code::kInternal, fmt::format("the load stopped: {}", exception.what())));
  }
  crew.report_progress();
  return outcome;
}

}  // namespace lading::exec
