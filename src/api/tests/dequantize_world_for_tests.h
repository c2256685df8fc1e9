// For tests: checkpoints of quantized tensors, and which elements a rank holds of a tensor, by the words of
// docs/schema/layout.md alone. Shares no arithmetic with the engine.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/tests/dequantize_numbers_for_tests.h"
#include "lading/layout.h"
#include "lading/mapping.h"
#include "lading/skeleton.h"
#include "support/label_oracle.h"
#include "support/safetensors_bytes.h"

namespace lading::test {

using Dims = std::vector<std::uint64_t>;

inline std::uint64_t count_of(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::uint64_t{1}, std::multiplies<>());
}

inline std::string text_of(const Dims& dims) {
  std::string text;
  for (const std::uint64_t dim : dims) text += (text.empty() ? "" : ",") + std::to_string(dim);
  return "[" + text + "]";
}

inline std::uint64_t blocks_of(std::uint64_t extent, std::uint64_t block) {
  std::uint64_t blocks = 0;
  for (std::uint64_t left = extent; left > 0; left -= std::min(left, block)) ++blocks;
  return blocks;
}

class SafetensorsFile {
 public:
  void add(const std::string& key, DType dtype, const Dims& shape, const std::string& bytes) {
    header_ += (header_.empty() ? "\"" : ",\"") + key + R"(":{"dtype":")" + std::string(name(dtype)) + R"(","shape":)" +
               text_of(shape) + R"(,"data_offsets":[)" + std::to_string(data_.size()) + "," +
               std::to_string(data_.size() + bytes.size()) + "]}";
    data_ += bytes;
  }
  [[nodiscard]] std::string bytes() const { return safetensors_bytes("{" + header_ + "}", data_); }

 private:
  std::string header_;
  std::string data_;
};

// What a key of packed codes has beside its scales.
struct Packing {
  Decoding decoding;
  std::string zeros_key;  // "": none
  Dims zeros_shape;
  std::string zeros_bytes;
  std::string tensor_scale_key;  // "": none
  std::uint64_t tensor_scale = 0x3F800000;
};

struct RawKey {
  std::string key;
  DType dtype = DType::kF32;
  Dims shape;
  std::string bytes;
};

// A key of a checkpoint; with scales, or without. Or the keys of a quantized weight under the names of its scheme, and
// element by element what the weight must be: then `key` is a name that no file has, and raw[1] holds the scales.
struct FileTensor {
  std::string key;
  std::string scales_key;  // "": not quantized
  DType dtype = DType::kF8E4M3;
  DType scales_dtype = DType::kF32;
  Dims shape;  // of the elements: codes, where there are any
  Dims block;
  Dims scales_shape;
  std::optional<DType> product;      // that products are rounded to first
  std::optional<DType> scale_dtype;  // that the bits of the scales are, if not `scales_dtype`
  std::string bytes;
  std::string scales_bytes;
  std::optional<Packing> packing;
  std::vector<RawKey> raw;
  std::vector<PackedElement> elements;

  [[nodiscard]] Dims key_shape() const {
    Dims dims = shape;
    if (packing) dims.pop_back();
    return dims;
  }
  // The number of the block of an element.
  [[nodiscard]] std::uint64_t block_of(std::uint64_t elem) const {
    std::uint64_t number = 0;
    std::uint64_t stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      const std::uint64_t index = elem % shape[d];
      elem /= shape[d];
      number += index / block[d] * stride;
      stride *= blocks_of(shape[d], block[d]);
    }
    return number;
  }
  [[nodiscard]] std::uint64_t code(std::uint64_t elem, DType to) const {
    if (!raw.empty()) return packed_code(elements[elem], to, product);
    if (packing) return packed_code(element(elem), to, product);
    const std::uint64_t own = code_at(bytes.data(), elem, dtype);
    if (scales_key.empty()) return round_to(value_of(own, format_of(dtype)), format_of(to));
    return dequantized_code(own, dtype, code_at(scales_bytes.data(), block_of(elem), scales_dtype),
                            scale_dtype.value_or(scales_dtype), to, product);
  }

 private:
  [[nodiscard]] PackedElement element(std::uint64_t elem) const {
    const Decoding& decoding = packing->decoding;
    const std::uint64_t number = block_of(elem);
    PackedElement made;
    made.code = number_of_code(code_in(bytes, elem), *decoding.code);
    made.zero = static_cast<std::int64_t>(decoding.zero) + zero_point(number);
    std::uint64_t scale = number;
    if (const std::uint64_t run = decoding.scale_order.size(); run > 0)
      scale = number / run * run + decoding.scale_order[number % run];
    made.scale =
        value_of(code_at(scales_bytes.data(), scale, scales_dtype), format_of(scale_dtype.value_or(scales_dtype)));
    if (!packing->tensor_scale_key.empty()) made.tensor_scale = value_of(packing->tensor_scale, format_of(DType::kF32));
    made.tensor_scale_is = decoding.tensor_scale;
    return made;
  }
  // The code of this number: the first one of an element of the key is in its lowest bits.
  [[nodiscard]] std::uint64_t code_in(const std::string& all, std::uint64_t number) const {
    const unsigned width = lading::bits(*packing->decoding.code);
    const std::uint64_t in_element = lading::bits(dtype) / width;
    const std::uint64_t whole = code_at(all.data(), number / in_element, dtype);
    return whole >> (number % in_element * width) & ones(static_cast<int>(width));
  }
  // Zero points have the shape of the scales, but that one dim of it is packed.
  [[nodiscard]] std::int64_t zero_point(std::uint64_t number) const {
    if (packing->zeros_key.empty()) return 0;
    const std::uint64_t in_element = lading::bits(dtype) / lading::bits(*packing->decoding.code);
    std::vector<std::uint64_t> index = mapping::oracle::unravel(number, scales_shape);
    std::uint64_t& packed = index[packing->decoding.zeros_dim];
    const std::uint64_t place = packed % in_element;
    packed /= in_element;
    const std::uint64_t element = mapping::oracle::ravel(index, packing->zeros_shape);
    const CodeNumber zero =
        number_of_code(code_in(packing->zeros_bytes, element * in_element + place), *packing->decoding.code);
    return static_cast<std::int64_t>(zero.halves / 2) * (zero.negative ? -1 : 1);
  }
};

