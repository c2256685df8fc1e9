// Works one tensor out for one rank: pieces (what the tensor is made of) times region (what the rank holds)
// gives transfers (which bytes go where). The only place outside layout/ and mapping/ that makes an offset.
#pragma once

#include <cstdint>
#include <vector>

#include "base/inline_vector.h"
#include "lading/result.h"
#include "layout/layout.h"
#include "mapping/expression.h"
#include "mapping/pieces.h"
#include "planner/plan_types.h"

namespace lading::planner {

/// By Pieces::sources. Of most tensors: one.
using SourceNumbers = InlineVector<SourceId, 2>;

struct WorkInputs {
  const mapping::Pieces& pieces;
  const SourceNumbers& source_numbers;
  const IndexedVector<SourceId, Source>& sources;  ///< Plan::sources
  DType storage = DType::kF32;
};

/// Sorted by target. Refuses packed elements that would be cut inside a byte; the caller names the tensor.
Result<std::vector<Transfer>> work_out(const WorkInputs& inputs, const layout::Region& region);

/// Zeros for the elements of a buffer of its own that no tensor owns (R56). A flat parameter's gaps are its
/// framework's.
std::vector<Transfer> padding_fills(const layout::Region& region, DType storage);

}  // namespace lading::planner
