// Elements and bytes, packed ones included, without a Shape: the checker asks for each transfer.
#pragma once

#include <cstdint>
#include <optional>

#include "base/checked.h"
#include "checker/plan_types.h"
#include "lading/dtype.h"

namespace lading::checker {

/// Nothing if the elements do not end at a byte, or are too many.
[[nodiscard]] inline std::optional<std::uint64_t> bytes_of(std::uint64_t elems, unsigned width_bits) {
  if (width_bits % 8 == 0) return checked_mul(elems, width_bits / 8);
  const auto all = checked_mul(elems, width_bits);
  if (!all || *all % 8 != 0) return std::nullopt;
  return *all / 8;
}
[[nodiscard]] inline std::optional<std::uint64_t> bytes_of(std::uint64_t elems, DType dtype) {
  return bytes_of(elems, bits(dtype));
}

/// Nothing if the bytes do not end where an element does.
[[nodiscard]] inline std::optional<std::uint64_t> elems_in(std::uint64_t bytes, unsigned width_bits) {
  if (width_bits % 8 == 0)
    return bytes % (width_bits / 8) == 0 ? std::optional(bytes / (width_bits / 8)) : std::nullopt;
  const auto all = checked_mul(bytes, 8);
  if (!all || *all % width_bits != 0) return std::nullopt;
  return *all / width_bits;
}
[[nodiscard]] inline std::optional<std::uint64_t> elems_in(std::uint64_t bytes, DType dtype) {
  return elems_in(bytes, bits(dtype));
}

/// What the shape of a source says that its bytes are.
[[nodiscard]] inline std::optional<std::uint64_t> size_of_source(const Source& source) {
  const auto elems = source.shape.num_elems();
  return elems ? bytes_of(*elems, source.element_bits()) : std::nullopt;
}

/// Where first_code may count to: 1 unless elements of the source are codes that share bytes.
[[nodiscard]] inline unsigned codes_in_a_byte(const Source& source) {
  return source.code() ? 8 / source.element_bits() : 1;
}

/// The bytes that a run of the transfer has in its source, those included of which it takes some codes only.
[[nodiscard]] inline std::optional<std::uint64_t> run_bytes_of(const Transfer& transfer, const Source& source) {
  const unsigned together = codes_in_a_byte(source);
  if (together == 1) return bytes_of(transfer.run_elems, source.element_bits());
  const auto codes = checked_add(transfer.first_code, transfer.run_elems);
  if (!codes) return std::nullopt;
  return *codes / together + (*codes % together == 0 ? 0 : 1);
}

}  // namespace lading::checker
