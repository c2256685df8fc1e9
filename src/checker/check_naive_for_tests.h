// For tests: what a plan means, element by element, with nothing clever in it. Slow, and shares no code with
// the checker. A plan is good or it is not; no reasons are given.
#pragma once

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checker/plan_types.h"

namespace lading::checker::naive {

using Indices = std::vector<std::uint64_t>;
inline Indices indices_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

/// An element's origin: of a source, or a constant by its bits.
struct Label {
  SourceId source;  ///< none: a constant
  std::uint64_t value = 0;

  friend auto operator<=>(const Label&, const Label&) = default;
};
inline Label constant(double fill) { return {SourceId::none(), std::bit_cast<std::uint64_t>(fill)}; }

struct Dense {
  Indices dims;
  std::vector<Label> labels;
};

inline std::uint64_t product(const Indices& dims) {
  std::uint64_t n = 1;
  for (const std::uint64_t d : dims) n *= d;
  return n;
}
inline Indices unravel(std::uint64_t flat, const Indices& dims) {
  Indices index(dims.size());
  for (std::size_t d = dims.size(); d-- > 0;) {
    index[d] = flat % dims[d];
    flat /= dims[d];
  }
  return index;
}
inline std::uint64_t ravel(const Indices& index, const Indices& dims) {
  std::uint64_t flat = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) flat = flat * dims[d] + index[d];
  return flat;
}
inline bool is_order(std::vector<std::size_t> order, std::size_t n) {
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] != i) return false;
  }
  return order.size() == n;
}

/// Fills a tensor by asking for each element.
template <class At>
Dense make(Indices dims, const At& at) {
  Dense dense{std::move(dims), {}};
  for (std::uint64_t i = 0; i < product(dense.dims); ++i) dense.labels.push_back(at(unravel(i, dense.dims)));
  return dense;
}
inline Label at(const Dense& dense, const Indices& index) { return dense.labels[ravel(index, dense.dims)]; }

inline std::uint32_t checkpoint_of(const Source& source, const Plan& plan) {
  return plan.files.has(source.file) ? plan.files[source.file].checkpoint : 0;
}

/// Bits of an element of the source's shape.
inline std::uint64_t width_of(const Source& source) {
  if (!source.scaling || !source.scaling->decoding.code) return bits(source.dtype);
  switch (*source.scaling->decoding.code) {
    case CodeType::kU2: return 2;
    case CodeType::kF4:
    case CodeType::kU4: return 4;
    case CodeType::kU8:
    case CodeType::kI8: break;
  }
  return 8;
}

/// The key of a source, or of none.
inline std::optional<std::string> key_of(SourceId source, const Plan& plan) {
  if (source.is_none()) return "";
  if (!plan.sources.has(source)) return std::nullopt;
  return plan.sources[source].key;
}

inline bool same_decoding(const Decoding& a, const Decoding& b) {
  return a.code == b.code && a.per_element == b.per_element && a.scale_dtype == b.scale_dtype && a.zero == b.zero &&
         a.zeros_dim == b.zeros_dim && a.tensor_scale == b.tensor_scale && a.scale_order == b.scale_order &&
         a.groups_dim == b.groups_dim;
}

/// A source that is dequantized as the expression says, or not at all.
inline std::optional<Dense> leaf(const mapping::Expression& e, std::uint32_t checkpoint, const Plan& plan) {
  for (const SourceId s : plan.sources.ids()) {
    const Source& source = plan.sources[s];
    if (source.key != e.key || checkpoint_of(source, plan) != checkpoint) continue;
    if (source.scaling.has_value() != (e.op == mapping::Op::kDequantize)) return std::nullopt;
    if (source.scaling) {
      const auto& [scales, block, product, decoding, zeros, tensor_scale, groups] = *source.scaling;
      if (key_of(scales, plan) != e.scales || key_of(zeros, plan) != e.zeros) return std::nullopt;
      if (key_of(tensor_scale, plan) != e.tensor_scale || !same_decoding(decoding, e.decoding)) return std::nullopt;
      if (key_of(groups, plan) != e.groups) return std::nullopt;
      if (indices_of(block) != indices_of(e.shape) || product != e.product) return std::nullopt;
    }
    std::uint64_t next = 0;
    return make(indices_of(source.shape), [&](const Indices&) { return Label{s, next++}; });
  }
  return std::nullopt;
}

// One function per operation, on parts that are evaluated already. There is at least one part. All operations but
// stack, permute and reshape have a dim that is one of the first part.
inline std::optional<Dense> concatenated(const mapping::Expression& e, const std::vector<Dense>& parts) {
  Indices dims = parts.front().dims;
  Indices starts;
  dims[e.dim] = 0;
  for (const Dense& part : parts) {
    if (part.dims.size() != dims.size()) return std::nullopt;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      if (d != e.dim && part.dims[d] != dims[d]) return std::nullopt;
    }
    starts.push_back(dims[e.dim]);
    dims[e.dim] += part.dims[e.dim];
  }
  return make(dims, [&](Indices i) {
    std::size_t p = parts.size() - 1;
    while (i[e.dim] < starts[p]) --p;
    i[e.dim] -= starts[p];
    return at(parts[p], i);
  });
}

