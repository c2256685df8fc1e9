// Expression: how a model tensor is made of checkpoint tensors, as a tree of movements of elements.
//
// Stacking, concatenating, slicing, transposing, interleaving and RoPE permutations are all movements;
// everything composes, and nothing here knows a model. One leaf changes values: a quantized key times its scales.
// What is neither is refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lading/decoding.h"
#include "lading/dtype.h"
#include "lading/export.h"
#include "lading/shape.h"

namespace lading::mapping {

enum class Op : std::uint8_t {
  kSource,     ///< a checkpoint tensor, whole
  kConcat,     ///< parts side by side along `dim`
  kStack,      ///< parts of one shape along a new `dim`
  kSlice,      ///< [begin, end) of `dim` of the only part
  kPermute,    ///< dim i of the result is dim order[i] of the only part
  kRearrange,  ///< `dim` is split into `factors` (outermost first), these are put into `order`, and merged again
  kReshape,    ///< the same elements in row-major order under another `shape`
  kPad,        ///< `dim` grows to `end`; the new elements are `fill` (a padded vocabulary)
  /// A quantized checkpoint tensor, whole: what `decoding` makes of its codes. The scale and the zero point of element
  /// i are those of block i[d] / shape[d] in each dim d; there are ceil(extent / shape[d]) blocks in dim d. Where it
  /// has `groups`, the block in dim decoding.groups_dim is groups[k] instead, whatever i[d] / shape[d] is: k counts the
  /// codes along that dim, those of an element side by side (activation order).
  kDequantize,
};

struct Expression {
  Op op = Op::kSource;
  std::string key;  ///< kSource, kDequantize
  // Of kDequantize: the keys of scales; of zero points and of the scale of the whole tensor, or "".
  std::string scales;
  std::string zeros;
  std::string tensor_scale;
  std::string groups;  ///< of kDequantize: the key of the groups, I32, or ""
  Decoding decoding;
  std::vector<Expression> parts;
  std::size_t dim = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::vector<std::uint64_t> factors;
  std::vector<std::size_t> order;
  Shape shape;      ///< kReshape; of kDequantize the block that has one scale
  double fill = 0;  ///< kPad
  /// kDequantize: the products are rounded to this dtype first, as the scheme's reference implementation does. Nothing:
  /// they are rounded once, to the storage dtype.
  std::optional<DType> product;

  LADING_API static Expression source(std::string key);
  LADING_API static Expression concat(std::size_t dim, std::vector<Expression> parts);
  LADING_API static Expression stack(std::size_t dim, std::vector<Expression> parts);
  LADING_API static Expression slice(Expression part, std::size_t dim, std::uint64_t begin, std::uint64_t end);
  LADING_API static Expression permute(Expression part, std::vector<std::size_t> order);
  LADING_API static Expression rearrange(Expression part, std::size_t dim, std::vector<std::uint64_t> factors,
                                         std::vector<std::size_t> order);
  LADING_API static Expression reshape(Expression part, Shape shape);
  LADING_API static Expression pad(Expression part, std::size_t dim, std::uint64_t end, double fill);
  LADING_API static Expression dequantize(std::string key, std::string scales, Shape block,
                                          std::optional<DType> product = {}, Decoding decoding = {});

  /// The keys that it reads, sorted, each once.
  [[nodiscard]] LADING_API std::vector<std::string> keys() const;
  /// "concat(1, stack(0, a, b), c)": for people and for --explain.
  [[nodiscard]] LADING_API std::string text() const;

  friend bool operator==(const Expression&, const Expression&) = default;
};

}  // namespace lading::mapping
