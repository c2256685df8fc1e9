// Scales and zero points of quantized sources (R48): that a rank reads those of everything that it takes. Internal to
// the room.
#pragma once

#include <optional>

#include "base/inline_vector.h"
#include "checker/plan_types.h"
#include "lading/result.h"

namespace lading::checker {

/// The sources of a read of scales and the bytes of each: of scales, of zero points if there are any, and of the whole
/// scale of the tensor if there is one. Nothing: the read is of a source without scales.
struct ScaleBytes {
  struct Part {
    SourceId source;
    ByteRange bytes;
  };
  InlineVector<Part, 2> parts;
};
[[nodiscard]] std::optional<ScaleBytes> scale_bytes(const Plan& plan, const ScaleRead& read);

/// The transfers must lie in their sources, and the scalings of these must hold.
[[nodiscard]] Errors check_scale_reads(const Plan& plan, const RankPlan& rank);

/// Batches of reads, if there are any, have each read in one of them; and the rank may have the memory that its scales
/// take at most. These are in memory as they are stored, and a byte for each zero point: while a batch runs, those that
/// it or the next one needs, and those that are needed both before and after. The reads must hold.
[[nodiscard]] Errors check_scale_memory(const Plan& plan, const RankPlan& rank);

}  // namespace lading::checker
