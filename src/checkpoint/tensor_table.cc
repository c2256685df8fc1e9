#include "checkpoint/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/text.h"
#include "checkpoint/arrange.h"

namespace lading::checkpoint {

TensorTable::TensorTable(const HeaderContext& context, std::uint64_t data_begin_bytes)
    : context_(context), data_begin_(data_begin_bytes) {}

void TensorTable::reserve(std::size_t tensors) {
  tensors_.reserve(tensors);
  entry_bytes_.reserve(tensors);
}

void TensorTable::add(HeaderTensor tensor, std::uint64_t entry_byte) {
  tensors_.push_back(std::move(tensor));
  entry_bytes_.push_back(static_cast<std::uint32_t>(entry_byte));
}

// Faults 10 and 11 (docs/how-it-works/faults.md): shape times dtype must be the span.
std::optional<Error> TensorTable::check_size(const HeaderTensor& tensor) const {
  if (!tensor.dtype) return check_size_of_unknown(tensor);
  const auto size = tensor.shape.size_bytes(*tensor.dtype);
  if (size == tensor.bytes.size_bytes()) return std::nullopt;
  const std::string what = fmt::format("{} {}", name(*tensor.dtype), tensor.shape.text());
  if (!size) {
    return Error(Code::kHeaderSize, fmt::format("{} is not a whole number of bytes below 2^63", what))
        .wanted("elements that fill whole bytes");
  }
  const ByteRange data = in_data(tensor);
  return Error(Code::kHeaderSize, "shape and dtype do not match the offsets")
      .wanted(fmt::format("{} bytes for {}", *size, what))
      .got(fmt::format("{} bytes, [{}, {}]", data.size_bytes(), data.begin, data.end));
}

// Of a dtype that we do not know, an element still has at least one bit.
std::optional<Error> TensorTable::check_size_of_unknown(const HeaderTensor& tensor) const {
  const std::uint64_t elems = *tensor.shape.num_elems();
  const std::uint64_t bytes = tensor.bytes.size_bytes();
  if ((elems == 0) == (bytes == 0) && (elems + 7) / 8 <= bytes) return std::nullopt;
  return Error(Code::kHeaderSize, "no dtype has elements of this size")
      .wanted(elems == 0 ? "no bytes" : "at least one bit for each element")
      .got(fmt::format("{} bytes for {}", bytes, tensor.shape.text()));
}

void TensorTable::sort() {
  const auto by_position = [&](std::uint32_t a, std::uint32_t b) {
    const ByteRange x = tensors_[a].bytes;
    const ByteRange y = tensors_[b].bytes;
    return x.begin != y.begin ? x.begin < y.begin : x.end < y.end;
  };
  std::vector<std::uint32_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), 0);
  if (std::is_sorted(order.begin(), order.end(), by_position)) return;
  std::stable_sort(order.begin(), order.end(), by_position);
  arrange(entry_bytes_, order);
  arrange(tensors_, order);
}

void TensorTable::check_tiling(Errors& errors) const {
  const std::uint64_t data_bytes = context_.file_size_bytes - data_begin_;
  std::uint64_t reached = 0;
  const HeaderTensor* last = nullptr;
  const HeaderTensor* first_outside = nullptr;
  std::uint64_t outside = 0;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const ByteRange data = in_data(tensors_[t]);
    if (data.begin != reached) errors.add(seam(t, last, reached));
    if (data.end > data_bytes) {
      if (first_outside == nullptr) first_outside = &tensors_[t];
      ++outside;
    }
    if (data.end >= reached) {
      reached = data.end;
      last = &tensors_[t];
    }
  }
  if (first_outside != nullptr) {
    errors.add(Error(Code::kDataTruncated, fmt::format("the file is too short for its tensors: {} lie{} beyond its end",
                                                       outside == 1 ? "1 tensor" : with_commas(outside) + " tensors",
                                                       outside == 1 ? "s" : ""))
                   .in_file(context_.file)
                   .of_tensor(first_outside->name)
                   .at(first_outside->bytes)
                   .by_rule("R45")
                   .wanted(fmt::format("{} bytes", data_begin_ + reached))
                   .got(fmt::format("{} bytes", context_.file_size_bytes))
                   .try_this("Fetch the file again: it is incomplete."));
  } else if (reached < data_bytes && context_.trailing_bytes == TrailingBytes::kRefuse) {
    errors.add(Error(Code::kTrailingBytes, "the file has bytes after its last tensor")
                   .in_file(context_.file)
                   .at({data_begin_ + reached, context_.file_size_bytes})
                   .by_rule("R45")
                   .wanted(fmt::format("{} bytes", data_begin_ + reached))
                   .got(fmt::format("{} bytes", context_.file_size_bytes))
                   .try_this("Fetch the file again. If you know what the bytes are, pass --allow-trailing-bytes."));
  }
}

Error TensorTable::seam(std::size_t t, const HeaderTensor* last, std::uint64_t reached) const {
  const ByteRange data = in_data(tensors_[t]);
  const std::uint64_t entry = entry_bytes_[t];
  const std::string before = last == nullptr ? "the data begins" : fmt::format("{} ends", quote(last->name));
  const bool hole = data.begin > reached;
  return Error(hole ? Code::kHeaderHole : Code::kHeaderOverlap,
               hole ? fmt::format("the tensor begins too late, and leaves a hole: {} at {}", before, reached)
                    : fmt::format("the tensor begins too early, and overlaps another: {} at {}", before, reached))
      .in_file(context_.file)
      .of_tensor(tensors_[t].name)
      .at({entry, entry + 1})
      .by_rule("R45")
      .wanted(fmt::format("offsets that begin at {}", reached))
      .got(fmt::format("[{}, {}]", data.begin, data.end));
}

ByteRange TensorTable::in_data(const HeaderTensor& tensor) const {
  return {tensor.bytes.begin - data_begin_, tensor.bytes.end - data_begin_};
}

}  // namespace lading::checkpoint