// Finite, of either sign, sometimes 0, half of them of few bits: those make ties.
inline std::uint64_t random_scale(std::mt19937_64& random, DType dtype) {
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  if (dtype == DType::kF8E8M0) return below(4) == 0 ? below(255) : 115 + below(24);
  const FloatFormat format = format_of(dtype);
  const auto bias = static_cast<std::uint64_t>(format.bias);
  const std::uint64_t exponent = below(3) == 0 ? below(ones(format.exponent_bits)) : bias - 7 + below(12);
  const int zeros = static_cast<int>(below(2) == 0 ? 0 : below(static_cast<std::uint64_t>(format.mantissa_bits)));
  const std::uint64_t mantissa = (random() & ones(format.mantissa_bits)) >> zeros << zeros;
  const std::uint64_t sign = std::uint64_t{below(8) == 0} << (format.width_bits() - 1);
  return below(24) == 0 ? sign : sign | exponent << format.mantissa_bits | mantissa;
}

inline FileTensor random_tensor(std::mt19937_64& random, const std::string& name, DType payload, DType scales,
                                Dims shape, Dims block) {
  FileTensor made;
  made.key = name + ".weight";
  made.scales_key = name + ".weight_scale_inv";
  made.dtype = payload;
  made.scales_dtype = scales;
  for (std::size_t d = 0; d < shape.size(); ++d) made.scales_shape.push_back(blocks_of(shape[d], block[d]));
  for (std::uint64_t i = count_of(shape); i > 0; --i) append_code(made.bytes, random() & 0xFF, payload);
  for (std::uint64_t i = count_of(made.scales_shape); i > 0; --i)
    append_code(made.scales_bytes, random_scale(random, scales), scales);
  made.shape = std::move(shape);
  made.block = std::move(block);
  return made;
}

// That products are rounded to first; mostly nothing.
inline std::optional<DType> random_product(std::mt19937_64& random) {
  constexpr std::array kProducts = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64};
  const std::uint64_t choice = random() % 16;
  return choice < kProducts.size() ? std::optional(kProducts[choice]) : std::nullopt;
}

// A tensor of the model, what it is made of, and what it must hold.
struct ModelTensor {
  std::string name;
  DType dtype = DType::kBF16;
  Dims shape;
  std::string bytes;
  mapping::Expression expression;
};

class Checkpoint {
 public:
  void add(FileTensor tensor) {
    mapping::oracle::Labels labels{tensor.key_shape(), std::vector<std::int64_t>(count_of(tensor.key_shape()))};
    std::iota(labels.values.begin(), labels.values.end(), static_cast<std::int64_t>(elems_));
    first_elems_.emplace(elems_, tensors_.size());
    elems_ += labels.values.size();
    labels_.emplace(tensor.key, std::move(labels));
    tensors_.push_back(std::move(tensor));
  }
  [[nodiscard]] const std::vector<FileTensor>& tensors() const { return tensors_; }

