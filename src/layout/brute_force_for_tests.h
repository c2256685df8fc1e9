// For tests only: cuts as one would do them by hand, with lists of indices. Shares nothing with region.cc.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "layout/layout.h"

namespace lading::layout::brute_force {

using Indices = std::vector<std::uint64_t>;

/// torch.chunk as its documentation has it: pieces of ceil(n / pieces) until nothing is left.
inline std::vector<Indices> chunks(const Indices& list, std::uint64_t pieces) {
  const std::size_t size = (list.size() + pieces - 1) / pieces;
  std::vector<Indices> out;
  for (std::size_t i = 0; i < list.size(); i += size) {
    out.emplace_back(list.begin() + static_cast<std::ptrdiff_t>(i),
                     list.begin() + static_cast<std::ptrdiff_t>(std::min(i + size, list.size())));
  }
  out.resize(pieces);
  return out;
}

/// A rank's place in the mesh, by counting up to it.
inline Indices coordinate(const Mesh& mesh, std::uint64_t rank) {
  Indices at(mesh.axes().size(), 0);
  for (; rank > 0; --rank) {
    for (std::size_t i = at.size(); i-- > 0;) {
      if (++at[i] < mesh.axes()[i].size) break;
      at[i] = 0;
    }
  }
  return at;
}

inline Seat seat(const Cut& cut, const Mesh& mesh, const Indices& at) {
  Seat seat;
  for (const std::size_t axis : cut.axes) {
    seat = {seat.index * mesh.axes()[axis].size + at[axis], seat.size * mesh.axes()[axis].size};
  }
  return seat;
}

/// The memory of a rank: for each element the global row-major index that it holds, nothing for padding.
using Memory = std::vector<std::optional<std::uint64_t>>;

inline Indices product(const Shape& global, const std::vector<Indices>& dims) {
  Indices flat = {0};
  for (std::size_t d = 0; d < dims.size(); ++d) {
    Indices next;
    for (const std::uint64_t prefix : flat) {
      for (const std::uint64_t i : dims[d]) next.push_back(prefix * global[d] + i);
    }
    flat = std::move(next);
  }
  return flat;
}

/// Nothing: the rank does not have the tensor.
inline std::optional<Memory> memory(const Shape& global, const std::vector<Cut>& cuts, const Mesh& mesh,
                                    std::uint64_t rank) {
  std::vector<Indices> dims;
  for (const std::uint64_t extent : global) {
    dims.emplace_back(extent);
    std::iota(dims.back().begin(), dims.back().end(), std::uint64_t{0});
  }
  const Indices at = coordinate(mesh, rank);
  for (const Cut& cut : cuts) {
    const auto [r, world] = seat(cut, mesh, at);
    if (cut.kind == CutKind::kShard) {
      dims[cut.dim] = chunks(dims[cut.dim], world)[r];
    } else if (cut.kind == CutKind::kStridedShard) {
      Indices taken;
      for (const Indices& group : chunks(dims[cut.dim], cut.split_factor)) {
        const Indices part = chunks(group, world)[r];
        taken.insert(taken.end(), part.begin(), part.end());
      }
      dims[cut.dim] = taken;
    } else if (cut.kind == CutKind::kOwner) {
      bool owned = false;
      for (const std::uint64_t owner : cut.owners) owned = owned || owner == r;
      if (!owned) return std::nullopt;
    }
  }
  const Indices flat = product(global, dims);
  Memory whole(flat.begin(), flat.end());
  if (cuts.empty()) return whole;
  const Cut& last = cuts.back();
  if (last.kind != CutKind::kFlat && last.kind != CutKind::kFlatGroup) return whole;

  const auto [r, world] = seat(last, mesh, at);
  if (last.kind == CutKind::kFlatGroup) {
    Memory shared(last.group_elems);
    for (std::size_t i = 0; i < whole.size(); ++i) shared[last.group_offset_elems + i] = whole[i];
    whole = shared;
  }
  const std::uint64_t multiple = last.kind == CutKind::kFlatGroup || last.pad_multiple == 0 ? world : last.pad_multiple;
  while (whole.size() % multiple != 0) whole.emplace_back();
  const std::size_t part = whole.size() / world;
  return Memory(whole.begin() + static_cast<std::ptrdiff_t>(r * part),
                whole.begin() + static_cast<std::ptrdiff_t>((r + 1) * part));
}

/// The same from a Region.
inline std::optional<Memory> memory(const Region& region, const Shape& global) {
  if (!region.present) return std::nullopt;
  std::vector<Indices> dims;
  for (const std::vector<Run>& runs : region.runs) {
    dims.emplace_back();
    for (const Run& run : runs) {
      if (run.size == 0 || run.local_begin != dims.back().size()) return std::nullopt;
      for (std::uint64_t i = 0; i < run.size; ++i) dims.back().push_back(run.begin + i);
    }
  }
  const Indices flat = product(global, dims);
  if (!region.flat) return Memory(flat.begin(), flat.end());
  Memory buffer(region.buffer_elems);
  for (std::uint64_t i = region.flat->begin; i < region.flat->end; ++i) {
    buffer.at(region.flat->buffer_begin + (i - region.flat->begin)) = flat.at(i);
  }
  return buffer;
}

}  // namespace lading::layout::brute_force
