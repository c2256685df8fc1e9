// Strategy: a word of the command line and a mesh to the layout of a whole model. Pure.
//
// No model and no layer is known here: what a tensor is like (its dims, parameter or buffer) and the
// user's tensor-parallel plan decide. A layout made here is for the tensors it was made from: its last
// rule may be "*".
//
// No `fsdp_group` is set, FSDP2 or not: the user's fully_shard calls are not known here. One unit for the whole
// model would be refused for every model of several dtypes (R27), though its real units are uniform. Whoever
// wants units checked writes a layout.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lading/result.h"
#include "layout/layout.h"

namespace lading::layout {

struct StrategyRequest {
  Strategy strategy = Strategy::kSingle;
  Mesh mesh;
  DeviceMap devices;
  std::vector<TpRule> tp_plan;  ///< as ByStrategy has it
};

struct StrategyLayout {
  Layout layout;
  std::vector<std::string> notes;  ///< what was decided otherwise than the strategy's name suggests
};

/// Refuses a mesh that does not fit, a plan where none is used, and rules of it that match no parameter (R43).
Result<StrategyLayout, Errors> make_layout(const StrategyRequest& request, const std::vector<TensorToPlace>& tensors);

}  // namespace lading::layout
