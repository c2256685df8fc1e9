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

struct PackedWeights {
  std::map<std::string, PackedWeight, std::less<>> by_name;
  /// By payload: why it cannot be dequantized, though its names say that it is packed.
  std::map<std::string, std::string, std::less<>> refused;
};

/// `expression` has no products: the caller knows the arithmetic.
[[nodiscard]] PackedWeights find_packed_weights(const checkpoint::Catalog& catalog);

}  // namespace lading::planner
