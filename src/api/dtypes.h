// The dtype contract of a model, before anything is planned: dtypes of every tensor, frozen subtrees, FSDP2 units.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lading/dtype.h"
#include "lading/plan.h"
#include "policy/policy.h"

namespace lading {

struct DTypesRequest {
  /// Of it: checkpoint ("": none is known), root, revision, trailing_bytes, skeleton, mapping, policy.
  PlanRequest plan;
  std::optional<policy::UnitWish> units;  ///< nothing: no units are proposed
  std::vector<std::string> ignored;       ///< parameters that no unit takes
};

struct TensorDTypes {
  std::string name;
  std::string_view kind;
  std::optional<DType> checkpoint;
  DType storage = DType::kF32;
  DType compute = DType::kF32;
  std::string_view storage_rule;
  std::string_view compute_rule;
  std::string reason;
  bool follows_tower = false;  ///< of a frozen subtree that is computed in one dtype (R28)
  /// Memory of a frozen tower that is to be cast to the compute dtype (R28); never a part of a sharded tensor.
  std::optional<DType> cast;
};

struct DTypesReport {
  std::vector<TensorDTypes> tensors;         ///< sorted by name
  std::vector<std::string> frozen_subtrees;  ///< the outermost
  std::vector<policy::UnitProposal> units;   ///< in the order of the calls of fully_shard
  Errors warnings;
};

Result<DTypesReport, PlanRefusal> resolve_dtypes(const DTypesRequest& request);

}  // namespace lading
