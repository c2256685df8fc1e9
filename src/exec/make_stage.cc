#include "exec/make_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "device/cast.h"

namespace lading::exec {
namespace {

using device::Lane;
using layout::OwnedRun;
using plan::Transfer;

// Calls `act` for every run that the tile owns, until one fails.
template <class Act>
Result<void> for_runs(const DestinationState& state, const Tile& tile, Act&& act) {
  Result<void> result;
  state.runs.for_each(tile.begin_elem, tile.end_elem, [&](const OwnedRun& run) {
    if (result) result = act(run);
  });
  return result;
}

// The same for every run of a constant, by its place in the buffer.
template <class Act>
Result<void> for_places(const Transfer& transfer, Act&& act) {
  Result<void> result;
  for_each_run(transfer, [&](std::uint64_t begin_bytes) {
    result = act(begin_bytes);
    return result.has_value();
  });
  return result;
}

struct Constant {
  std::uint32_t destination = 0;
  const Transfer* transfer = nullptr;
};

std::vector<Constant> constants_of(const Load& load) {
  std::vector<Constant> constants;
  for (std::uint32_t d = 0; d < load.states.size(); ++d) {
    for (const Transfer& transfer : load.states[d]->destination->transfers) {
      if (transfer.is_fill() && transfer.elems() > 0) constants.push_back({d, &transfer});
    }
  }
  return constants;
}

Result<void> make_constant(const Load& load, const Lanes& lanes, const Constant& constant) {
  DestinationState& state = *load.states[constant.destination];
  Lane& lane = *lanes[state.device];
  const Transfer& transfer = *constant.transfer;
  const std::uint64_t constant_bits = device::bits_of(transfer.fill, state.dtype());
  const auto make_run = [&](std::uint64_t begin_bytes) -> Result<void> {
    LADING_TRY(lane.fill({state.memory.data + begin_bytes, transfer.run_elems, state.dtype(), constant_bits}));
    if (state.digest_at_end) return {};
    const std::uint64_t begin = begin_bytes * 8 / bits(state.dtype());
    return load.digest(lanes, {constant.destination, begin, begin + transfer.run_elems});
  };
  LADING_TRY(for_places(transfer, make_run));
  load.add_written(state, bytes_of_elems(transfer.elems(), state.dtype()));
  return {};
}

Result<void> sample(const Load& load, Lane& lane, const DestinationState& state, const Tile& tile) {
  const device::RandomKey key = device::random_key(load.inputs.plan.seed, state.root->name);
  return for_runs(state, tile, [&](const OwnedRun& run) {
    return lane.sample(
        {state.at_elem(run.buffer_begin), run.global_begin, run.elems, state.dtype(), state.sampling, key});
  });
}

Result<void> copy_value(Lane& lane, const DestinationState& state, const Tile& tile) {
  return for_runs(state, tile, [&](const OwnedRun& run) {
    return lane.move({state.value.data + bytes_of_elems(run.global_begin, state.value.dtype),
                      state.at_elem(run.buffer_begin),
                      run.elems,
                      state.value.dtype,
                      state.dtype(),
                      {}});
  });
}

// R20: the padding_idx row is zero, on whoever owns it.
Result<void> zero_row(Lane& lane, const DestinationState& state, const Tile& tile) {
  const Shape& shape = state.statement->shape;
  const std::uint64_t row_elems = *shape.num_elems() / shape[0];
  const std::uint64_t row_begin = *state.root->recipe.zero_row * row_elems;
  return for_runs(state, tile, [&](const OwnedRun& run) -> Result<void> {
    const std::uint64_t begin = std::max(run.global_begin, row_begin);
    const std::uint64_t end = std::min(run.global_begin + run.elems, row_begin + row_elems);
    if (begin >= end) return {};
    return lane.fill({state.at_elem(run.buffer_begin + begin - run.global_begin), end - begin, state.dtype(), 0});
  });
}

Result<void> make_tile(const Load& load, const Lanes& lanes, const Tile& tile) {
  DestinationState& state = *load.states[tile.destination];
  Lane& lane = *lanes[state.device];
  const std::uint64_t elems = tile.end_elem - tile.begin_elem;
  if (state.root->provenance == Provenance::kFill) {
    const std::uint64_t value_bits = device::bits_of(state.root->recipe.value, state.dtype());
    LADING_TRY(lane.fill({state.at_elem(tile.begin_elem), elems, state.dtype(), value_bits}));
  } else if (state.root->provenance == Provenance::kRandom) {
    LADING_TRY(sample(load, lane, state, tile));
  } else {
    LADING_TRY(copy_value(lane, state, tile));
  }
  if (state.root->recipe.zero_row) LADING_TRY(zero_row(lane, state, tile));
  load.add_written(state, bytes_of_elems(elems, state.dtype()));
  return load.digest(lanes, tile);
}

void make_tiles(const Load& load, const std::vector<Tile>& tiles) {
  load.crew.run(tiles.size(), [&](const Lanes& lanes, std::size_t i) { return make_tile(load, lanes, tiles[i]); });
}

}  // namespace

Error nobody_hands_in() {
  return Error(Code::kUsage, "the tensor's value is in no file, and the caller did not supply it")
      .by_rule("R6")
      .try_this("Pass the values file that lading skeleton -o writes (--values), or load from Python.");
}

namespace {

// Of a value that was deferred: now its bytes.
Result<HostValue> ask_for_value(const Load& load, const DestinationState& state) {
  if (!load.inputs.value) return fail(nobody_hands_in());
  const bool is_second = state.value.is_deferred();
  LADING_ASSIGN_OR_RETURN(const HostValue value, is_second
                                                     ? load.inputs.deferred_value(*state.root, state.rank, state.value)
                                                     : load.inputs.value(*state.root, state.rank));
  const auto expected_bytes = state.root->shape.size_bytes(value.dtype);
  const bool has_cast = value.dtype == state.dtype() || device::find_cast(value.dtype, state.dtype()) != nullptr;
  const bool may_defer = load.inputs.deferred_value && !is_second && state.root->provenance == Provenance::kHost;
  const bool is_there = !value.is_deferred() || may_defer;
  if (has_cast && is_there && expected_bytes == value.size_bytes) return value;
  return fail(Error(Code::kUsage, "the supplied value does not match the tensor")
                  .by_rule("R42")
                  .wanted(fmt::format("all of {} in {}, or in a dtype that can be cast to it", state.root->shape.text(),
                                      name(state.dtype())))
                  .got(fmt::format("{} bytes of {}", value.size_bytes, name(value.dtype)))
                  .try_this("Supply the whole tensor, in its shape and dtype."));
}

void fetch_value(const Load& load, DestinationState& state) {
  if (auto value = ask_for_value(load, state)) {
    state.value = *value;
  } else {
    load.crew.add_error(state.name(std::move(value).error()));
  }
}

// Asks for a value and writes it. Its bytes may be gone when the next one is asked for.
void fetch_and_write(const Load& load, std::uint32_t destination) {
  std::vector<Tile> tiles;
  fetch_value(load, *load.states[destination]);
  load.add_tiles(destination, tiles);
  make_tiles(load, tiles);
}

}  // namespace

void poison(const Load& load) {
  std::vector<Tile> tiles;
  for (std::uint32_t d = 0; d < load.states.size(); ++d) {
    if (load.states[d]->root->provenance != Provenance::kKept) {
      load.add_tiles(d, tiles);
    }
  }
  load.crew.run(tiles.size(), [&](const Lanes& lanes, std::size_t i) {
    const DestinationState& state = *load.states[tiles[i].destination];
    const std::uint64_t size_bytes = bytes_of_elems(tiles[i].end_elem - tiles[i].begin_elem, state.dtype());
    return lanes[state.device]->fill({state.at_elem(tiles[i].begin_elem), size_bytes, DType::kU8, kPoison});
  });
  const std::vector<Constant> constants = constants_of(load);
  load.crew.run(constants.size(), [&](const Lanes& lanes, std::size_t i) {
    const DestinationState& state = *load.states[constants[i].destination];
    const Transfer& transfer = *constants[i].transfer;
    return for_places(transfer, [&](std::uint64_t begin_bytes) {
      return lanes[state.device]->fill(
          {state.memory.data + begin_bytes, bytes_of_elems(transfer.run_elems, state.dtype()), DType::kU8, kPoison});
    });
  });
}

void fetch_values(const Load& load) {
  for (const auto& state : load.states) {
    if (state->root->provenance == Provenance::kHost) fetch_value(load, *state);
    if (state->root->provenance == Provenance::kCall && !load.inputs.value) fetch_value(load, *state);
  }
}

void make_deferred_values(const Load& load) {
  // After an error nothing is written any more, but the others are asked for: all that are missing are told.
  const auto is_cancelled = [&] { return load.options.cancelled != nullptr && *load.options.cancelled; };
  for (std::uint32_t d = 0; d < load.states.size() && !is_cancelled(); ++d) {
    DestinationState& state = *load.states[d];
    if (state.root->provenance != Provenance::kHost || !state.value.is_deferred()) continue;
    fetch_and_write(load, d);
    state.value = {};
    state.is_written_early = true;
  }
}

void make_values(const Load& load) {
  std::vector<Tile> tiles;
  for (std::uint32_t d = 0; d < load.states.size(); ++d) {
    DestinationState& state = *load.states[d];
    const Provenance provenance = state.root->provenance;
    const bool is_constant = provenance == Provenance::kFill && !state.made_by_transfers;
    const bool is_handed_in = provenance == Provenance::kHost && !state.is_written_early;
    if (is_constant || is_handed_in || provenance == Provenance::kRandom) {
      load.add_tiles(d, tiles);
    }
  }
  make_tiles(load, tiles);
  std::vector<Constant> constants = constants_of(load);
  std::erase_if(constants, [&](const Constant& one) { return load.states[one.destination]->memory.received; });
  load.crew.run(constants.size(),
                [&](const Lanes& lanes, std::size_t i) { return make_constant(load, lanes, constants[i]); });
}

void receive(const Load& load) {
  if (!load.inputs.receive || load.crew.stopped()) return;
  if (auto received = load.inputs.receive(); !received) {
    load.crew.add_error(std::move(received).error());
    return;
  }
  for (const auto& state : load.states) {
    if (state->memory.received) load.add_written(*state, state->expected_bytes);
  }
}

void run_calls(const Load& load) {
  const plan::Plan& plan = load.inputs.plan;
  // One after the other, because an input may be the output of a call before.
  for (const plan::StatementId statement : plan.call_order) {
    for (std::uint32_t d = 0; d < load.states.size() && !load.crew.stopped(); ++d) {
      if (load.states[d]->root == &plan.statements[statement]) fetch_and_write(load, d);
    }
  }
}

void digest_rest(const Load& load) {
  std::vector<Tile> tiles;
  for (std::uint32_t d = 0; d < load.states.size(); ++d) {
    const DestinationState& state = *load.states[d];
    if (state.digest_at_end || state.root->provenance == Provenance::kKept) {
      load.add_tiles(d, tiles);
    }
  }
  load.crew.run(tiles.size(), [&](const Lanes& lanes, std::size_t i) { return load.digest(lanes, tiles[i]); });
}

}  // namespace lading::exec
