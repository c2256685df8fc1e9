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

enum class Strategy : std::uint8_t {
  kSingle,   ///< one rank
  kDdp,      ///< axis dp: everything everywhere
  kFsdp2,    ///< axis dp: parameters shard(0)
  kHsdp,     ///< axes replicate and shard: parameters shard(0) over shard
  kTp,       ///< axis tp: parameters by the plan
  kFsdp2Tp,  ///< axes dp and tp: the plan first, then shard(0) of what is left (R54)
  kZero3,    ///< any axes, all taken as one group: parameters flat
};

/// "single", "ddp", "fsdp2", "hsdp", "tp", "fsdp2+tp", "zero3"
Result<Strategy> parse_strategy(std::string_view word);
[[nodiscard]] std::string_view word(Strategy strategy);

/// How tensor parallelism cuts a parameter. Weights are [out, in]; of more dims, those two come last.
enum class TpStyle : std::uint8_t {
  kColwise,  ///< by out features: the last dim but one; of one dim, that
  kRowwise,  ///< by in features: the last dim; one dim (a bias): replicated
  kReplicate,
  kVocab,  ///< by rows: dim 0
};

/// "colwise", "rowwise", "replicate", "vocab"
Result<TpStyle> parse_tp_style(std::string_view word);

struct TpRule {
  NamePattern pattern;  ///< as in PlacementRule; the first that matches decides
  TpStyle style = TpStyle::kReplicate;
};

struct StrategyRequest {
  Strategy strategy = Strategy::kSingle;
  Mesh mesh;
  DeviceMap devices;
  /// Parameters that no rule matches are replicated over tp. Without any rule: parameters of two dims are
  /// cut by dim 0, which is right for storing any model and for running none in particular; others replicated.
  std::vector<TpRule> tp_plan;
};

struct StrategyLayout {
  Layout layout;
  std::vector<std::string> notes;  ///< what was decided otherwise than the strategy's name suggests
};

/// Refuses a mesh that does not fit, a plan where none is used, and rules of it that match no parameter (R43).
Result<StrategyLayout, Errors> make_layout(const StrategyRequest& request, const std::vector<TensorToPlace>& tensors);

}  // namespace lading::layout
