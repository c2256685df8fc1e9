// Weights that a checkpoint holds as packed codes, under other names than the model's: "x.qweight" or "x.weight_packed"
// instead of "x.weight" (R48). Which scheme it is follows from names, shapes, dtypes and config.json, never from a
// model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/catalog.h"
#include "lading/shape.h"
#include "mapping/expression.h"

namespace lading::planner {

/// A weight as a checkpoint that is not quantized would have it, and how it is made of the keys that are there.
struct PackedWeight {
  std::string payload;
  std::vector<std::string> keys;  ///< all that belong to it, the payload first
  std::string scheme;             ///< "mxfp4", "gptq", …
  Shape shape;
  mapping::Expression expression;
};

/// Why a payload is not dequantized.
struct Reason {
  std::string text;
  bool is_in_config = false;  ///< config.json lacks something, or contradicts the files: the right one would help
};

struct PackedWeights {
  std::map<std::string, PackedWeight, std::less<>> by_name;
  std::map<std::string, Reason, std::less<>> refused;  ///< by payload, though its names say that it is packed
};

/// `expression` has no products: the caller knows the arithmetic.
[[nodiscard]] PackedWeights find_packed_weights(const checkpoint::Catalog& catalog);

}  // namespace lading::planner