inline std::optional<Dense> stacked(const mapping::Expression& e, const std::vector<Dense>& parts) {
  Indices dims = parts.front().dims;
  if (e.dim > dims.size()) return std::nullopt;
  for (const Dense& part : parts) {
    if (part.dims != parts.front().dims) return std::nullopt;
  }
  dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(e.dim), parts.size());
  return make(dims, [&](Indices i) {
    const std::uint64_t p = i[e.dim];
    i.erase(i.begin() + static_cast<std::ptrdiff_t>(e.dim));
    return at(parts[p], i);
  });
}

inline std::optional<Dense> sliced(const mapping::Expression& e, const Dense& part) {
  Indices dims = part.dims;
  if (e.begin > e.end || e.end > dims[e.dim]) return std::nullopt;
  dims[e.dim] = e.end - e.begin;
  return make(dims, [&](Indices i) {
    i[e.dim] += e.begin;
    return at(part, i);
  });
}

inline std::optional<Dense> permuted(const mapping::Expression& e, const Dense& part) {
  Indices dims = part.dims;
  if (!is_order(e.order, dims.size())) return std::nullopt;
  for (std::size_t d = 0; d < dims.size(); ++d) dims[d] = part.dims[e.order[d]];
  return make(dims, [&](const Indices& i) {
    Indices from(i.size());
    for (std::size_t d = 0; d < i.size(); ++d) from[e.order[d]] = i[d];
    return at(part, from);
  });
}

inline std::optional<Dense> rearranged(const mapping::Expression& e, const Dense& part) {
  if (product(e.factors) != part.dims[e.dim] || !is_order(e.order, e.factors.size())) return std::nullopt;
  Indices reordered;
  for (const std::size_t f : e.order) reordered.push_back(e.factors[f]);
  return make(part.dims, [&](Indices i) {
    const Indices digits = unravel(i[e.dim], reordered);
    Indices from(digits.size());
    for (std::size_t k = 0; k < digits.size(); ++k) from[e.order[k]] = digits[k];
    i[e.dim] = ravel(from, e.factors);
    return at(part, i);
  });
}

inline std::optional<Dense> reshaped(const mapping::Expression& e, const Dense& part) {
  if (product(indices_of(e.shape)) != part.labels.size()) return std::nullopt;
  return Dense{indices_of(e.shape), part.labels};
}

inline std::optional<Dense> padded(const mapping::Expression& e, const Dense& part) {
  Indices dims = part.dims;
  if (e.end < dims[e.dim]) return std::nullopt;
  dims[e.dim] = e.end;
  return make(dims, [&](const Indices& i) { return i[e.dim] < part.dims[e.dim] ? at(part, i) : constant(e.fill); });
}

inline std::optional<Dense> evaluate(const mapping::Expression& e, std::uint32_t checkpoint, const Plan& plan) {
  using mapping::Op;
  if (e.op == Op::kSource || e.op == Op::kDequantize) return leaf(e, checkpoint, plan);
  std::vector<Dense> parts;
  for (const auto& part : e.parts) {
    auto dense = evaluate(part, checkpoint, plan);
    if (!dense) return std::nullopt;
    parts.push_back(*std::move(dense));
  }
  if (parts.empty() || (parts.size() > 1 && e.op != Op::kConcat && e.op != Op::kStack)) return std::nullopt;
  const Dense& first = parts.front();
  const bool has_dim = e.dim < first.dims.size();
  if (!has_dim && e.op != Op::kPermute && e.op != Op::kReshape && e.op != Op::kStack) return std::nullopt;
  switch (e.op) {
    case Op::kConcat: return concatenated(e, parts);
    case Op::kStack: return stacked(e, parts);
    case Op::kSlice: return sliced(e, first);
    case Op::kPermute: return permuted(e, first);
    case Op::kRearrange: return rearranged(e, first);
    case Op::kReshape: return reshaped(e, first);
    case Op::kPad: return padded(e, first);
    case Op::kDequantize:
    case Op::kSource: break;
  }
  return std::nullopt;
}

/// Python's torch.chunk, on a list.
inline Indices chunk(const Indices& list, std::uint64_t pieces, std::uint64_t which) {
  const std::uint64_t size = (list.size() + pieces - 1) / pieces;
  Indices out;
  for (std::uint64_t i = 0; i < list.size(); ++i) {
    if (size > 0 && i / size == which) out.push_back(list[i]);
  }
  return out;
}

enum class Cell : std::uint8_t { kOwned, kZero, kForeign };
struct Memory {
  bool present = true;
  bool uneven = false;  // where that is refused
  bool is_flat = false;
  std::vector<Indices> lists;                         // indices per dim, before it is flattened
  std::vector<std::pair<Cell, std::uint64_t>> cells;  // with the row-major index of what is owned
};

