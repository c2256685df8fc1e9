// DType: every element type that a safetensors file can hold.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "lading/export.h"

namespace lading {

enum class DType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

enum class DTypeClass : std::uint8_t { kBool, kUnsigned, kSigned, kFloat, kComplex };

/// The name in a safetensors header, such as "BF16".
[[nodiscard]] LADING_API std::string_view name(DType dtype);
/// Bits of one element: 4 and 6 for the packed types, so sizes are counted in bits.
[[nodiscard]] LADING_API unsigned bits(DType dtype);
[[nodiscard]] LADING_API DTypeClass class_of(DType dtype);
[[nodiscard]] LADING_API std::span<const DType> all_dtypes();
[[nodiscard]] LADING_API std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace lading
