// Of sources that hold packed codes: their key's shape, the bytes of a run, and their scheme in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace lading::plan {

/// As in the file: without the dim of the codes of an element.
[[nodiscard]] Shape key_shape(const Source& source);

/// Whole bytes of the file that hold a run of the transfer. It must have a source.
[[nodiscard]] std::uint64_t run_bytes(const Transfer& transfer, const Source& source);

/// How a source is dequantized, in sentences; empty for one that is not.
[[nodiscard]] std::vector<std::string> scheme_words(const Plan& plan, const Source& source, DType storage);

}  // namespace lading::plan