  [[nodiscard]] static mapping::Expression leaf(const FileTensor& tensor) {
    if (tensor.scales_key.empty()) return mapping::Expression::source(tensor.key);
    mapping::Expression made =
        mapping::Expression::dequantize(tensor.key, tensor.scales_key, Shape(tensor.block), tensor.product);
    if (tensor.packing) {
      made.decoding = tensor.packing->decoding;
      made.zeros = tensor.packing->zeros_key;
      made.tensor_scale = tensor.packing->tensor_scale_key;
    }
    made.decoding.scale_dtype = tensor.scale_dtype;
    return made;
  }

  // The file; with other scales for the tensor of this key, if any has it.
  [[nodiscard]] std::string file(std::string_view wrong_key = "") const {
    SafetensorsFile made;
    for (const FileTensor& tensor : tensors_) {
      const bool is_wrong = tensor.key == wrong_key;
      for (std::size_t i = 0; i < tensor.raw.size(); ++i) {
        const RawKey& raw = tensor.raw[i];
        made.add(raw.key, raw.dtype, raw.shape, i == 1 && is_wrong ? wrong_scales(raw.bytes, tensor) : raw.bytes);
      }
      if (!tensor.raw.empty()) continue;
      made.add(tensor.key, tensor.dtype, tensor.key_shape(), tensor.bytes);
      if (tensor.scales_key.empty()) continue;
      made.add(tensor.scales_key, tensor.scales_dtype, tensor.scales_shape,
               is_wrong ? wrong_scales(tensor.scales_bytes, tensor) : tensor.scales_bytes);
      if (tensor.packing) add_packing(*tensor.packing, tensor.dtype, made);
    }
    return made.bytes();
  }

  [[nodiscard]] ModelTensor model_tensor(std::string name, DType dtype, mapping::Expression expression) const {
    const mapping::oracle::Labels labels = mapping::oracle::evaluate(expression, labels_);
    ModelTensor made{std::move(name), dtype, labels.dims, {}, std::move(expression)};
    for (const std::int64_t label : labels.values) append_code(made.bytes, code_of(label, dtype), dtype);
    return made;
  }

 private:
  static void add_packing(const Packing& packing, DType dtype, SafetensorsFile& file) {
    if (!packing.zeros_key.empty()) file.add(packing.zeros_key, dtype, packing.zeros_shape, packing.zeros_bytes);
    if (packing.tensor_scale_key.empty()) return;
    std::string bytes;
    append_code(bytes, packing.tensor_scale, DType::kF32);
    file.add(packing.tensor_scale_key, DType::kF32, {}, bytes);
  }

  // All of them: numbers that are not near those of the tensor.
  static std::string wrong_scales(const std::string& bytes, const FileTensor& tensor) {
    const DType dtype = tensor.scale_dtype.value_or(tensor.scales_dtype);
    const bool is_power = dtype == DType::kF8E8M0;
    const FloatFormat format = format_of(dtype);
    const std::uint64_t one = static_cast<std::uint64_t>(format.bias) << format.mantissa_bits;
    std::string wrong;
    for (std::uint64_t i = 0; wrong.size() < bytes.size(); ++i) {
      const std::uint64_t found = code_at(bytes.data(), i, tensor.scales_dtype);
      append_code(wrong, found == one ? one + (is_power ? 3 : 1) : one, tensor.scales_dtype);
    }
    return wrong;
  }

  [[nodiscard]] std::uint64_t code_of(std::int64_t label, DType dtype) const {
    if (label == mapping::oracle::kFillLabel)  // 0.5 in these tests
      return round_to({ExactNumber::Kind::kFinite, false, 1, -1}, format_of(dtype));
    const auto elem = static_cast<std::uint64_t>(label % mapping::oracle::kCodeStep);
    const auto code = static_cast<std::uint64_t>(label / mapping::oracle::kCodeStep);
    const auto& [first, number] = *std::prev(first_elems_.upper_bound(elem));
    const FileTensor& tensor = tensors_[number];
    const std::uint64_t per_element = tensor.packing ? tensor.packing->decoding.per_element : 1;
    return tensor.code((elem - first) * per_element + code, dtype);
  }

  std::vector<FileTensor> tensors_;
  std::map<std::uint64_t, std::size_t> first_elems_;
  std::uint64_t elems_ = 0;
  mapping::oracle::Sources labels_;
};

// The elements that a rank's memory has of a tensor, in the memory's order.
struct Held {
  bool present = true;
  std::uint64_t memory_elems = 0;
  std::uint64_t begin = 0;       // in the memory
  bool pads_with_zeros = false;  // behind them
  std::vector<std::uint64_t> elems;
};

// torch.chunk: parts of ceil(n / count), the last ones smaller or empty.
template <class T>
std::vector<T> chunk_of(const std::vector<T>& all, std::uint64_t index, std::uint64_t count) {
  const std::uint64_t size = (all.size() + count - 1) / count;
  const std::uint64_t begin = std::min<std::uint64_t>(all.size(), index * size);
  const std::uint64_t end = std::min<std::uint64_t>(all.size(), begin + size);
  return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end)};
}

