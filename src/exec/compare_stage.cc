#include "exec/compare_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "base/loop_nest.h"
#include "device/cast.h"
#include "device/quantized/code_bytes.h"
#include "device/quantized/dequantize.h"
#include "exec/step_scaling.h"
#include "io/writers.h"

namespace lading::exec {
namespace {

using device::Lane;

// The first element of a run that is not what is in the destination, after the cast.
struct Difference {
  std::uint64_t elem = 0;
  bool found = false;
};

struct Conversion {
  DType from;
  DType to;
  device::Cast cast;                                    // null where both are the same
  std::optional<device::Dequantizer> dequantizer = {};  // of a quantized source
};

// `elem`: of the source's tensor, where the run begins.
Difference compare_run(const device::CodeRun& run, std::uint64_t elem, const std::byte* target,
                       Conversion& conversion) {
  auto& [from, to, cast, dequantizer] = conversion;
  const std::uint64_t elems = run.count;
  constexpr std::uint64_t kAtOnce = 512;
  std::array<std::byte, kAtOnce * 8> made;
  for (std::uint64_t done = 0; done < elems; done += kAtOnce) {
    const std::uint64_t count = std::min(kAtOnce, elems - done);
    const std::byte* expected = run.source + bytes_of_elems(done, from);
    if (dequantizer) {
      device::CodeRun codes = device::behind(run, done);
      codes.count = count;
      dequantizer->run(codes, elem + done, made.data());
      expected = made.data();
    } else if (cast != nullptr) {
      cast(expected, made.data(), count);
      expected = made.data();
    }
    const std::byte* const found = target + bytes_of_elems(done, to);
    const std::uint64_t size_bytes = bytes_of_elems(count, to);
    if (std::memcmp(expected, found, size_bytes) == 0) continue;
    const auto byte =
        static_cast<std::uint64_t>(std::mismatch(expected, expected + size_bytes, found).first - expected);
    return {done + byte * 8 / bits(to), true};
  }
  return {};
}

// The place in the whole tensor of an element of its part.
std::uint64_t global_elem(const DestinationState& state, std::uint64_t buffer_elem) {
  std::uint64_t elem = buffer_elem;
  state.runs.for_each(buffer_elem, buffer_elem + 1, [&](const layout::OwnedRun& run) { elem = run.global_begin; });
  return elem;
}

// What it means that memory and a key of the checkpoint do not hold the same.
using Differs = Error (*)(const DestinationState& state, std::string_view key, std::uint64_t buffer_elem);

Error tie_differs(const DestinationState& state, std::string_view other, std::uint64_t buffer_elem) {
  return state.name(
      Error(Code::kValuesDiffer, "two keys of one tie have different values")
          .by_rule("R50")
          .wanted(fmt::format("the values of {}", state.root->expression.text()))
          .got(fmt::format("{} differs, first at element {}", other, global_elem(state, buffer_elem)))
          .try_this("Set \"ties\": \"untie\" to load both, or remove the wrong key from the checkpoint."));
}

Error file_differs(const DestinationState& state, std::string_view key, std::uint64_t buffer_elem) {
  return state.name(Error(Code::kFileChanged, "another program wrote to the file while lading read it")
                        .by_rule("R45")
                        .wanted(fmt::format("{} as loaded", key))
                        .got(fmt::format("other values, first at element {}", global_elem(state, buffer_elem)))
                        .try_this("Load again when no other program writes to the checkpoint."));
}

// Bytes of a destination as the host can see them: where they are, or fetched from a device, a window at a time.
class Sight {
 public:
  static constexpr std::uint64_t kWindowBytes = std::uint64_t{256} << 10;

  Sight(const Load& load, const Lanes& lanes, const DestinationState& state)
      : load_(load),
        lane_(*lanes[state.device]),
        state_(state),
        is_host_(load.devices[state.device].device->is_host()) {}

