// The plan of a save: what the new checkpoint holds, in which files, and who writes what of it. Pure, deterministic.
//
// The keys are those of a base checkpoint, or those that the caller lists. The mapping is that of a load: from keys to
// the model's tensors. So the new checkpoint is planned as if it were loaded into the memory that the model has, and
// that plan is read backwards.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/catalog.h"
#include "lading/result.h"
#include "lading/save_options.h"
#include "layout/layout.h"
#include "mapping/mapping.h"
#include "model/skeleton.h"
#include "plan/save/save_plan.h"

namespace lading::planner {

struct SaveInputs {
  const checkpoint::Catalog* base = nullptr;  ///< null: Options::keys
  std::string base_index_name;                ///< "" if the base is one file
  const model::Skeleton& skeleton;  ///< dtypes are those of the memory; recipes and presence are of no account
  const layout::Layout& layout;
  const mapping::Mapping& mapping;
  const saving::Options& options;
};

/// A key of the base whose bytes are taken over. One rank has them in host memory, as a tensor of the plan.
struct KeptKey {
  std::string key;
  std::string tensor;  ///< a name that no tensor of the model has
  DType dtype = DType::kF32;
  Shape shape;
};

struct SaveDecisions {
  plan::SavePlan plan;
  std::vector<std::string> left_out;   ///< tensors of the model, by Options::leave_out
  std::vector<std::string> not_saved;  ///< tensors of the model that are in no checkpoint, such as derived buffers
  std::vector<std::pair<std::string, std::string>> dropped_keys;  ///< of the base, and why
  std::vector<KeptKey> kept_keys;
};

/// Every problem that can be found at once is in the error.
Result<SaveDecisions, Errors> plan_save(const SaveInputs& inputs);

}  // namespace lading::planner
