#include "exec/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "device/slab.h"
#include "exec/crew.h"
#include "exec/load.h"
#include "exec/make_stage.h"
#include "exec/read_stage.h"
#include "exec/work.h"

namespace lading::exec {
namespace {

constexpr std::uint32_t kMostThreads = 16;

Result<device::SampleParameters> parameters_of(const model::Recipe& recipe) {
  device::RandomRecipe random{device::Distribution::kNormal, recipe.mean, recipe.std, recipe.low, recipe.high};
  if (recipe.kind == model::RecipeKind::kUniform) random.distribution = device::Distribution::kUniform;
  if (recipe.kind == model::RecipeKind::kTruncatedNormal) {
    random.distribution = device::Distribution::kTruncatedNormal;
  }
  return device::prepare_sample(random);
}

// Borrows the destinations, and refuses what cannot be filled before a byte is written.
void take_on(const Inputs& inputs, Outcome& outcome, WorkList& works, Crew& crew) {
  const plan::Plan& plan = inputs.plan;
  outcome.targets = targets_of(plan);
  std::uint64_t total_bytes = 0;
  std::uint64_t elsewhere = 0;
  for (const Target& target : outcome.targets) {
    const plan::RankPlan& rank = plan.ranks[target.rank];
    const plan::Destination& destination = rank.destinations[target.destination];
    const Memory memory = inputs.memory[target.rank][target.destination];
    auto work = std::make_unique<Work>(plan, rank, destination, memory);
    if (memory.size_bytes < destination.buffer_bytes || (memory.data == nullptr && destination.buffer_bytes > 0)) {
      crew.add_error(work->name(Error(Code::kUsage, "the memory that was handed in is too small")
                                    .wanted(fmt::format("{} bytes", destination.buffer_bytes))
                                    .got(fmt::format("{} bytes", memory.data == nullptr ? 0 : memory.size_bytes))));
    }
    if (destination.device != "cpu" && ++elsewhere == 1) {
      crew.add_error(work->name(Error(Code::kUsage, "this version fills host memory only; this is the first elsewhere")
                                    .by_rule("R34")
                                    .wanted("cpu")
                                    .got(destination.device)));
    }
    if (work->root->provenance == plan::Provenance::kRandom) {
      if (auto sampling = parameters_of(work->root->recipe)) {
        work->sampling = *sampling;
      } else {
        crew.add_error(work->name(std::move(sampling).error()));
      }
    }
    total_bytes += work->expected_bytes;
    device::prefer_huge_pages({memory.data, memory.size_bytes});
    works.push_back(std::move(work));
  }
  crew.set_total(total_bytes);
}

std::uint32_t thread_count(const plan::Plan& plan, const Options& options) {
  std::uint64_t staging_bytes = 0;
  for (const plan::RankPlan& rank : plan.ranks) staging_bytes += rank.staging_bytes;
  staging_bytes = std::min(staging_bytes, plan.budget_bytes);
  const std::uint64_t slots = std::max<std::uint64_t>(1, staging_bytes / options.slot_bytes);
  const std::uint32_t wanted =
      options.threads > 0 ? options.threads : std::clamp(std::thread::hardware_concurrency(), 1U, kMostThreads);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, slots));
}

void carry_out(const Load& load, device::Device& device, Outcome& outcome) {
  const Options& options = load.options;
  const device::LaneOptions lane_options{options.slot_bytes, static_cast<std::uint32_t>(load.works.size())};
  if (auto opened = load.crew.open(device, thread_count(load.inputs.plan, options), lane_options); !opened) {
    load.crew.add_error(std::move(opened).error());
    return;
  }
  outcome.threads = static_cast<std::uint32_t>(load.crew.lanes().size());
  outcome.staging_bytes = outcome.threads * options.slot_bytes;
  outcome.begun = true;
  if (options.poison == Poison::kOn) poison(load);
  read_files(load);
  make_values(load);
  compare_ties(load);
  run_calls(load);
  digest_rest(load);
}

void add_up(const WorkList& works, Crew& crew, Outcome& outcome) {
  outcome.errors = crew.take_errors();
  for (std::size_t t = 0; t < works.size(); ++t) {
    const Work& work = *works[t];
    TargetOutcome one{work.written_bytes, work.expected_bytes, {}};
    for (const auto& lane : crew.lanes()) one.digest += lane->digests()[t];
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

Outcome execute(const Inputs& inputs, const Options& options) {
  Outcome outcome;
  WorkList works;
  Crew crew(options);
  try {
    take_on(inputs, outcome, works, crew);
    io::Chooser chooser(options.choice);
    const std::unique_ptr<device::Device> device = device::host_device();
    const Load load{inputs, options, outcome.targets, works, crew, chooser};
    if (!crew.stopped()) carry_out(load, *device, outcome);
    outcome.notes = chooser.take_notes();
    add_up(works, crew, outcome);
  } catch (const std::bad_alloc&) {
    outcome.errors.add(out_of_memory());
  } catch (const std::exception& exception) {
    outcome.errors.add(Error(Code::kInternal, fmt::format("the load stopped: {}", exception.what())));
  }
  crew.report_progress();
  return outcome;
}

}  // namespace lading::exec
