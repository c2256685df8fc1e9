#include "source/packed_details.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
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

// Whether index i is in group i / group_size, for all of them. compressed-tensors writes -1 where no order was made,
// and ignores them all then.
Result<bool> counts_up(SmallTensors& tensors, const CatalogTensor& order, std::uint64_t group_size, bool may_be_unset) {
  std::vector<std::int32_t> piece;
  bool does = true;
  for (std::uint64_t at = 0; at < order.bytes.size_bytes(); at += piece.size() * sizeof(std::int32_t)) {
    piece.resize(std::min(kAtOnceBytes, order.bytes.size_bytes() - at) / sizeof(std::int32_t));
    LADING_TRY(tensors.read(order, at, {reinterpret_cast<char*>(piece.data()), piece.size() * sizeof(std::int32_t)}));
    const std::uint64_t first = at / sizeof(std::int32_t);
    for (std::size_t i = 0; i < piece.size(); ++i) {
      if (may_be_unset && piece[i] == -1) return true;
      does = does && piece[i] >= 0 && static_cast<std::uint64_t>(piece[i]) == (first + i) / group_size;
    }
    if (!does && !may_be_unset) return false;
  }
  return does;
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
Result<void> read_orders(const CheckpointSource& source, std::string_view ending, bool may_be_unset,
                         Quantization& quantization) {
  SmallTensors tensors(source);
  bool has_any = false;
  for (const CatalogTensor& tensor : source.catalog().tensors_of(0)) {
    if (!tensor.name.ends_with(ending)) continue;
    has_any = true;
    bool plain = false;
    if (tensor.dtype == DType::kI32 && tensor.shape.rank() == 1) {
      const std::int64_t size = quantization.group_size.value_or(-1);
      const std::uint64_t extent = std::max<std::uint64_t>(1, tensor.shape[0]);
      LADING_ASSIGN_OR_RETURN(
          plain, counts_up(tensors, tensor, size > 0 ? static_cast<std::uint64_t>(size) : extent, may_be_unset));
    }
    if (!plain) quantization.ordered.insert(tensor.name);
  }
  const bool is_known = !quantization.has_order.value_or(true) || has_all_orders(source.catalog());
  if (has_any && is_known) quantization.has_order = !quantization.ordered.empty();
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
  if (quantization.method == "gptq") return read_orders(source, ".g_idx", false, quantization);
  if (quantization.method != "compressed-tensors") return {};
  LADING_TRY(read_orders(source, "_g_idx", true, quantization));
  return read_shapes(source, quantization);
}

}  // namespace lading::source
