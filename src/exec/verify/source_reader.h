// SourceReader: any stretch of a checkpoint tensor in a storage dtype, cast or dequantized. For verify only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/catalog.h"
#include "device/cast.h"
#include "exec/verify/quantized_reader.h"
#include "exec/verify/verify_values.h"
#include "lading/result.h"

namespace lading::exec {

/// How much of both sides of a cast is held at once: a multiple of 8 elements, so that packed ones end at a byte.
[[nodiscard]] std::uint64_t elems_at_once(DType a, DType b);

struct CastStep {
  device::Cast cast = nullptr;  ///< null: the bits stay
};

Result<CastStep> cast_between(DType from, DType to);

/// What a checkpoint tensor is, and how it becomes the storage dtype. Borrowed.
struct Origin {
  const checkpoint::CatalogTensor* source = nullptr;
  device::Cast cast = nullptr;
  std::optional<Quantized> quantized = {};

  /// Codes that were packed have a dim of their own.
  [[nodiscard]] const Shape& shape() const { return quantized ? quantized->shape : source->shape; }
};

class SourceReader {
 public:
  SourceReader(const Origin& origin, DType storage, const ReadBytes& read)
      : source_(*origin.source), storage_(storage), cast_(origin.cast), read_(read) {
    if (origin.quantized) quantized_.emplace(source_, *origin.quantized, storage, read);
  }

  /// Elements [begin, begin + elems), `begin` at the start of a byte; `out` holds as many.
  Result<void> read(std::uint64_t begin, std::uint64_t elems, std::span<std::byte> out);

 private:
  Result<void> read_raw(std::uint64_t begin, std::uint64_t elems, std::span<std::byte> out) const;

  const checkpoint::CatalogTensor& source_;
  DType storage_;
  device::Cast cast_;
  const ReadBytes& read_;
  std::optional<QuantizedReader> quantized_;
  std::vector<std::byte> raw_;
};

}  // namespace lading::exec
