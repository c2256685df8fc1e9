#include "planner/quantized/packed_weights.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "lading/result.h"

namespace lading::planner {
namespace {

using checkpoint::Catalog;
using checkpoint::CatalogTensor;
using checkpoint::Quantization;
using mapping::Expression;

// In an element of AWQ's qweight, the code at each place belongs to this column of eight.
const std::vector<std::size_t> kAwqColumns = {0, 2, 4, 6, 1, 3, 5, 7};
constexpr std::uint64_t kMxGroup = 32;
constexpr std::uint64_t kNvfp4Group = 16;

using Found = Result<PackedWeight, Reason>;

bool is_integer(const CatalogTensor& t, unsigned wanted_bits) {
  if (!t.dtype || bits(*t.dtype) != wanted_bits) return false;
  const DTypeClass kind = class_of(*t.dtype);
  return kind == DTypeClass::kSigned || kind == DTypeClass::kUnsigned;
}

bool is_float_scale(const CatalogTensor& t) {
  return t.dtype == DType::kF32 || t.dtype == DType::kF16 || t.dtype == DType::kBF16;
}

bool is_e8m0(const CatalogTensor& t) { return t.dtype == DType::kU8 || t.dtype == DType::kF8E8M0; }

std::optional<CodeType> unsigned_code(std::uint64_t bits) {
  switch (bits) {
    case 2: return CodeType::kU2;
    case 4: return CodeType::kU4;
    case 8: return CodeType::kU8;
    default: return std::nullopt;
  }
}

// The shape of the codes of a key: one more dim.
Shape codes_shape(const Shape& key, std::uint64_t per_element) {
  Shape shape = key;
  shape.push_back(per_element);
  return shape;
}

Shape with_last_two_merged(const Shape& shape) {
  std::vector<std::uint64_t> dims(shape.begin(), shape.end());
  const std::uint64_t last = dims.back();
  dims.pop_back();
  dims.back() *= last;
  return Shape(std::move(dims));
}

// Blocks of `group` codes along the last two dims of the codes' shape, which are one dim of the weight.
std::optional<Shape> group_block(const Shape& codes, std::uint64_t group) {
  std::vector<std::uint64_t> block(codes.rank(), 1);
  const std::uint64_t per_element = codes[codes.rank() - 1];
  const std::uint64_t extent = codes[codes.rank() - 2] * per_element;
  if (group >= extent) {
    block[codes.rank() - 2] = std::max<std::uint64_t>(1, codes[codes.rank() - 2]);
    block[codes.rank() - 1] = per_element;
  } else if (group % per_element == 0) {
    block[codes.rank() - 2] = group / per_element;
    block[codes.rank() - 1] = per_element;
  } else if (per_element % group == 0) {
    block[codes.rank() - 1] = group;
  } else {
    return std::nullopt;
  }
  return Shape(std::move(block));
}

class Finder {
 public:
  explicit Finder(const Catalog& catalog) : catalog_(catalog) {
    if (catalog.quantization) said_ = *catalog.quantization;
  }

  PackedWeights run() {
    for (const CatalogTensor& tensor : catalog_.tensors_of(0)) look_at(tensor);
    return std::move(out_);
  }

 private:
  [[nodiscard]] const CatalogTensor* find(const std::string& key) const { return catalog_.find(key); }

  // By the ending of the payload's name.
  void look_at(const CatalogTensor& t) {
    if (!t.dtype || t.shape.num_elems().value_or(0) == 0) return;
    const std::string_view name = t.name;
    const auto stem = [&](std::string_view ending) { return std::string(name.substr(0, name.size() - ending.size())); };
    if (name.ends_with("_blocks") && is_integer(t, 8)) {
      add(t, stem("_blocks"), mxfp4_blocks(t, stem("_blocks")));
    } else if (name.ends_with("_packed") && (is_integer(t, 32) || is_integer(t, 8))) {
      add(t, stem("_packed"), compressed_tensors(t, stem("_packed")));
    } else if (name.ends_with(".qweight") && is_integer(t, 32)) {
      const std::string prefix = stem("qweight");  // "x."
      if (find(prefix + "scales") != nullptr) add(t, prefix + "weight", gptq_or_awq(t, prefix));
    } else if (is_integer(t, 8) && find(t.name + "_scale") != nullptr) {
      if (find(t.name + "_scale_2") != nullptr) return add(t, t.name, modelopt_nvfp4(t));
      if (t.dtype == DType::kI8 && said_.method == "compressed-tensors") add(t, t.name, int_quantized(t));
    }
  }

