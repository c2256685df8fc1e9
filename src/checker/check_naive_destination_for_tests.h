// For tests: whether a destination's transfers and comparisons are good, by brute force over elements and bits (see
// check_naive_for_tests.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "checker/check_naive_for_tests.h"

namespace lading::checker::naive {

class DestinationVerdict {
 public:
  DestinationVerdict(const Plan& plan, const Destination& destination) : plan_(plan), d_(destination) {}

  /// `root` and `memory` are those of the destination.
  bool good(const Statement& root, const Memory& memory) const {
    const std::uint64_t width = bits(root.storage);
    if (memory.cells.size() * width != d_.buffer_bytes * 8) return false;
    const auto owned = static_cast<std::uint64_t>(
        std::count_if(memory.cells.begin(), memory.cells.end(), [](const auto& c) { return c.first == Cell::kOwned; }));
    if (owned != d_.owned_elems) return false;
    std::map<std::uint64_t, Label> written;  // by the bit of the buffer where an element begins
    if (!transfers_good(d_.transfers, width, written)) return false;
    if (!comparisons_good(root, memory)) return false;
    Dense dense;
    if (root.provenance == Provenance::kFile) dense = *evaluate(root.expression, root.checkpoint, plan_);
    if (root.provenance == Provenance::kFill) {
      dense = make(indices_of(root.shape), [&](const Indices& i) {
        return constant(root.recipe.zero_row && i[0] == *root.recipe.zero_row ? 0 : root.recipe.value);
      });
    }
    std::map<std::uint64_t, Label> elems;
    std::map<std::uint64_t, Label> padding;
    for (std::uint64_t i = 0; i < memory.cells.size(); ++i) {
      const auto& [cell, index] = memory.cells[i];
      if (cell == Cell::kOwned && !dense.labels.empty()) elems[i * width] = dense.labels[index];
      if (cell == Cell::kZero) padding[i * width] = constant(0);
    }
    if (root.provenance == Provenance::kKept && written.empty()) return true;
    if (root.provenance == Provenance::kFill && written == padding) return true;
    elems.merge(padding);
    return written == elems;
  }

 private:
  bool comparisons_good(const Statement& root, const Memory& memory) const {
    if (d_.comparisons.size() != root.must_equal.size()) return false;
    for (std::size_t c = 0; c < d_.comparisons.size(); ++c) {
      const Dense dense = *evaluate(root.must_equal[c], root.checkpoint, plan_);
      std::map<std::uint64_t, Label> compared;
      std::map<std::uint64_t, Label> wanted;
      if (!transfers_good(d_.comparisons[c], bits(root.storage), compared)) return false;
      for (std::uint64_t i = 0; i < memory.cells.size(); ++i) {
        const auto& [cell, index] = memory.cells[i];
        if (cell == Cell::kOwned) wanted[i * bits(root.storage)] = dense.labels[index];
      }
      if (compared != wanted) return false;
    }
    return true;
  }

  bool transfers_good(const std::vector<Transfer>& transfers, std::uint64_t width,
                      std::map<std::uint64_t, Label>& written) const {
    for (std::size_t t = 0; t < transfers.size(); ++t) {
      if (t > 0 && transfers[t - 1].target_begin_bytes >= transfers[t].target_begin_bytes) return false;
      if (!transfer_good(transfers[t], width, written)) return false;
    }
    return true;
  }

  bool transfer_good(const Transfer& t, std::uint64_t width, std::map<std::uint64_t, Label>& written) const {
    if (!t.is_fill() && !plan_.sources.has(t.source)) return false;
    const Source* source = t.is_fill() ? nullptr : &plan_.sources[t.source];
    const std::uint64_t source_width = source == nullptr ? 8 : width_of(*source);
    const bool is_packed = source != nullptr && source->scaling && source->scaling->decoding.code;
    if (t.run_elems * width % 8 != 0) return false;
    if (source != nullptr && !is_packed && t.run_elems * source_width % 8 != 0) return false;
    if (is_packed ? t.first_code * source_width >= 8 : t.first_code != 0) return false;
    Indices counts;
    for (const auto& loop : t.loops) counts.push_back(loop.count);
    counts.push_back(t.run_elems);
    if (product(counts) == 0 || product(counts) * width > d_.buffer_bytes * 8) return false;  // or some twice
    for (std::uint64_t i = 0; i < product(counts); ++i) {
      const Indices index = unravel(i, counts);
      std::uint64_t target = t.target_begin_bytes * 8 + index.back() * width;
      std::uint64_t from = t.source_begin_bytes * 8 + (t.first_code + index.back()) * source_width;
      for (std::size_t k = 0; k < t.loops.size(); ++k) {
        target += index[k] * t.loops[k].target_stride_bytes * 8;
        from += index[k] * t.loops[k].source_stride_bytes * 8;
      }
      if (target % width != 0 || target + width > d_.buffer_bytes * 8) return false;
      Label label = constant(t.fill);
      if (source != nullptr) {
        if (from < source->bytes.begin * 8 || from + source_width > source->bytes.end * 8) return false;
        if ((from - source->bytes.begin * 8) % source_width != 0) return false;
        label = {t.source, (from - source->bytes.begin * 8) / source_width};
      }
      if (!written.emplace(target, label).second) return false;
    }
    return true;
  }

  const Plan& plan_;
  const Destination& d_;
};

}  // namespace lading::checker::naive
