// The tensors of a checkpoint as a new checkpoint shall have them: quantized weights as ordinary ones, under new names,
// without some of them. Pure.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/catalog.h"
#include "lading/name_pattern.h"
#include "lading/result.h"
#include "mapping/mapping.h"
#include "model/skeleton.h"

namespace lading::planner {

struct ConvertedDTypes {
  std::optional<DType> asked = {};   ///< of everything that is floating; nothing: as in the files
  DType dequantized = DType::kBF16;  ///< of what has another dtype in the files
};

/// Names are those of the checkpoint as if it were not quantized: "x.weight" for "x.qweight".
struct KeyChanges {
  /// A name or a pattern, and the new name: the first "*" of that is what the first "*" of the pattern matched, and so
  /// on. An exact name goes before patterns.
  std::vector<std::pair<NamePattern, std::string>> renames = {};
  std::vector<NamePattern> drop = {};            ///< left out
  std::vector<NamePattern> keep = {};            ///< with a mapping: what it does not reach keeps its name
  std::optional<mapping::Mapping> mapping = {};  ///< its tensors are the new ones; not with renames
};

struct ConvertedModel {
  model::Skeleton skeleton;
  mapping::Mapping mapping;          ///< from the checkpoint's keys to the skeleton's
  std::vector<std::string> dropped;  ///< names, sorted
  bool was_quantized = false;        ///< the checkpoint has weights that are dequantized, or dropped
};

/// Each tensor is memory of its dtype, which a load would fill. Refuses what cannot be dequantized.
Result<ConvertedModel, Errors> converted_model(const checkpoint::Catalog& catalog, const ConvertedDTypes& dtypes,
                                               const KeyChanges& changes = {});

}  // namespace lading::planner
