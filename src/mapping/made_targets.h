// The tensors that a mapping makes of a checkpoint's keys, where no model says which there are: for a checkpoint that
// is written anew. Pure.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lading/mapping.h"
#include "lading/result.h"
#include "lading/shape.h"
#include "mapping/expression.h"

namespace lading::mapping {

struct MadeTarget {
  std::string name;
  RuleKind by = RuleKind::kRename;  ///< kRename, kRenamePattern or kBuild
  Expression expression;
  Shape shape;
};

struct MadeTargets {
  std::vector<MadeTarget> targets;         ///< by name
  std::set<std::string_view> ignored;      ///< keys that a rule ignores
  std::set<std::string_view> left_behind;  ///< keys that a build rule's templates match, and that no rule reads
};

/// The variables of a build rule are bound by the keys that its templates match, and a stack without a count ends at
/// the highest number that a key has. `keys` are sorted, each once, and outlive the result; `shape_of` knows all of
/// them. Errors are about tensors that cannot be made, or are made twice; all else is found by resolve().
Result<MadeTargets, Errors> targets_of(const Mapping& mapping, const std::vector<std::string_view>& keys,
                                       const ShapeOf& shape_of);

}  // namespace lading::mapping