  void add(const CatalogTensor& payload, std::string name, Found found) {
    if (!found) {
      if (!found.error().text.empty()) out_.refused.emplace(payload.name, std::move(found).error());
      return;
    }
    if (name != payload.name && find(name) != nullptr) {
      out_.refused.emplace(payload.name,
                           Reason{fmt::format("the checkpoint also has {}, so the weight is ambiguous", quote(name))});
      return;
    }
    found->payload = payload.name;
    found->keys.insert(found->keys.begin(), payload.name);
    out_.by_name.emplace(std::move(name), *std::move(found));
  }

  static Found refuse(std::string why) { return Found(fail(Reason{std::move(why)})); }
  static Found refuse_config(std::string why) { return Found(fail(Reason{std::move(why), true})); }
  // The key only has such a name: nothing says that it is packed.
  static Found not_one() { return refuse(""); }
  // Which of several groups a weight belongs to is not known.
  static Found no_zero_points(const std::string& name) {
    return refuse(
        fmt::format("config.json says that weights have zero points (\"symmetric\": false), but the "
                    "checkpoint has no {}",
                    quote(name + "_zero_point")));
  }

  // gpt-oss and transformers: blocks of 32 codes in 16 bytes. transformers holds experts with the last two dims
  // swapped, and writes quantized ones as its kernels want them.
  Found mxfp4_blocks(const CatalogTensor& t, const std::string& name) const {
    const CatalogTensor* scales = find(name + "_scales");
    if (scales == nullptr || t.shape.rank() < 2) return not_one();
    if (!is_e8m0(*scales)) return refuse(fmt::format("{} does not have one byte for each scale", quote(scales->name)));
    const std::uint64_t bytes = t.shape[t.shape.rank() - 1];
    if (bytes * 2 != kMxGroup) {
      return refuse(fmt::format("MXFP4 has blocks of 16 bytes, but {} has {}", quote(t.name), bytes));
    }
    PackedWeight weight;
    weight.scheme = "mxfp4";
    weight.keys = {scales->name};
    const Shape codes = codes_shape(t.shape, 2);
    std::vector<std::uint64_t> block(codes.rank(), 1);
    block[codes.rank() - 2] = bytes;
    block[codes.rank() - 1] = 2;
    Expression made = Expression::dequantize(t.name, scales->name, Shape(block), {}, e8m0(CodeType::kF4, 2, *scales));
    weight.shape = with_last_two_merged(with_last_two_merged(codes));
    made = Expression::reshape(std::move(made), weight.shape);
    if (weight.shape.rank() == 3) {
      made = Expression::permute(std::move(made), {0, 2, 1});
      weight.shape = Shape{weight.shape[0], weight.shape[2], weight.shape[1]};
    }
    weight.expression = std::move(made);
    return weight;
  }

  static Decoding e8m0(CodeType code, std::uint64_t per_element, const CatalogTensor& scales) {
    Decoding decoding;
    decoding.code = code;
    decoding.per_element = per_element;
    if (scales.dtype == DType::kU8) decoding.scale_dtype = DType::kF8E8M0;
    return decoding;
  }

  // A weight whose last dim is packed: the codes in the order of the elements.
  static Found in_order(const CatalogTensor& t, std::uint64_t group, PackedWeight weight, Expression leaf) {
    const Shape codes = codes_shape(t.shape, leaf.decoding.per_element);
    const auto block = group_block(codes, group);
    if (!block) return refuse_config(fmt::format("groups of {} do not fit the elements of {}", group, quote(t.name)));
    leaf.shape = *block;
    weight.shape = with_last_two_merged(codes);
    weight.expression = Expression::reshape(std::move(leaf), weight.shape);
    return weight;
  }

  Found compressed_tensors(const CatalogTensor& t, const std::string& name) const {
    const CatalogTensor* scales = find(name + "_scale");
    if (scales == nullptr || t.shape.rank() == 0) return not_one();
    PackedWeight weight;
    weight.keys = {scales->name};
    if (find(name + "_shape") != nullptr) weight.keys.push_back(name + "_shape");
    if (is_integer(t, 32)) return packed_integers(t, name, *scales, std::move(weight));
    if (t.dtype != DType::kU8)
      return refuse(fmt::format("lading does not know packed weights of {}", lading::name(*t.dtype)));
    weight.scheme = "mxfp4";
    if (is_e8m0(*scales)) {
      return in_order(t, kMxGroup, std::move(weight),
                      Expression::dequantize(t.name, scales->name, {}, {}, e8m0(CodeType::kF4, 2, *scales)));
    }
    weight.scheme = "nvfp4";
    const CatalogTensor* global = find(name + "_global_scale");
    if (scales->dtype != DType::kF8E4M3 || global == nullptr || global->dtype != DType::kF32) {
      return refuse(fmt::format("NVFP4 needs scales in F8_E4M3 and {} in F32", quote(name + "_global_scale")));
    }
    return nvfp4(t, *scales, *global, TensorScale::kDivisor, std::move(weight));
  }