  /// Of at most kWindowBytes. Cheap where they follow what was asked for before.
  Result<const std::byte*> of(std::uint64_t begin_bytes, std::uint64_t size_bytes) {
    if (is_host_) return state_.memory.data + begin_bytes;
    if (begin_bytes < begin_bytes_ || begin_bytes + size_bytes > begin_bytes_ + window_.size()) {
      if (load_.crew.stopped()) return fail(Error(Code::kCancelled, "the comparison of ties was stopped early"));
      begin_bytes_ = begin_bytes;
      window_.resize(std::min(kWindowBytes, state_.destination->buffer_bytes - begin_bytes));
      LADING_TRY(lane_.fetch(state_.memory.data + begin_bytes, window_));
    }
    return window_.data() + (begin_bytes - begin_bytes_);
  }

 private:
  const Load& load_;
  Lane& lane_;
  const DestinationState& state_;
  bool is_host_;
  std::uint64_t begin_bytes_ = 0;
  std::vector<std::byte> window_;
};

// A key that is padded must have its padding where the other one has it.
Result<void> compare_constant(const Load& load, const Lanes& lanes, const DestinationState& state,
                              const plan::Transfer& constant) {
  Sight sight(load, lanes, state);
  const std::uint64_t expected = device::bits_of(constant.fill, state.dtype());
  const std::uint64_t width = std::max(1U, bits(state.dtype()) / 8);  // packed elements byte by byte: they are zero
  const std::uint64_t run_bytes = bytes_of_elems(constant.run_elems, state.dtype());
  Result<void> result;
  for_each_run(constant, [&](std::uint64_t begin_bytes) {
    for (std::uint64_t at = 0; at < run_bytes && result; at += width) {
      const auto found = sight.of(begin_bytes + at, width);
      if (!found) {
        result = fail(found.error());
      } else if (std::memcmp(*found, &expected, width) != 0) {
        result = fail(tie_differs(state, "padding", (begin_bytes + at) * 8 / bits(state.dtype())));
      }
    }
    return result.has_value();
  });
  return result;
}

// What a step has read, against the destination's memory.
class StepComparison {
 public:
  StepComparison(const Load& load, const Lanes& lanes, const ReadTask& task, const Step& step, Differs differs)
      : load_(load),
        state_(*load.states[step.destination]),
        source_(load.inputs.plan.sources[step.source]),
        sight_(load, lanes, state_),
        conversion_{
            .from = source_.dtype,
            .to = state_.dtype(),
            .cast = source_.dtype == state_.dtype() ? nullptr : device::find_cast(source_.dtype, state_.dtype())},
        scaling_(load, task, step),
        step_(step),
        differs_(differs) {
    if (scaling_.get() != nullptr)
      conversion_.dequantizer.emplace(*scaling_.get()->scales, source_.dtype, state_.dtype());
  }

  Result<void> run(const std::byte* read) {
    // In the destination's order, which may be in another device's memory; what was read is at hand in any order.
    std::vector<ByteLoop> loops = step_.loops;
    sort_by_target(loops);
    Result<void> result;
    lading::for_each_run(loops, [&](const RunOffsets& at) {
      result = compare(read, step_.source_begin_bytes + at.source, step_.target_begin_bytes + at.target);
      return result.has_value();
    });
    return result;
  }

 private:
  // One run, in pieces that fit in a window.
  Result<void> compare(const std::byte* read, std::uint64_t from, std::uint64_t to) {
    constexpr std::uint64_t kAtOnce = Sight::kWindowBytes / 8;
    for (std::uint64_t done = 0; done < step_.run_elems; done += kAtOnce) {
      const std::uint64_t elems = std::min(kAtOnce, step_.run_elems - done);
      const std::uint64_t begin_bytes = to + bytes_of_elems(done, conversion_.to);
      LADING_ASSIGN_OR_RETURN(const std::byte* const found,
                              sight_.of(begin_bytes, bytes_of_elems(elems, conversion_.to)));
      // Pieces are of whole bytes.
      const std::uint64_t done_bytes = done / 8 * source_.element_bits();
      const std::uint64_t first_elem = scaling_.get() == nullptr ? 0 : scaling_.elem_at(from) + step_.first_code + done;
      const Difference difference =
          compare_run({read + from + done_bytes, elems, step_.first_code}, first_elem, found, conversion_);
      if (!difference.found) continue;
      const std::uint64_t elem = begin_bytes * 8 / bits(conversion_.to) + difference.elem;
      return fail(differs_(state_, source_.key, elem).in_file(load_.inputs.plan.files[source_.file].name));
    }
    return {};
  }

