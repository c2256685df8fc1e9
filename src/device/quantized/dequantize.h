// Quantized elements times their scales, on the host.
//
// An element is an 8-bit float, or a code less its zero points. The product of that and a scale of at most 24
// significant bits is exact in F64 (scale_values.h has what becomes of a scale of the whole tensor). It is rounded
// once, to the dtype of the result: to nearest, ties to even. A payload that is NaN is cast as it is, and the product
// of infinity and 0 is the positive quiet NaN, so that host and GPU give the same bits
// (docs/how-it-works/quantized.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/cast.h"
#include "device/device.h"
#include "device/quantized/code_bytes.h"
#include "device/quantized/scale_grid.h"
#include "device/quantized/scale_values.h"
#include "lading/dtype.h"

namespace lading::device {

/// For one thread at a time. Borrows the scales.
class Dequantizer {
 public:
  /// `from` is an 8-bit float, or of no account where the scales say codes; `to` has 16 bits or more.
  Dequantizer(const BlockScales& scales, DType from, DType to);

  /// The elements of the tensor from number `begin` on, row-major, as far apart as the run's codes; their scales must
  /// be there. Fastest where calls go on from each other: what a block makes of each code is worked out once per row of
  /// blocks.
  void run(const CodeRun& codes, std::uint64_t begin, std::byte* out);

  [[nodiscard]] unsigned log2_codes_in_byte() const { return log2_codes_in_byte_; }

 private:
  static constexpr std::size_t kAtOnce = 256;  // that are rounded with one call
  static constexpr std::size_t kFewFactors = 2;

  // Codes that are one row of blocks' of the last dim. The first one is so far in the row, `stride` codes in front of
  // the second.
  struct RowPart {
    std::span<const std::byte> codes;
    std::uint64_t first_scale = 0;  // of the row
    std::uint64_t column = 0;
    std::uint64_t stride = 1;
    std::byte* out = nullptr;
  };
  // Elements that are multiplied one by one, and rounded later, many together.
  struct Pending {
    alignas(64) std::array<double, kAtOnce> products;
    std::size_t count = 0;
    const std::byte* codes = nullptr;
    std::byte* out = nullptr;
  };

  // Where the codes of an element of the key find their groups, and a group its scale.
  struct GroupPlace {
    std::uint64_t group = 0;  // into BlockScales::groups, of the first code
    std::uint64_t scale = 0;  // of group 0
  };

  void prepare_values(DType from, DType to);
  void run_bytes(std::span<const std::byte> codes, std::uint64_t begin, std::uint64_t stride, std::byte* out);
  void run_in_groups(std::span<const std::byte> codes, std::uint64_t begin, std::uint64_t stride, std::byte* out);
  [[nodiscard]] GroupPlace place_in_groups(std::uint64_t element) const;
  void run_in_row(const RowPart& part);
  void run_in_blocks_of_1(const RowPart& part);
  void run_in_block(const RowPart& part, std::size_t count, std::uint64_t scale);
  void multiply_later(std::span<const std::byte> codes, std::uint64_t scale, std::byte* out);
  void round_pending();
  void multiply(std::span<const std::byte> codes, std::uint64_t scale, double* products);
  void finish_products(std::span<double> products, double factor) const;
  void make_tables(std::uint64_t scale, std::uint64_t count);
  void look_up(std::span<const std::byte> codes, const std::byte* table, std::byte* out) const;
  void round(std::span<const double> products, const std::byte* codes, std::byte* out) const;
  const double* factors(std::uint64_t scale, std::size_t count);
  [[nodiscard]] double zero_point(std::uint64_t scale) const {
    return scales_.zeros.empty() ? 0.0 : plain_values_[std::to_integer<std::size_t>(zero_at(scale))];
  }
  [[nodiscard]] std::byte zero_at(std::uint64_t scale) const { return scales_.zeros[scale - scales_.first]; }
  [[nodiscard]] std::byte* table_of(std::uint64_t scale) const {
    return tables_.get() + scale % table_scales_.size() * values_.size() * width_bytes_;
  }

  const BlockScales& scales_;
  Cast first_cast_ = nullptr;  // from F64 to the dtype of products
  Cast cast_ = nullptr;        // from that to the result
  std::size_t product_bytes_ = 0;
  std::size_t width_bytes_ = 0;  // of a result
  unsigned log2_codes_in_byte_ = 0;
  TensorStep step_ = TensorStep::kNone;
  bool has_nans_ = false;
  bool is_one_multiplication_ = false;  // what elements less their zeros become
  std::vector<double> values_;          // of all codes, less the zero that all have in common
  std::vector<double> plain_values_;    // of codes, without that
  std::vector<std::uint8_t> is_nan_;    // 0 or 1, of the 256 payloads
  std::vector<std::byte> nans_;         // results of those
  std::vector<GridDim> dims_;           // outermost first; of scales with groups, those of the tensor as it is
  std::uint64_t row_blocks_ = 1;        // in the last one
  bool rows_share_blocks_ = false;
  std::size_t worth_a_table_ = 0;  // elements of a block that are at hand at once, below which a table does not pay
  // Results of all codes, by block of the last dim. Made when they are first asked for.
  std::unique_ptr<std::byte[]> tables_;
  std::vector<std::uint64_t> table_scales_;  // which scale each is of; kNone: of none yet
  // Scales, or what they make with the scale of the tensor.
  std::array<double, kAtOnce> factors_;
  std::uint64_t factors_begin_ = 0;  // the numbers of those that are at hand
  std::uint64_t factors_end_ = 0;
  std::size_t factors_ahead_ = kFewFactors;
  Pending pending_;
};

/// Carries a move with a scaling out, source and target both in host memory.
void dequantize_on_host(const Move& move);

}  // namespace lading::device