  static Found nvfp4(const CatalogTensor& t, const CatalogTensor& scales, const CatalogTensor& global, TensorScale is,
                     PackedWeight weight) {
    Decoding decoding;
    decoding.code = CodeType::kF4;
    decoding.per_element = 2;
    decoding.tensor_scale = is;
    weight.keys.push_back(global.name);
    Expression leaf = Expression::dequantize(t.name, scales.name, {}, {}, decoding);
    leaf.tensor_scale = global.name;
    return in_order(t, kNvfp4Group, std::move(weight), std::move(leaf));
  }

  Found modelopt_nvfp4(const CatalogTensor& t) const {
    const CatalogTensor& scales = *find(t.name + "_scale");
    const CatalogTensor& global = *find(t.name + "_scale_2");
    if (t.dtype != DType::kU8 || scales.dtype != DType::kF8E4M3 || global.dtype != DType::kF32 || t.shape.rank() == 0)
      return refuse(fmt::format("NVFP4 needs codes in U8, scales in F8_E4M3 and {} in F32", quote(global.name)));
    PackedWeight weight;
    weight.scheme = "nvfp4";
    weight.keys = {scales.name};
    return nvfp4(t, scales, global, TensorScale::kFactor, std::move(weight));
  }

  // Whether the groups are looked up in this key: they need not be where they count up.
  [[nodiscard]] bool is_ordered(const CatalogTensor& groups) const {
    return said_.has_order.value_or(true) && (said_.ordered.empty() || said_.ordered.contains(groups.name));
  }

  // compressed-tensors: the groups of columns, if the checkpoint has them.
  void add_groups(const CatalogTensor& t, const std::string& name, PackedWeight& weight, Expression& leaf) const {
    const CatalogTensor* groups = find(name + "_g_idx");
    if (groups == nullptr) return;
    weight.keys.push_back(groups->name);
    if (!is_ordered(*groups)) return;
    leaf.groups = groups->name;
    leaf.decoding.groups_dim = t.shape.rank() - 1;
  }

  // Which group a scale is for: what config.json says, or one scale for each row. Never what divides evenly: 2 scales
  // for 96 columns may be groups of 64.
  [[nodiscard]] Result<std::uint64_t, Reason> group_of(const CatalogTensor& scales, std::uint64_t extent) const {
    const std::uint64_t groups = scales.shape.rank() < 2 ? 1 : scales.shape[scales.shape.rank() - 1];
    if (said_.group_size && *said_.group_size > 0) return static_cast<std::uint64_t>(*said_.group_size);
    if (groups == 1) return std::max<std::uint64_t>(1, extent);
    return fail(Reason{
        fmt::format("config.json does not give the size of the {} groups of {}", groups, quote(scales.name)), true});
  }

  Found packed_integers(const CatalogTensor& t, const std::string& name, const CatalogTensor& scales,
                        PackedWeight weight) const {
    const auto code = said_.bits ? unsigned_code(*said_.bits) : std::nullopt;
    if (!said_.bits) return refuse_config("config.json does not give the bits of a code (num_bits)");
    if (!code) return refuse(fmt::format("lading does not dequantize codes of {} bits", *said_.bits));
    if (!is_float_scale(scales))
      return refuse(fmt::format("the dtype of {} is not supported for scales", quote(scales.name)));
    weight.scheme = fmt::format("int{}", *said_.bits);
    Decoding decoding;
    decoding.code = code;
    decoding.per_element = 32 / *said_.bits;
    Expression leaf = Expression::dequantize(t.name, scales.name, {}, {}, decoding);
    if (const CatalogTensor* zeros = find(name + "_zero_point"); zeros != nullptr) {
      leaf.zeros = zeros->name;
      weight.keys.push_back(zeros->name);
    } else if (said_.has_zero_points) {
      return no_zero_points(name);
    } else {
      leaf.decoding.zero = std::uint64_t{1} << (*said_.bits - 1);
    }
    add_groups(t, name, weight, leaf);
    auto group = group_of(scales, t.shape[t.shape.rank() - 1] * decoding.per_element);
    if (!group) return Found(fail(std::move(group).error()));
    return without_padding(name, in_order(t, *group, std::move(weight), std::move(leaf)));
  }

