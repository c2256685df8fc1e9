// The tensors of a checkpoint as a new checkpoint shall have them: quantized weights as ordinary ones. Pure.
#pragma once

#include <optional>

#include "checkpoint/catalog.h"
#include "lading/result.h"
#include "model/skeleton.h"

namespace lading::planner {

struct ConvertedDTypes {
  std::optional<DType> asked = {};   ///< of everything that is floating; nothing: as in the files
  DType dequantized = DType::kBF16;  ///< of what has another dtype in the files
};

/// Each tensor is memory of its dtype, which a load would fill. Refuses what cannot be dequantized.
Result<model::Skeleton, Errors> converted_model(const checkpoint::Catalog& catalog, const ConvertedDTypes& dtypes);

}  // namespace lading::planner
