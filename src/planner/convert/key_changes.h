// What a conversion makes of a checkpoint's names: tensors are renamed, left out, or made by a mapping. Pure. Internal
// to the room.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/catalog.h"
#include "lading/name_pattern.h"
#include "lading/result.h"
#include "model/skeleton.h"
#include "planner/convert/converted_model.h"

namespace lading::planner {

/// A tensor that the checkpoint holds, as one that is not quantized would hold it.
struct PlainTensor {
  model::Tensor tensor;
  std::vector<std::string> keys;  ///< of the checkpoint, that belong to it and to no other: scales, zero points, …
};

struct PlainTensors {
  std::vector<PlainTensor> list;
  std::set<std::string, std::less<>> parts;  ///< keys that are part of a quantized weight, and no tensor by themselves
};

/// Every name, new or old, is accounted for: patterns that match nothing, names that two tensors would get, and tensors
/// that a mapping does not reach are refused.
Result<ConvertedModel, Errors> change_keys(const checkpoint::Catalog& catalog, PlainTensors plain,
                                           const ConvertedDTypes& dtypes, const KeyChanges& changes);

}  // namespace lading::planner