  // The last element of a row may have codes that are no part of the weight.
  [[nodiscard]] Found without_padding(const std::string& name, Found found) const {
    const auto said = said_.shapes.find(name + "_shape");
    if (!found || said == said_.shapes.end() || Shape(said->second) == found->shape) return found;
    const Shape shape(said->second);
    const std::size_t last = found->shape.rank() - 1;
    const std::uint64_t per_element = found->expression.parts.front().decoding.per_element;
    std::vector<std::uint64_t> padded(shape.begin(), shape.end());
    if (shape.rank() == found->shape.rank())
      padded[last] = (padded[last] + per_element - 1) / per_element * per_element;
    if (Shape(padded) != found->shape) {
      return refuse(fmt::format("{} gives the shape {}, but the codes are those of {}", quote(said->first),
                                shape.text(), found->shape.text()));
    }
    found->expression = Expression::slice(std::move(found->expression), last, 0, shape[last]);
    found->shape = shape;
    return found;
  }

  Found int_quantized(const CatalogTensor& t) const {
    const CatalogTensor& scales = *find(t.name + "_scale");
    if (!is_float_scale(scales) || t.shape.rank() == 0) return not_one();
    PackedWeight weight;
    weight.scheme = "int8";
    weight.keys = {scales.name};
    Decoding decoding;
    decoding.code = CodeType::kI8;
    Expression leaf = Expression::dequantize(t.name, scales.name, {}, {}, decoding);
    if (const CatalogTensor* zeros = find(t.name + "_zero_point"); zeros != nullptr) {
      if (zeros->dtype != DType::kI8) return refuse(fmt::format("{} is not in I8", quote(zeros->name)));
      leaf.zeros = zeros->name;
      weight.keys.push_back(zeros->name);
    } else if (said_.has_zero_points) {
      return no_zero_points(t.name);
    }
    add_groups(t, t.name, weight, leaf);
    const bool is_of_tensor = scales.shape.num_elems() == 1;
    auto group = group_of(scales, t.shape[t.shape.rank() - 1]);
    if (!group) return Found(fail(std::move(group).error()));
    auto found = in_order(t, *group, std::move(weight), std::move(leaf));
    if (found && is_of_tensor) {  // one scale, of which in_order() would want one for each row
      std::vector<std::uint64_t> whole(t.shape.begin(), t.shape.end());
      whole.push_back(1);
      for (std::uint64_t& dim : whole) dim = std::max<std::uint64_t>(1, dim);
      found->expression.parts.front().shape = Shape(whole);
    }
    return found;
  }

  Found gptq_or_awq(const CatalogTensor& t, const std::string& prefix) const {
    const CatalogTensor& scales = *find(prefix + "scales");
    const CatalogTensor* zeros = find(prefix + "qzeros");
    if (t.shape.rank() != 2 || scales.shape.rank() != 2) return refuse("qweight and scales do not have two dims");
    if (!is_float_scale(scales))
      return refuse(fmt::format("the dtype of {} is not supported for scales", quote(scales.name)));
    if (zeros == nullptr || !is_integer(*zeros, 32) || zeros->shape.rank() != 2) {
      return refuse(fmt::format("the checkpoint has no zero points {}", quote(prefix + "qzeros")));
    }
    PackedWeight weight;
    weight.keys = {scales.name, zeros->name};
    if (said_.method == "awq") return awq(t, scales, *zeros, std::move(weight));
    if (said_.method != "gptq") {
      return refuse_config(
          "config.json does not say whether it is GPTQ or AWQ (quant_method), which pack in different orders");
    }
    // GPTQ packs along the rows, so there is a column of scales for each column. AWQ packs along the columns.
    const std::uint64_t columns = scales.shape[1];
    if (t.shape[1] != columns)
      return refuse(fmt::format("qweight has {} columns, but scales has {}", t.shape[1], columns));
    return gptq(t, prefix, std::move(weight));
  }

