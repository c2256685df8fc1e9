// The dtype contract of a model, before anything is planned: dtypes of every tensor, frozen subtrees, FSDP2 units.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lading/checkpoint.h"
#include "lading/document.h"
#include "lading/dtype.h"
#include "lading/export.h"
#include "lading/mapping.h"
#include "lading/policy.h"
#include "lading/refusal.h"
#include "lading/skeleton.h"

namespace lading {

struct DTypesRequest {
  std::optional<CheckpointRef> checkpoint = {};  ///< empty: no checkpoint is known
  std::optional<Given<model::Skeleton>> skeleton = {};
  std::optional<Given<mapping::Mapping>> mapping = {};
  std::optional<Given<policy::Policy>> policy = {};
  std::optional<policy::UnitWish> units = {};  ///< nothing: no units are proposed
  std::vector<std::string> ignored = {};       ///< parameters that no unit takes
};

struct TensorDTypes {
  std::string name;
  model::Kind kind = model::Kind::kParameter;
  std::optional<DType> checkpoint;
  DType storage = DType::kF32;
  DType compute = DType::kF32;
  std::string storage_rule;  ///< "R23" (docs/contract-coverage.md)
  std::string compute_rule;
  std::string reason;
  bool follows_tower = false;  ///< of a frozen subtree that is computed in one dtype (R28)
  /// The dtype that this frozen tensor must be cast to (R28); never set for a sharded tensor.
  std::optional<DType> cast;
};

struct DTypesReport {
  std::vector<TensorDTypes> tensors;         ///< sorted by name
  std::vector<std::string> frozen_subtrees;  ///< the outermost
  std::vector<policy::UnitProposal> units;   ///< in the order of the calls of fully_shard
  Errors warnings;
};

LADING_API Result<DTypesReport, Refusal> resolve_dtypes(const DTypesRequest& request);

}  // namespace lading
