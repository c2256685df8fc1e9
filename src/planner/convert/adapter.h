// A LoRA of PEFT that a conversion adds to the weights: which of its keys go into which tensor, and how. Pure.
//
// The adapter is a second checkpoint of the conversion's load (ADR 0011). Both factors of a weight are tensors of the
// made-up model, under the names of their keys, and the weight is F32 in memory until it is written.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "checkpoint/catalog.h"
#include "lading/dtype.h"
#include "lading/result.h"
#include "model/skeleton.h"

namespace lading::planner {

/// Of adapter_config.json, what decides the numbers.
struct AdapterConfig {
  double rank = 8;
  double alpha = 8;
  std::vector<std::pair<std::string, double>> rank_pattern = {};   ///< regular expressions; the first that matches
  std::vector<std::pair<std::string, double>> alpha_pattern = {};  ///< likewise
  bool use_rslora = false;
  bool fan_in_fan_out = false;
};

/// Refuses what is no LoRA, and every member that would make PEFT compute something else.
Result<AdapterConfig, Errors> parse_adapter_config(const JsonDocument& document);

/// tensor += scale * (b · a), or the transpose of that.
struct Merge {
  std::string tensor;
  std::string a;  ///< keys of the adapter
  std::string b;
  double scale = 1;
  bool is_transposed = false;  ///< the tensor is [inputs, outputs], as a Conv1D of transformers has it
  DType dtype = DType::kF32;   ///< of the tensor in the new checkpoint
};

/// `adapter` has the keys of the adapter alone. Adds the factors to the skeleton, and makes the weights F32. Every key
/// must be a factor of a weight that the skeleton has.
Result<std::vector<Merge>, Errors> merge_adapter(const checkpoint::Catalog& adapter, const AdapterConfig& config,
                                                 model::Skeleton& skeleton);

}  // namespace lading::planner