  Found gptq(const CatalogTensor& t, const std::string& prefix, PackedWeight weight) const {
    const CatalogTensor& scales = *find(prefix + "scales");
    const auto code = said_.bits ? unsigned_code(*said_.bits) : std::nullopt;
    if (!said_.bits) return refuse_config("config.json does not give the bits of a code (bits)");
    if (!code) return refuse(fmt::format("lading does not dequantize GPTQ with {} bits", *said_.bits));
    if (!said_.format.empty() && said_.format != "gptq" && said_.format != "gptq_v2")
      return refuse(fmt::format("lading does not know the GPTQ format {}", quote(said_.format)));
    const CatalogTensor* groups = find(prefix + "g_idx");
    if (groups == nullptr && said_.has_order.value_or(true)) {
      return refuse(fmt::format("its rows may be grouped in activation order (desc_act), but the checkpoint has no {}",
                                quote(prefix + "g_idx")));
    }
    weight.scheme = "gptq";
    const std::uint64_t per_element = 32 / *said_.bits;
    const std::uint64_t in = t.shape[0] * per_element;
    if (groups != nullptr) {
      if (groups->shape != Shape{in}) {
        return refuse(fmt::format("the shape of {} is {}, but {} has {} rows", quote(groups->name),
                                  groups->shape.text(), quote(t.name), in));
      }
      weight.keys.push_back(groups->name);
    }
    std::uint64_t group = std::max<std::uint64_t>(1, in);
    if (said_.group_size && *said_.group_size > 0) group = static_cast<std::uint64_t>(*said_.group_size);
    if (!said_.group_size) return refuse_config("config.json does not give the group size (group_size)");
    const bool is_whole = group >= in;
    if (!is_whole && group % per_element != 0)
      return refuse_config(fmt::format("groups of {} do not fit elements of {} codes", group, per_element));
    Decoding decoding;
    decoding.code = code;
    decoding.per_element = per_element;
    decoding.zero = said_.format == "gptq_v2" ? 0 : 1;  // the first format stores zero points less one
    decoding.zeros_dim = 1;
    const std::uint64_t rows = is_whole ? std::max<std::uint64_t>(1, t.shape[0]) : group / per_element;
    Expression made = Expression::dequantize(t.name, scales.name, Shape{rows, 1, per_element}, {}, decoding);
    made.zeros = prefix + "qzeros";
    if (groups != nullptr && is_ordered(*groups)) made.groups = groups->name;
    made = Expression::permute(std::move(made), {1, 0, 2});
    weight.shape = Shape{t.shape[1], in};
    weight.expression = Expression::reshape(std::move(made), weight.shape);
    return weight;
  }

  Found awq(const CatalogTensor& t, const CatalogTensor& scales, const CatalogTensor& zeros,
            PackedWeight weight) const {
    if (said_.bits.value_or(4) != 4)
      return refuse(fmt::format("lading does not dequantize AWQ with {} bits", *said_.bits));
    if (!said_.format.empty() && said_.format != "gemm")
      return refuse(
          fmt::format("lading dequantizes only version gemm of AWQ, but config.json says {}", quote(said_.format)));
    const std::uint64_t groups = scales.shape[0];
    const std::uint64_t in = t.shape[0];
    if (!said_.group_size) return refuse_config("config.json does not give the group size (group_size)");
    std::uint64_t group = std::max<std::uint64_t>(1, in);
    if (*said_.group_size > 0) group = static_cast<std::uint64_t>(*said_.group_size);
    if (groups * group < in || zeros.shape[0] != groups)
      return refuse_config(fmt::format("{} groups of {} do not fit {} rows", groups, group, in));
    weight.scheme = "awq";
    Decoding decoding;
    decoding.code = CodeType::kU4;
    decoding.per_element = kAwqColumns.size();
    decoding.zeros_dim = 1;
    decoding.scale_order = kAwqColumns;
    Expression made = Expression::dequantize(
        t.name, scales.name, Shape{std::min(group, std::max<std::uint64_t>(1, in)), 1, 1}, {}, decoding);
    made.zeros = zeros.name;
    // The place 4 * high + low of a code is the column 2 * low + high.
    made = Expression::rearrange(std::move(made), 2, {2, 4}, {1, 0});
    const std::uint64_t out = t.shape[1] * kAwqColumns.size();
    made = Expression::reshape(std::move(made), Shape{in, out});
    weight.shape = Shape{out, in};
    weight.expression = Expression::permute(std::move(made), {1, 0});
    return weight;
  }

  const Catalog& catalog_;
  Quantization said_;
  PackedWeights out_;
};

}  // namespace

PackedWeights find_packed_weights(const Catalog& catalog) { return Finder(catalog).run(); }

}  // namespace lading::planner
