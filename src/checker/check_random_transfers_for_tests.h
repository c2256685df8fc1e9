// For tests: PlanMaker's second half, from elements to transfers and reads (see check_random_plan_for_tests.h).
#pragma once

#include "checker/check_random_plan_for_tests.h"

namespace lading::checker::naive {

inline void PlanMaker::fill_in(Destination& d, std::size_t slot_index, std::uint64_t rank) {
  const Statement& s = plan_.statements[d.statement];
  const Statement* root = &s;
  for (const Statement& other : plan_.statements) {
    if (s.provenance == Provenance::kAlias && other.name == s.alias_of) root = &other;
  }
  const layout::Slot& slot = s.placement.slots[slot_index];
  d.slot = slot.name;
  d.device = plan_.devices.of(rank).text();
  if (s.placement.device == layout::DeviceRule::kCpu) d.device = "cpu";
  for (const auto& cut : slot.cuts) {
    if (cut.kind == layout::CutKind::kFlatGroup) d.flat_parameter = cut.flat_parameter;
  }
  const Memory memory = *memory_of(s, slot, plan_.mesh, rank);
  d.buffer_bytes = memory.cells.size() * bits(s.storage) / 8;
  Dense dense;
  if (root->provenance == Provenance::kFile) dense = *evaluate(root->expression, root->checkpoint, plan_);
  if (root->provenance == Provenance::kFill && once_in(2)) {
    dense = make(indices_of(s.shape), [&](const Indices& i) {
      return constant(root->recipe.zero_row && i[0] == *root->recipe.zero_row ? 0 : root->recipe.value);
    });
  }
  std::vector<std::pair<std::uint64_t, Label>> cells;
  for (std::uint64_t i = 0; i < memory.cells.size(); ++i) {
    const auto& [cell, index] = memory.cells[i];
    if (cell == Cell::kOwned) ++d.owned_elems;
    if (cell == Cell::kOwned && !dense.labels.empty()) cells.emplace_back(i, dense.labels[index]);
    if (cell == Cell::kZero && root->provenance != Provenance::kKept) cells.emplace_back(i, constant(0));
  }
  d.transfers = transfers_for(cells, s.storage);
  for (const auto& other : root->must_equal) {
    const Dense wanted = *evaluate(other, root->checkpoint, plan_);
    std::vector<std::pair<std::uint64_t, Label>> compared;
    for (std::uint64_t i = 0; i < memory.cells.size(); ++i) {
      const auto& [cell, index] = memory.cells[i];
      if (cell == Cell::kOwned) compared.emplace_back(i, wanted.labels[index]);
    }
    d.comparisons.push_back(transfers_for(compared, s.storage));
  }
}

// Transfers that are alike and evenly spaced, neighbours or not, become loops.
inline std::vector<Transfer> looped(const std::vector<Transfer>& list) {
  std::vector<Transfer> out;
  std::vector<bool> taken(list.size(), false);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (taken[i]) continue;
    Transfer transfer = list[i];
    ByteLoop loop;
    for (std::size_t j = i + 1; j < list.size(); ++j) {
      const Transfer& next = list[j];
      if (taken[j] || next.source != transfer.source || next.run_elems != transfer.run_elems ||
          next.loops != transfer.loops || constant(next.fill) != constant(transfer.fill) ||
          next.first_code != transfer.first_code || next.source_begin_bytes < transfer.source_begin_bytes) {
        continue;
      }
      const std::uint64_t source_step = next.source_begin_bytes - transfer.source_begin_bytes;
      const std::uint64_t target_step = next.target_begin_bytes - transfer.target_begin_bytes;
      if (loop.count == 1) {
        loop.source_stride_bytes = source_step;
        loop.target_stride_bytes = target_step;
      } else if (source_step != loop.count * loop.source_stride_bytes ||
                 target_step != loop.count * loop.target_stride_bytes) {
        continue;
      }
      ++loop.count;
      taken[j] = true;
    }
    if (loop.count > 1) transfer.loops.insert(transfer.loops.begin(), loop);
    out.push_back(std::move(transfer));
  }
  return out;
}

// Runs first; then loops over them, and loops over these.
inline std::vector<Transfer> PlanMaker::transfers_for(const std::vector<std::pair<std::uint64_t, Label>>& cells,
                                                      DType storage) {
  const std::uint64_t width = bits(storage) / 8;
  std::vector<Transfer> list;
  const std::uint64_t longest = once_in(4) ? 1 + below(3) : ~std::uint64_t{0};
  std::uint64_t next = 0;  // the element of its source behind those of the last transfer
  for (const auto& [at, label] : cells) {
    const bool fill = label.source.is_none();
    if (!list.empty() && list.back().source == label.source && list.back().run_elems < longest) {
      Transfer& last = list.back();
      const bool follows = last.target_begin_bytes + last.run_elems * width == at * width &&
                           (fill ? constant(last.fill) == label : next == label.value);
      if (follows) {
        ++last.run_elems;
        ++next;
        continue;
      }
    }
    Transfer transfer;
    transfer.source = label.source;
    if (!fill) {
      const Source& source = plan_.sources[label.source];
      const std::uint64_t bit = source.bytes.begin * 8 + label.value * width_of(source);
      transfer.source_begin_bytes = bit / 8;
      transfer.first_code = static_cast<std::uint8_t>(bit % 8 / width_of(source));
    }
    transfer.target_begin_bytes = at * width;
    transfer.run_elems = 1;
    if (fill) transfer.fill = std::bit_cast<double>(label.value);
    next = label.value + 1;
    list.push_back(transfer);
  }
  for (std::uint64_t round = below(4); round > 0; --round) list = looped(list);
  return list;
}

}  // namespace lading::checker::naive
