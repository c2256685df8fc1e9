// What a write of a save plan does, held against the proved transfers. Internal to checker/save.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checker/plan_types.h"
#include "lading/byte_range.h"
#include "lading/error.h"
#include "plan/save/save_plan.h"

namespace lading::checker {

/// Why the write does not move elements between places that the transfer connects; nothing if it does. Both are about
/// `source`; the memory has `storage`.
[[nodiscard]] std::optional<Error> why_not_turned_round(const plan::Write& write, const Transfer& transfer,
                                                        const Source& source, DType storage);

/// The bytes of the file that a write covers, as stretches; nothing if they overflow, or do not end at bytes.
[[nodiscard]] std::optional<std::vector<ByteRange>> bytes_written(const plan::Write& write, const Source& source);

}  // namespace lading::checker
