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
Result<void> for_runs(const Work& work, const Tile& tile, Act&& act) {
  Result<void> result;
  work.runs.for_each(tile.begin_elem, tile.end_elem, [&](const OwnedRun& run) {
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
  std::uint32_t target = 0;
  const Transfer* transfer = nullptr;
};

std::vector<Constant> constants_of(const Load& load) {
  std::vector<Constant> constants;
  for (std::uint32_t t = 0; t < load.works.size(); ++t) {
    for (const Transfer& transfer : load.works[t]->destination->transfers) {
      if (transfer.is_fill() && transfer.elems() > 0) constants.push_back({t, &transfer});
    }
  }
  return constants;
}

Result<void> make_constant(const Load& load, const Lanes& lanes, const Constant& constant) {
  Work& work = *load.works[constant.target];
  Lane& lane = *lanes[work.device];
  const Transfer& transfer = *constant.transfer;
  const std::uint64_t constant_bits = device::bits_of(transfer.fill, work.dtype());
  const auto make_run = [&](std::uint64_t begin_bytes) -> Result<void> {
    LADING_TRY(lane.fill({work.memory.data + begin_bytes, transfer.run_elems, work.dtype(), constant_bits}));
    if (work.digest_at_end) return {};
    const std::uint64_t begin = begin_bytes * 8 / bits(work.dtype());
    return load.digest(lanes, {constant.target, begin, begin + transfer.run_elems});
  };
  LADING_TRY(for_places(transfer, make_run));
  load.add_written(work, bytes_of_elems(transfer.elems(), work.dtype()));
  return {};
}

Result<void> sample(const Load& load, Lane& lane, const Work& work, const Tile& tile) {
  const device::RandomKey key = device::random_key(load.inputs.plan.seed, work.root->name);
  return for_runs(work, tile, [&](const OwnedRun& run) {
    return lane.sample({work.at_elem(run.buffer_begin), run.global_begin, run.elems, work.dtype(), work.sampling, key});
  });
}

Result<void> copy_value(Lane& lane, const Work& work, const Tile& tile) {
  return for_runs(work, tile, [&](const OwnedRun& run) {
    return lane.move({work.value.data + bytes_of_elems(run.global_begin, work.value.dtype),
                      work.at_elem(run.buffer_begin),
                      run.elems,
                      work.value.dtype,
                      work.dtype(),
                      {}});
  });
}

// R20: the padding_idx row is zero, on whoever owns it.
Result<void> zero_row(Lane& lane, const Work& work, const Tile& tile) {
  const Shape& shape = work.statement->shape;
  const std::uint64_t row_elems = *shape.num_elems() / shape[0];
  const std::uint64_t row_begin = *work.root->recipe.zero_row * row_elems;
  return for_runs(work, tile, [&](const OwnedRun& run) -> Result<void> {
    const std::uint64_t begin = std::max(run.global_begin, row_begin);
    const std::uint64_t end = std::min(run.global_begin + run.elems, row_begin + row_elems);
    if (begin >= end) return {};
    return lane.fill({work.at_elem(run.buffer_begin + begin - run.global_begin), end - begin, work.dtype(), 0});
  });
}

Result<void> make_tile(const Load& load, const Lanes& lanes, const Tile& tile) {
  Work& work = *load.works[tile.target];
  Lane& lane = *lanes[work.device];
  const std::uint64_t elems = tile.end_elem - tile.begin_elem;
  if (work.root->provenance == Provenance::kFill) {
    const std::uint64_t value_bits = device::bits_of(work.root->recipe.value, work.dtype());
    LADING_TRY(lane.fill({work.at_elem(tile.begin_elem), elems, work.dtype(), value_bits}));
  } else if (work.root->provenance == Provenance::kRandom) {
    LADING_TRY(sample(load, lane, work, tile));
  } else {
    LADING_TRY(copy_value(lane, work, tile));
  }
  if (work.root->recipe.zero_row) LADING_TRY(zero_row(lane, work, tile));
  load.add_written(work, bytes_of_elems(elems, work.dtype()));
  return load.digest(lanes, tile);
}

void make_tiles(const Load& load, const std::vector<Tile>& tiles) {
  load.crew.run(tiles.size(), [&](const Lanes& lanes, std::size_t i) { return make_tile(load, lanes, tiles[i]); });
}

}  // namespace

Error nobody_hands_in() {
  return Error(Code::kUsage, "nobody hands in the value of a tensor that no file holds")
      .by_rule("R6")
      .try_this(
          "bring the file of values that lading skeleton -o writes (--values), or load through a front that has it");
}

namespace {

Result<HostValue> ask_for_value(const Load& load, const Work& work) {
  if (!load.inputs.value) return fail(nobody_hands_in());
  LADING_ASSIGN_OR_RETURN(const HostValue value, load.inputs.value(*work.root, work.rank));
  const auto expected_bytes = work.root->shape.size_bytes(value.dtype);
  const bool has_cast = value.dtype == work.dtype() || device::find_cast(value.dtype, work.dtype()) != nullptr;
  const bool is_there = value.data != nullptr || value.size_bytes == 0;
  if (has_cast && is_there && expected_bytes == value.size_bytes) return value;
  return fail(Error(Code::kUsage, "the value that was handed in does not fit")
                  .by_rule("R42")
                  .wanted(fmt::format("all of {} in {}, or what can be cast to it", work.root->shape.text(),
                                      name(work.dtype())))
                  .got(fmt::format("{} bytes of {}", value.size_bytes, name(value.dtype))));
}

void fetch_value(const Load& load, Work& work) {
  if (auto value = ask_for_value(load, work)) {
    work.value = *value;
  } else {
    load.crew.add_error(work.name(std::move(value).error()));
  }
}

}  // namespace

void poison(const Load& load) {
  std::vector<Tile> tiles;
  for (std::uint32_t t = 0; t < load.works.size(); ++t) {
    if (load.works[t]->root->provenance != Provenance::kKept) {
      load.add_tiles(t, tiles);
    }
  }
  load.crew.run(tiles.size(), [&](const Lanes& lanes, std::size_t i) {
    const Work& work = *load.works[tiles[i].target];
    const std::uint64_t size_bytes = bytes_of_elems(tiles[i].end_elem - tiles[i].begin_elem, work.dtype());
    return lanes[work.device]->fill({work.at_elem(tiles[i].begin_elem), size_bytes, DType::kU8, kPoison});
  });
  const std::vector<Constant> constants = constants_of(load);
  load.crew.run(constants.size(), [&](const Lanes& lanes, std::size_t i) {
    const Work& work = *load.works[constants[i].target];
    const Transfer& transfer = *constants[i].transfer;
    return for_places(transfer, [&](std::uint64_t begin_bytes) {
      return lanes[work.device]->fill(
          {work.memory.data + begin_bytes, bytes_of_elems(transfer.run_elems, work.dtype()), DType::kU8, kPoison});
    });
  });
}

void fetch_values(const Load& load) {
  for (const auto& work : load.works) {
    if (work->root->provenance == Provenance::kHost) fetch_value(load, *work);
    if (work->root->provenance == Provenance::kCall && !load.inputs.value) fetch_value(load, *work);
  }
}

void make_values(const Load& load) {
  std::vector<Tile> tiles;
  for (std::uint32_t t = 0; t < load.works.size(); ++t) {
    Work& work = *load.works[t];
    const Provenance provenance = work.root->provenance;
    const bool is_constant = provenance == Provenance::kFill && !work.made_by_transfers;
    if (is_constant || provenance == Provenance::kHost || provenance == Provenance::kRandom) {
      load.add_tiles(t, tiles);
    }
  }
  make_tiles(load, tiles);
  std::vector<Constant> constants = constants_of(load);
  std::erase_if(constants, [&](const Constant& one) { return load.works[one.target]->memory.received; });
  load.crew.run(constants.size(),
                [&](const Lanes& lanes, std::size_t i) { return make_constant(load, lanes, constants[i]); });
}

void receive(const Load& load) {
  if (!load.inputs.receive || load.crew.stopped()) return;
  if (auto received = load.inputs.receive(); !received) {
    load.crew.add_error(std::move(received).error());
    return;
  }
  for (const auto& work : load.works) {
    if (work->memory.received) load.add_written(*work, work->expected_bytes);
  }
}

void run_calls(const Load& load) {
  const plan::Plan& plan = load.inputs.plan;
  // One after the other, because an input may be the output of a call before.
  for (const plan::StatementId statement : plan.call_order) {
    std::vector<Tile> tiles;
    for (std::uint32_t t = 0; t < load.works.size() && !load.crew.stopped(); ++t) {
      if (load.works[t]->root != &plan.statements[statement]) continue;
      fetch_value(load, *load.works[t]);
      load.add_tiles(t, tiles);
    }
    make_tiles(load, tiles);
  }
}

void digest_rest(const Load& load) {
  std::vector<Tile> tiles;
  for (std::uint32_t t = 0; t < load.works.size(); ++t) {
    const Work& work = *load.works[t];
    if (work.digest_at_end || work.root->provenance == Provenance::kKept) {
      load.add_tiles(t, tiles);
    }
  }
  load.crew.run(tiles.size(), [&](const Lanes& lanes, std::size_t i) { return load.digest(lanes, tiles[i]); });
}

}  // namespace lading::exec