// A rank's place among those of these axes, and how many they are: row-major, in the order given.
inline std::pair<std::uint64_t, std::uint64_t> seat_of(const layout::Mesh& mesh, const std::vector<std::size_t>& axes,
                                                       std::uint64_t rank) {
  std::vector<std::uint64_t> coordinate(mesh.axes().size());
  for (std::size_t a = coordinate.size(); a-- > 0; rank /= mesh.axes()[a].size)
    coordinate[a] = rank % mesh.axes()[a].size;
  std::pair<std::uint64_t, std::uint64_t> seat{0, 1};
  for (const std::size_t a : axes) {
    seat.first = seat.first * mesh.axes()[a].size + coordinate[a];
    seat.second *= mesh.axes()[a].size;
  }
  return seat;
}

class HeldElements {
 public:
  HeldElements(Dims shape, const layout::Mesh& mesh, std::uint64_t rank)
      : shape_(std::move(shape)), mesh_(mesh), rank_(rank), kept_(shape_.size()) {
    for (std::size_t d = 0; d < shape_.size(); ++d) {
      kept_[d].resize(shape_[d]);
      std::iota(kept_[d].begin(), kept_[d].end(), std::uint64_t{0});
    }
  }

  Held after(const std::vector<layout::Cut>& cuts) {
    Held held;
    for (const layout::Cut& cut : cuts) {
      const auto [index, count] = seat_of(mesh_, cut.axes, rank_);
      switch (cut.kind) {
        case layout::CutKind::kShard: kept_[cut.dim] = chunk_of(kept_[cut.dim], index, count); break;
        case layout::CutKind::kStridedShard: strided(cut, index, count); break;
        case layout::CutKind::kOwner:
          if (std::find(cut.owners.begin(), cut.owners.end(), index) == cut.owners.end()) held.present = false;
          break;
        case layout::CutKind::kFlat: return flat(cut, index, count);
        case layout::CutKind::kFlatGroup: {
          if (held.present) return flat_group(cut, index, count);
          break;
        }
      }
    }
    held.elems = row_major();
    held.memory_elems = held.elems.size();
    return held;
  }

 private:
  void strided(const layout::Cut& cut, std::uint64_t index, std::uint64_t count) {
    std::vector<std::uint64_t> all;
    for (std::uint64_t group = 0; group < cut.split_factor; ++group) {
      const auto part = chunk_of(chunk_of(kept_[cut.dim], group, cut.split_factor), index, count);
      all.insert(all.end(), part.begin(), part.end());
    }
    kept_[cut.dim] = all;
  }

  [[nodiscard]] std::vector<std::uint64_t> row_major() const {
    std::vector<std::uint64_t> elems{0};
    for (std::size_t d = 0; d < shape_.size(); ++d) {
      std::vector<std::uint64_t> next;
      for (const std::uint64_t elem : elems) {
        for (const std::uint64_t index : kept_[d]) next.push_back(elem * shape_[d] + index);
      }
      elems = std::move(next);
    }
    return elems;
  }

  // Padded to a multiple of `pad_multiple`, in equal parts.
  [[nodiscard]] Held flat(const layout::Cut& cut, std::uint64_t index, std::uint64_t count) const {
    const std::vector<std::uint64_t> all = row_major();
    const std::uint64_t multiple = cut.pad_multiple == 0 ? count : cut.pad_multiple;
    std::uint64_t padded = all.size();
    while (padded % multiple != 0) ++padded;
    Held held;
    held.memory_elems = padded / count;
    held.pads_with_zeros = true;
    for (std::uint64_t i = 0; i < held.memory_elems; ++i) {
      const std::uint64_t at = index * held.memory_elems + i;
      if (at < all.size()) held.elems.push_back(all[at]);
    }
    return held;
  }

  // Of a line of group_elems elements in which the tensor begins at group_offset_elems.
  [[nodiscard]] Held flat_group(const layout::Cut& cut, std::uint64_t index, std::uint64_t count) const {
    Held held;
    held.memory_elems = (cut.group_elems + count - 1) / count;
    const std::uint64_t begin = index * held.memory_elems;
    const std::uint64_t elems = count_of(shape_);
    for (std::uint64_t i = 0; i < held.memory_elems; ++i) {
      const std::uint64_t at = begin + i;
      if (at < cut.group_offset_elems || at >= cut.group_offset_elems + elems) continue;
      if (held.elems.empty()) held.begin = i;
      held.elems.push_back(at - cut.group_offset_elems);
    }
    return held;
  }

  Dims shape_;
  const layout::Mesh& mesh_;
  std::uint64_t rank_;
  std::vector<std::vector<std::uint64_t>> kept_;  // by dim
};

}  // namespace lading::test
