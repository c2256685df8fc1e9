#include "plan/equal_sources.h"

#include <algorithm>

namespace lading::plan {

std::vector<TransferLoop> loops_by_source(const Transfer& transfer) {
  std::vector<TransferLoop> loops;
  for (const TransferLoop& loop : transfer.loops) {
    if (loop.count > 1) loops.push_back(loop);
  }
  std::stable_sort(loops.begin(), loops.end(), [](const TransferLoop& a, const TransferLoop& b) {
    return a.source_stride_bytes > b.source_stride_bytes;
  });
  return loops;
}

bool have_equal_sources(const Transfer& a, const Transfer& b) {
  if (a.source != b.source || a.source_begin_bytes != b.source_begin_bytes || a.run_elems != b.run_elems) return false;
  const std::vector<TransferLoop> left = loops_by_source(a);
  const std::vector<TransferLoop> right = loops_by_source(b);
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const TransferLoop& x, const TransferLoop& y) {
                      return x.count == y.count && x.source_stride_bytes == y.source_stride_bytes;
                    });
}

}  // namespace lading::plan