  const Load& load_;
  const DestinationState& state_;
  const plan::Source& source_;
  Sight sight_;
  Conversion conversion_;
  StepScaling scaling_;
  const Step& step_;
  Differs differs_;
};

Result<void> compare_from(const Load& load, const Lanes& lanes, const io::File& file, const ReadTask& task,
                          Differs differs) {
  Lane& lane = *lanes[task.device];
  LADING_ASSIGN_OR_RETURN(const std::span<std::byte> buffer, lane.acquire_staging_buffer());
  std::byte* const read = place_in(buffer, task);
  LADING_TRY(read_rows(load, file, task, read, task.row_bytes));
  for (const Step& step : task.steps) LADING_TRY(StepComparison(load, lanes, task, step, differs).run(read));
  return lane.release_staging_buffer();
}

FileSet compare_with_files(const Load& load,
                           const std::function<bool(const plan::RankPlan&, const plan::Read&)>& wanted,
                           Differs differs) {
  const Batches batches = tasks_of(load, ReadUse::kCompare, wanted);
  begin_tasks(load, batches);
  return run_tasks(load, batches, [&](const Lanes& lanes, const io::File& file, const ReadTask& task) {
    return compare_from(load, lanes, file, task, differs);
  });
}

// Until every file's mtime is old enough, or one of them has changed: then nothing is left to wait for.
void wait_for_writes(const Load& load, const FileSet& files) {
  std::optional<io::File> youngest;
  std::chrono::milliseconds wait{0};
  for (const plan::FileId f : files) {
    auto file = load.inputs.open(f);
    if (!file) return;  // reading says why
    const std::chrono::milliseconds left = io::time_to_settle(file->identity());
    if (left <= wait) continue;
    wait = left;
    youngest = *std::move(file);
  }
  constexpr std::chrono::milliseconds kStep{50};
  const auto end = std::chrono::steady_clock::now() + wait;
  for (auto now = end - wait; now < end && !load.crew.stopped(); now = std::chrono::steady_clock::now()) {
    if (!youngest->check_unchanged()) return;
    load.crew.report_progress();
    std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(kStep, end - now));
  }
}

}  // namespace

FileSet compare_ties(const Load& load) {
  struct Constant {
    const DestinationState* state = nullptr;
    const plan::Transfer* transfer = nullptr;
  };
  std::vector<Constant> constants;
  for (const auto& state : load.states) {
    if (state->memory.received) continue;  // compared where it is read
    for (const auto& comparison : state->destination->comparisons) {
      for (const plan::Transfer& transfer : comparison) {
        if (transfer.is_fill()) constants.push_back({state.get(), &transfer});
      }
    }
  }
  load.crew.run(constants.size(), [&](const Lanes& lanes, std::size_t i) {
    return compare_constant(load, lanes, *constants[i].state, *constants[i].transfer);
  });
  return compare_with_files(
      load, [](const plan::RankPlan&, const plan::Read& read) { return read.is_comparison(); }, tie_differs);
}

void compare_again(const Load& load, const FileSet& files) {
  if (files.empty() || load.crew.stopped()) return;
  wait_for_writes(load, files);
  const auto is_in_files = [&](const plan::RankPlan& rank, const plan::Read& read) {
    return files.contains(read.file) || Scales::lie_in(files, load.inputs.plan, rank, read);
  };
  compare_with_files(load, is_in_files, file_differs);
}

}  // namespace lading::exec
