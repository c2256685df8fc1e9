// Which keys a new checkpoint has, and which tensors of the model they are made of. Internal to planner/save.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mapping/expression.h"
#include "planner/save/output_files.h"
#include "planner/save/plan_save.h"

namespace lading::planner {

/// A tensor of the model that is saved under keys of its own, or shares the memory of one that is.
struct SavedTensor {
  const model::Tensor* tensor = nullptr;
  const mapping::Expression* expression = nullptr;  ///< null: it is tied to one that has one
};

struct OutputKeys {
  std::vector<OutputKey> keys;                   ///< in the order of the base's files, or of Options::keys
  std::vector<mapping::Expression> expressions;  ///< that `tensors` point into
  std::vector<SavedTensor> tensors;              ///< by name
  std::vector<std::string> left_out;
  std::vector<std::string> not_saved;
  std::vector<std::pair<std::string, std::string>> dropped_keys;
  std::vector<OutputKey> kept_keys;  ///< of `keys`, those that no tensor makes: the base's bytes
};

Result<OutputKeys, Errors> choose_keys(const SaveInputs& inputs);

}  // namespace lading::planner
