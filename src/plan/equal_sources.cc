#include "plan/equal_sources.h"

#include <algorithm>

namespace lading::plan {

std::vector<ByteLoop> loops_by_source(const Transfer& transfer) {
  std::vector<ByteLoop> loops;
  for (const ByteLoop& loop : transfer.loops) {
    if (loop.count > 1) loops.push_back(loop);
  }
  std::stable_sort(loops.begin(), loops.end(),
                   [](const ByteLoop& a, const ByteLoop& b) { return a.source_stride_bytes > b.source_stride_bytes; });
  return loops;
}

bool have_equal_sources(const Transfer& a, const Transfer& b) {
  if (a.source != b.source || a.source_begin_bytes != b.source_begin_bytes || a.run_elems != b.run_elems) return false;
  if (a.first_code != b.first_code && a.run_elems != 1) return false;  // one code is in the same byte all the same
  const std::vector<ByteLoop> left = loops_by_source(a);
  const std::vector<ByteLoop> right = loops_by_source(b);
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), [](const ByteLoop& x, const ByteLoop& y) {
    return x.count == y.count && x.source_stride_bytes == y.source_stride_bytes;
  });
}

}  // namespace lading::plan
