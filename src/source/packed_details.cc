#include "source/packed_details.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace lading::source {
namespace {

using checkpoint::CatalogTensor;
using checkpoint::Quantization;

constexpr std::uint64_t kAtOnceBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxDims = 8;

// One file is open at a time: tensors are sorted by name, and those of a file mostly stand together.
class SmallTensors {
 public:
  explicit SmallTensors(const CheckpointSource& source) : source_(source) {}

  Result<void> read(const CatalogTensor& tensor, std::uint64_t begin, std::span<char> out) {
    if (!file_ || number_ != tensor.file) {
      LADING_ASSIGN_OR_RETURN(file_, source_.open_file(source_.shards()[tensor.file]));
      number_ = tensor.file;
    }
    return file_->read_exact(tensor.bytes.begin + begin, out);
  }

 private:
  const CheckpointSource& source_;
  std::optional<io::File> file_;
  std::uint32_t number_ = 0;
};

// Whether row i is in group i / group_size, for all of them.
Result<bool> counts_up(SmallTensors& tensors, const CatalogTensor& order, std::uint64_t group_size) {
  std::vector<std::int32_t> piece;
  for (std::uint64_t at = 0; at < order.bytes.size_bytes(); at += piece.size() * sizeof(std::int32_t)) {
    piece.resize(std::min(kAtOnceBytes, order.bytes.size_bytes() - at) / sizeof(std::int32_t));
    LADING_TRY(tensors.read(order, at, {reinterpret_cast<char*>(piece.data()), piece.size() * sizeof(std::int32_t)}));
    const std::uint64_t first = at / sizeof(std::int32_t);
    for (std::size_t i = 0; i < piece.size(); ++i) {
      if (piece[i] < 0 || static_cast<std::uint64_t>(piece[i]) != (first + i) / group_size) return false;
    }
  }
  return true;
}

// Of a weight that has no g_idx, desc_act is all that is known.
bool has_all_orders(const checkpoint::Catalog& catalog) {
  constexpr std::string_view kPayload = ".qweight";
  const auto tensors = catalog.tensors_of(0);
  return std::all_of(tensors.begin(), tensors.end(), [&](const CatalogTensor& tensor) {
    const std::string_view name = tensor.name;
    if (!name.ends_with(kPayload)) return true;
    return catalog.find(std::string(name.substr(0, name.size() - kPayload.size())) + ".g_idx") != nullptr;
  });
}

// desc_act says what the quantizer was asked for; the tensors say what it did.
Result<void> read_orders(const CheckpointSource& source, Quantization& quantization) {
  if (quantization.has_order.value_or(true) && !has_all_orders(source.catalog())) return {};
  SmallTensors tensors(source);
  for (const CatalogTensor& tensor : source.catalog().tensors_of(0)) {
    if (!tensor.name.ends_with(".g_idx")) continue;
    if (tensor.dtype != DType::kI32 || tensor.shape.rank() != 1) {
      quantization.has_order = true;
      return {};
    }
    const std::int64_t size = quantization.group_size.value_or(-1);
    const std::uint64_t rows = std::max<std::uint64_t>(1, tensor.shape[0]);
    LADING_ASSIGN_OR_RETURN(const bool plain,
                            counts_up(tensors, tensor, size > 0 ? static_cast<std::uint64_t>(size) : rows));
    quantization.has_order = !plain;
    if (!plain) return {};
  }
  return {};
}

Result<void> read_shapes(const CheckpointSource& source, Quantization& quantization) {
  SmallTensors tensors(source);
  for (const CatalogTensor& tensor : source.catalog().tensors_of(0)) {
    const bool is_shape = tensor.name.ends_with("_shape") && tensor.shape.rank() == 1 && tensor.shape[0] <= kMaxDims;
    if (!is_shape || tensor.dtype != DType::kI64) continue;
    std::vector<std::int64_t> dims(tensor.shape[0]);
    LADING_TRY(tensors.read(tensor, 0, {reinterpret_cast<char*>(dims.data()), dims.size() * sizeof(std::int64_t)}));
    std::vector<std::uint64_t>& shape = quantization.shapes[tensor.name];
    for (const std::int64_t dim : dims) shape.push_back(dim < 0 ? 0 : static_cast<std::uint64_t>(dim));
  }
  return {};
}

}  // namespace

Result<void> read_packed_details(const CheckpointSource& source, Quantization& quantization) {
  if (quantization.method == "gptq") return read_orders(source, quantization);
  if (quantization.method == "compressed-tensors") return read_shapes(source, quantization);
  return {};
}

}  // namespace lading::source
