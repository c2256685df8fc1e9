// What every format has to check of the tensors that a file lists: each has the bytes of its shape and dtype, and
// together they tile the data (R45). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/header.h"

namespace lading::checkpoint {

class TensorTable {
 public:
  /// `context` must outlive the table. The data begin within the file.
  TensorTable(const HeaderContext& context, std::uint64_t data_begin_bytes);

  void reserve(std::size_t tensors);
  /// `entry_byte` is where the tensor's entry begins in the file: errors name it. The bytes may lie beyond the end of
  /// the file, but not in front of the data.
  void add(HeaderTensor tensor, std::uint64_t entry_byte);

  /// Why these are not the bytes of the tensor's shape and dtype, without file and place; nothing if they are. The
  /// reader has refused a shape whose number of elements overflows.
  [[nodiscard]] std::optional<Error> check_size(const HeaderTensor& tensor) const;

  /// Sorts the tensors by position. Most files list them so.
  void sort();
  /// Of sorted tensors that have a place each: holes, overlaps, tensors beyond the end, bytes behind the last one.
  void check_tiling(Errors& errors) const;

  [[nodiscard]] std::vector<HeaderTensor> take() && { return std::move(tensors_); }

 private:
  /// As the header states it: from the beginning of the data.
  [[nodiscard]] ByteRange in_data(const HeaderTensor& tensor) const;
  [[nodiscard]] std::optional<Error> check_size_of_unknown(const HeaderTensor& tensor) const;
  [[nodiscard]] Error seam(std::size_t t, const HeaderTensor* last, std::uint64_t reached) const;

  const HeaderContext& context_;
  std::uint64_t data_begin_;
  std::vector<HeaderTensor> tensors_;
  std::vector<std::uint32_t> entry_bytes_;  // beside the tensors
};

}  // namespace lading::checkpoint
