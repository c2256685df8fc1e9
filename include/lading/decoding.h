// Decoding: how the numbers of a quantized tensor come from what a checkpoint stores.
//
// A number is (code - zero - zero point) * scale, times or divided by one scale of the whole tensor. Scales and zero
// points are those of the element's block. Where a key packs several codes into an element, the first one is in the
// lowest bits: codes of 8 bits and less, so on a little-endian machine they lie side by side in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "lading/dtype.h"
#include "lading/export.h"

namespace lading {

/// What a quantized element is before it is multiplied.
enum class CodeType : std::uint8_t {
  kF4,  ///< E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and their negatives
  kU2,
  kU4,
  kU8,
  kI8,
};

/// "F4", "U2", …
[[nodiscard]] LADING_API std::string_view name(CodeType code);
[[nodiscard]] LADING_API std::optional<CodeType> code_from_name(std::string_view name);
/// 2, 4 or 8, so that codes never cross a byte.
[[nodiscard]] LADING_API unsigned bits(CodeType code);

/// Whether the scale of the whole tensor is a factor or a divisor of the others.
enum class TensorScale : std::uint8_t { kFactor, kDivisor };

struct Decoding {
  /// Each element of the key is that many codes as fit in it. The tensor has the key's dims, and one more: the codes of
  /// an element. Nothing: the key's elements are the codes, 8-bit floats.
  std::optional<CodeType> code;
  /// How many codes an element of the key has: the bits of its dtype divided by those of the code. The extent of the
  /// last dim; without codes it says nothing.
  std::uint64_t per_element = 1;
  std::optional<DType> scale_dtype;  ///< scales are stored as U8, and their bits are this dtype
  std::uint64_t zero = 0;            ///< what is subtracted from every code: 8 where U4 stands for -8 … 7
  /// Zero points are codes of the same kind, packed along this dim of the grid of blocks.
  std::size_t zeros_dim = 0;
  TensorScale tensor_scale = TensorScale::kFactor;
  /// Not empty: scales are stored in another order than codes. Of each run of so many scales, that of code i is number
  /// scale_order[i].
  std::vector<std::size_t> scale_order;
  /// Where a tensor of groups says which block an element is in: the dim of the tensor whose blocks are these groups.
  std::size_t groups_dim = 0;

  friend bool operator==(const Decoding&, const Decoding&) = default;
};

}  // namespace lading