/// Cuts a tensor for one rank, element by element, one cut after the other.
class Cutter {
 public:
  Cutter(const Shape& shape, const layout::Mesh& mesh, std::uint64_t rank)
      : dims_(indices_of(shape)), lists_(dims_.size()) {
    for (const auto& axis : mesh.axes()) sizes_.push_back(axis.size);
    coordinate_ = unravel(rank, sizes_);
    for (std::size_t d = 0; d < dims_.size(); ++d) {
      for (std::uint64_t i = 0; i < dims_[d]; ++i) lists_[d].push_back(i);
    }
  }

  /// False: no slot has this cut here.
  bool cut(const layout::Cut& cut) {
    Indices group;
    Indices seat;
    for (const std::size_t axis : cut.axes) {
      if (axis >= sizes_.size() || !used_.insert(axis).second) return false;
      group.push_back(sizes_[axis]);
      seat.push_back(coordinate_[axis]);
    }
    world_ = product(group);
    me_ = ravel(seat, group);
    if (cut.kind == layout::CutKind::kOwner) {
      if (flat_ && !shared_) return false;
      if (std::find(cut.owners.begin(), cut.owners.end(), me_) == cut.owners.end()) memory_.present = false;
      return true;
    }
    if (flat_ || (cut.kind == layout::CutKind::kFlatGroup && cut_before_)) return false;
    cut_before_ = true;
    shared_ = cut.kind == layout::CutKind::kFlatGroup;
    if (cut.kind == layout::CutKind::kFlat) return flatten(cut);
    return shared_ ? put_in_group(cut) : shard(cut);
  }

  Memory finish() {
    memory_.lists = lists_;
    memory_.is_flat = flat_.has_value();
    if (flat_) {
      memory_.cells = *flat_;
    } else {
      for (const std::uint64_t i : elements()) memory_.cells.emplace_back(Cell::kOwned, i);
    }
    return memory_;
  }

 private:
  using Cells = std::vector<std::pair<Cell, std::uint64_t>>;

  Indices elements() const {
    Indices local;
    for (const Indices& list : lists_) local.push_back(list.size());
    Indices all;
    for (std::uint64_t i = 0; i < product(local); ++i) {
      Indices index = unravel(i, local);
      for (std::size_t d = 0; d < dims_.size(); ++d) index[d] = lists_[d][index[d]];
      all.push_back(ravel(index, dims_));
    }
    return all;
  }

  bool shard(const layout::Cut& cut) {
    if (cut.dim >= dims_.size()) return false;
    Indices& list = lists_[cut.dim];
    const std::uint64_t factor = cut.kind == layout::CutKind::kShard ? 1 : cut.split_factor;
    if (factor == 0) return false;
    if (cut.kind == layout::CutKind::kShard && cut.even && list.size() % world_ != 0) memory_.uneven = true;
    Indices kept;
    for (std::uint64_t g = 0; g < factor; ++g) {
      for (const std::uint64_t i : chunk(chunk(list, factor, g), world_, me_)) kept.push_back(i);
    }
    list = kept;
    return true;
  }

  bool flatten(const layout::Cut& cut) {
    const std::uint64_t multiple = cut.pad_multiple == 0 ? world_ : cut.pad_multiple;
    if (multiple % world_ != 0) return false;
    Cells all;
    for (const std::uint64_t i : elements()) all.emplace_back(Cell::kOwned, i);
    while (all.size() % multiple != 0) all.emplace_back(Cell::kZero, 0);
    keep_part(all, all.size() / world_);
    return true;
  }

  bool put_in_group(const layout::Cut& cut) {
    Cells all(cut.group_elems, {Cell::kForeign, 0});
    const Indices mine = elements();
    if (cut.flat_parameter.empty() || cut.group_offset_elems + mine.size() > all.size()) return false;
    for (std::uint64_t i = 0; i < mine.size(); ++i) all[cut.group_offset_elems + i] = {Cell::kOwned, mine[i]};
    const std::uint64_t part = (all.size() + world_ - 1) / world_;
    all.resize(part * world_, {Cell::kForeign, 0});
    keep_part(all, part);
    return true;
  }

  void keep_part(const Cells& all, std::uint64_t part) {
    flat_.emplace(all.begin() + static_cast<std::ptrdiff_t>(part * me_),
                  all.begin() + static_cast<std::ptrdiff_t>(part * (me_ + 1)));
  }

  Indices dims_;
  std::vector<Indices> lists_;
  Indices sizes_;
  Indices coordinate_;
  std::set<std::size_t> used_;
  std::optional<Cells> flat_;
  bool cut_before_ = false;
  bool shared_ = false;
  std::uint64_t world_ = 1;  // of the cut at hand
  std::uint64_t me_ = 0;
  Memory memory_;
};

/// Nothing: the slot cannot be.
inline std::optional<Memory> memory_of(const Statement& statement, const layout::Slot& slot, const layout::Mesh& mesh,
                                       std::uint64_t rank) {
  Cutter cutter(statement.shape, mesh, rank);
  for (const layout::Cut& cut : slot.cuts) {
    if (!cutter.cut(cut)) return std::nullopt;
  }
  return cutter.finish();
}

}  // namespace lading::checker::naive
