// QuantizedReader: any stretch of a quantized checkpoint tensor in a storage dtype. For verify only, and by code of its
// own: neither the planner's arithmetic of blocks nor the device's multiplication is in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/catalog.h"
#include "device/cast.h"
#include "exec/verify/verify_values.h"
#include "lading/decoding.h"
#include "lading/result.h"

namespace lading::exec {

/// How a checkpoint tensor is dequantized. Borrowed.
struct Quantized {
  const checkpoint::CatalogTensor* scales = nullptr;
  const checkpoint::CatalogTensor* zeros = nullptr;         ///< null: none
  const checkpoint::CatalogTensor* tensor_scale = nullptr;  ///< null: none
  Shape shape;                                              ///< of codes, if it has any
  Shape block;
  Decoding decoding;
  std::optional<DType> product;                       ///< that products are rounded to first
  const checkpoint::CatalogTensor* groups = nullptr;  ///< null: they count up
};

/// A ledger may say anything: only what the planner would scale is scaled, and nothing beside the keys is read.
Result<void> check_scaling(const checkpoint::CatalogTensor& source, const Quantized& quantized, DType storage);

/// a * b and a / b, rounded to odd where F64 cannot hold them: a further rounding to 51 bits or fewer is then the only
/// one. Where they overflow, or are not numbers: as F64 has them.
[[nodiscard]] double times_to_odd(double a, double b);
[[nodiscard]] double divided_to_odd(double a, double b);

class QuantizedReader {
 public:
  QuantizedReader(const checkpoint::CatalogTensor& source, const Quantized& quantized, DType storage,
                  const ReadBytes& read)
      : source_(source), quantized_(quantized), storage_(storage), read_(read) {}

  /// Elements [begin, begin + elems), `begin` at the start of a byte; `out` holds as many.
  Result<void> read(std::uint64_t begin, std::uint64_t elems, std::span<std::byte> out);

 private:
  Result<void> read_once(std::uint64_t begin, std::uint64_t elems, std::span<std::byte> out);
  Result<void> read_codes(std::uint64_t begin, std::uint64_t elems);
  void find_blocks(std::uint64_t begin, std::uint64_t count);
  Result<void> find_blocks_of_groups(std::uint64_t begin, std::uint64_t count);
  Result<void> read_scales(std::uint64_t begin, std::uint64_t end);
  Result<void> read_zeros(std::uint64_t begin, std::uint64_t end);
  Result<void> read_tensor_scale();
  [[nodiscard]] std::uint64_t stored_scale(std::uint64_t block) const;
  void multiply();
  Result<void> round(std::span<std::byte> out) const;

  const checkpoint::CatalogTensor& source_;
  const Quantized& quantized_;
  DType storage_;
  const ReadBytes& read_;
  std::vector<std::byte> raw_;
  std::vector<double> values_;         // codes, then products
  std::vector<std::size_t> nans_;      // payloads that are no numbers
  std::vector<std::uint64_t> blocks_;  // by element: the number of its block
  // From the first block that a stretch needs on.
  std::uint64_t first_block_ = 0;
  std::vector<double> scales_;
  std::vector<double> zeros_;
  std::optional<double> tensor_scale_;
  std::vector<std::int32_t> groups_;
};

}  // namespace lading::exec
