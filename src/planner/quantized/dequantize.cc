#include "planner/quantized/dequantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/quantized.h"

namespace lading::planner {
namespace {

using checkpoint::CatalogTensor;
using mapping::Expression;
using mapping::Op;

// Which rule ignores keys that no number of the weight is made of.
constexpr std::string_view kBesideWeights = "dequantized";

std::uint64_t ceil_of(std::uint64_t extent, std::uint64_t block) { return extent / block + (extent % block ? 1 : 0); }

// Dims of one element may be there or not.
std::vector<std::uint64_t> squeezed(const Shape& shape) {
  std::vector<std::uint64_t> dims(shape.begin(), shape.end());
  std::erase(dims, 1);
  return dims;
}

// The block that the config says, of the last dims.
Result<Shape, std::string> block_by_config(const Shape& payload, const Shape& scales,
                                           const std::vector<std::uint64_t>& last) {
  if (payload.rank() < last.size()) {
    return fail(fmt::format("config.json gives blocks of {}, which do not fit the shape {}", Shape(last).text(),
                            payload.text()));
  }
  std::vector<std::uint64_t> block(payload.rank() - last.size(), 1);
  block.insert(block.end(), last.begin(), last.end());
  std::vector<std::uint64_t> grid;
  for (std::size_t d = 0; d < block.size(); ++d) grid.push_back(ceil_of(payload[d], block[d]));
  if (squeezed(Shape(grid)) != squeezed(scales)) {
    return fail(fmt::format("blocks of {} (config.json) need scales of shape {}, but the file has {}",
                            Shape(last).text(), Shape(grid).text(), scales.text()));
  }
  return Shape(std::move(block));
}

// Without a config, only what has one answer: a scale for the tensor, for each row, or for each of the first dims. Two
// scales for 192 rows may be blocks of 96, of 128, or of anything between.
Result<Shape, std::string> block_by_shape(const Shape& payload, const Shape& scales) {
  std::vector<std::uint64_t> block;
  for (std::size_t d = 0; d < payload.rank(); ++d) {
    const std::uint64_t extent = std::max<std::uint64_t>(1, payload[d]);
    const std::uint64_t count = d < scales.rank() ? scales[d] : 1;
    if (count != 1 && count != payload[d]) {
      return fail(
          fmt::format("config.json does not give the block size (weight_block_size) of scales {} for a payload {}",
                      scales.text(), payload.text()));
    }
    block.push_back(count == 1 ? extent : 1);
  }
  const auto extra = scales.begin() + static_cast<std::ptrdiff_t>(std::min(payload.rank(), scales.rank()));
  if (std::any_of(extra, scales.end(), [](std::uint64_t dim) { return dim != 1; })) {
    return fail(fmt::format("the scales {} have more dims than the payload {}", scales.text(), payload.text()));
  }
  return Shape(std::move(block));
}

// Of scales that are powers of two in a byte each: the groups of the MX formats.
std::optional<Shape> mx_block(const Shape& payload, const Shape& scales) {
  constexpr std::uint64_t kGroup = 32;
  if (payload.rank() == 0 || scales.rank() != payload.rank()) return std::nullopt;
  const std::size_t last = payload.rank() - 1;
  for (std::size_t d = 0; d < last; ++d) {
    if (scales[d] != payload[d]) return std::nullopt;
  }
  if (scales[last] != ceil_of(payload[last], kGroup)) return std::nullopt;
  std::vector<std::uint64_t> block(last, 1);
  block.push_back(kGroup);
  return Shape(std::move(block));
}

// Methods whose 8-bit floats are multiplied by the scales beside them.
bool multiplies(std::string_view method) {
  constexpr std::array<std::string_view, 6> kMethods = {"",           "fp8",      "compressed-tensors",
                                                        "fbgemm_fp8", "modelopt", "mxfp8"};
  return std::find(kMethods.begin(), kMethods.end(), method) != kMethods.end();
}

// Why the product of code and scale is not the whole weight, or "". `known` are keys that have been looked at.
std::string why_not_plain(const checkpoint::Catalog& catalog, const std::string& payload,
                          const std::vector<std::string>& known) {
  if (catalog.quantization && catalog.quantization->has_transforms)
    return "config.json says that the model transforms inputs or outputs as it runs (transform_config)";
  const CatalogTensor* other = checkpoint::find_change_of_meaning(catalog, payload, known);
  if (other == nullptr) return "";
  return fmt::format("{} says that the module does more than multiply by its weight", quote(other->name));
}

class Dequantizing {
 public:
  Dequantizing(const PlanInputs& inputs, const PackedWeights& packed, mapping::Resolution& names)
      : inputs_(inputs), packed_(packed), keys_(inputs.catalog), reasons_(packed.refused) {
    for (const auto& [name, expression] : names.resolved.expressions) {
      for (std::string& key : expression.keys()) read_.insert(std::move(key));
    }
  }

  /// Whatever the tensor's dtype is: the checkpoint does not have these names.
  void visit_packed(Expression& expression) {
    if (expression.op == Op::kSource && inputs_.catalog.find(expression.key) == nullptr) return unpack(expression);
    for (Expression& part : expression.parts) visit_packed(part);
  }

  void visit(Expression& expression) {
    if (expression.op == Op::kSource) return source(expression);
    for (Expression& part : expression.parts) visit(part);
  }

  [[nodiscard]] const std::set<std::string, std::less<>>& unpacked() const { return unpacked_; }

  NotDequantized take_reasons() { return std::move(reasons_); }

 private:
  void unpack(Expression& expression) {
    const auto found = packed_.by_name.find(expression.key);
    if (found == packed_.by_name.end()) return;
    expression = found->second.expression;
    set_product(expression);
    unpacked_.insert(found->second.keys.begin(), found->second.keys.end());
  }

  void set_product(Expression& expression) const {
    if (expression.op == Op::kDequantize) {
      // The tools of GPTQ, AWQ and compressed-tensors multiply in the dtype of the scales, those of the MX formats in
      // BF16.
      const DType scales = *inputs_.catalog.find(expression.scales)->dtype;
      if (inputs_.policy.arithmetic != policy::Arithmetic::kExact)
        expression.product = bits(scales) == 8 ? DType::kBF16 : scales;
    }
    for (Expression& part : expression.parts) set_product(part);
  }

  void source(Expression& expression) {
    const CatalogTensor* payload = inputs_.catalog.find(expression.key);
    if (payload == nullptr || !payload->dtype) return;
    const auto packed = packed_.by_name.find(expression.key);
    if (packed != packed_.by_name.end()) {
      const auto& keys = packed->second.keys;
      const auto is_part_read = [&](const std::string& key) { return read_.contains(key); };
      if (std::none_of(keys.begin() + 1, keys.end(), is_part_read)) unpack(expression);
      return;
    }
    const auto companions = keys_.companions_of(*payload);
    if (companions.empty()) return;
    const auto is_read = [&](const CatalogTensor* one) { return read_.contains(one->name); };
    if (std::any_of(companions.begin(), companions.end(), is_read)) return;  // a module that computes with them
    const auto refuse = [&](std::string why, bool is_in_config = false) {
      reasons_.emplace(expression.key, Reason{std::move(why), is_in_config});
    };
    if (!checkpoint::is_low_precision(*payload->dtype) || bits(*payload->dtype) != 8)
      return refuse(fmt::format("lading does not dequantize {}", keys_.scheme_of(*payload, companions)));
    if (companions.size() > 1) return refuse("it has several scales or zero points");
    const CatalogTensor& scales = *companions.front();
    if (!checkpoint::QuantizedKeys::is_factor(scales.name))
      return refuse(fmt::format("by its name, {} is not a factor of the weight", quote(scales.name)));
    const bool is_mx = scales.dtype == DType::kU8;  // beside 8-bit floats U8 can only be E8M0
    if (!scales.dtype || (!is_mx && !checkpoint::is_scale_dtype(*scales.dtype)))
      return refuse(fmt::format("the dtype of {} is not supported for scales", quote(scales.name)));
    const auto& quantization = inputs_.catalog.quantization;
    if (quantization && !multiplies(quantization->method))
      return refuse(
          fmt::format("lading does not know how quant_method {} stores 8-bit floats", quote(quantization->method)));
    auto block = block_of_scales(inputs_.catalog, *payload, scales);
    if (!block) return refuse(std::move(block).error(), true);
    if (std::string why = why_not_plain(inputs_.catalog, payload->name, {}); !why.empty())
      return refuse(std::move(why));
    Decoding decoding;
    if (is_mx) decoding.scale_dtype = DType::kF8E8M0;
    expression = Expression::dequantize(expression.key, scales.name, *std::move(block),
                                        product_of(is_mx ? DType::kF8E8M0 : *scales.dtype), decoding);
  }

  // What the reference implementations round products to: compressed-tensors multiplies in the scales' dtype,
  // transformers' FP8 and torch's reader in F32 (docs/how-it-works/quantized.md).
  [[nodiscard]] std::optional<DType> product_of(DType scales) const {
    if (inputs_.policy.arithmetic == policy::Arithmetic::kExact) return std::nullopt;
    const auto& quantization = inputs_.catalog.quantization;
    const bool in_scales = quantization && quantization->method == "compressed-tensors" && bits(scales) >= 16;
    return in_scales ? scales : DType::kF32;
  }

  const PlanInputs& inputs_;
  const PackedWeights& packed_;
  checkpoint::QuantizedKeys keys_;
  std::set<std::string, std::less<>> read_;
  std::set<std::string, std::less<>> unpacked_;  // keys of packed weights that are read
  NotDequantized reasons_;
};

bool has_payloads(const checkpoint::Catalog& catalog) {
  const auto tensors = catalog.tensors_of(0);
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const CatalogTensor& t) { return t.dtype && checkpoint::is_payload_dtype(*t.dtype); });
}

void add_scales(const Expression& expression, std::vector<std::string>& scales) {
  if (expression.op == Op::kDequantize) scales.push_back(expression.scales);
  for (const Expression& part : expression.parts) add_scales(part, scales);
}

void leave_other_scales(mapping::Resolved& resolved) {
  const std::function<void(const Expression&)> visit = [&](const Expression& expression) {
    if (expression.op == Op::kDequantize) {
      for (const std::string& key : scales_beside(expression.key)) {
        const auto found = resolved.unread.find(key);
        if (found != resolved.unread.end() && found->second.empty()) found->second = kBesideWeights;
      }
    }
    std::for_each(expression.parts.begin(), expression.parts.end(), visit);
  };
  for (const auto& [name, expression] : resolved.expressions) visit(expression);
}

}  // namespace

std::vector<std::string> scales_beside(std::string_view payload) {
  constexpr std::array<std::string_view, 7> kOfModule = {"input_scale",      "input_global_scale", "input_zero_point",
                                                         "activation_scale", "output_scale",       "k_scale",
                                                         "v_scale"};
  constexpr std::array<std::string_view, 4> kOfAttention = {"k_scale", "v_scale", "k_zero_point", "v_zero_point"};
  std::vector<std::string> keys;
  const auto add = [&](std::string_view module, const auto& endings) {
    for (const std::string_view ending : endings) keys.push_back(fmt::format("{}{}", module, ending));
  };
  const std::string_view module = payload.substr(0, payload.rfind('.') + 1);
  add(module, kOfModule);
  if (module.size() > 1) add(module.substr(0, module.rfind('.', module.size() - 2) + 1), kOfAttention);
  return keys;
}

std::uint64_t count_dequantized(const Plan& plan) {
  return static_cast<std::uint64_t>(std::count_if(plan.sources.begin(), plan.sources.end(),
                                                  [](const Source& source) { return source.scaling.has_value(); }));
}

Result<Shape, std::string> block_of_scales(const checkpoint::Catalog& catalog, const CatalogTensor& payload,
                                           const CatalogTensor& scales) {
  const auto& quantization = catalog.quantization;
  auto block = quantization && !quantization->block.empty()
                   ? block_by_config(payload.shape, scales.shape, quantization->block)
                   : block_by_shape(payload.shape, scales.shape);
  if (!block && scales.dtype == DType::kU8) {  // beside 8-bit floats U8 can only be E8M0
    if (auto groups = mx_block(payload.shape, scales.shape)) return *std::move(groups);
  }
  return block;
}

PackedWeights packed_weights_of(const PlanInputs& inputs) {
  if (inputs.policy.quantized == policy::Quantized::kKeep || !has_payloads(inputs.catalog)) return {};
  PackedWeights packed = find_packed_weights(inputs.catalog);
  if (inputs.policy.arithmetic != policy::Arithmetic::kExact) {
    // compressed-tensors rounds the scale, the product and the result, and modelopt in yet another way.
    std::erase_if(packed.by_name, [&](const auto& entry) {
      if (entry.second.scheme != "nvfp4") return false;
      packed.refused.emplace(
          entry.second.payload,
          Reason{"\"arithmetic\" is \"reference\", which is not supported for NVFP4: its tools round differently"});
      return true;
    });
  }
  std::erase_if(packed.by_name, [&](const auto& entry) {
    const PackedWeight& weight = entry.second;
    std::string why = why_not_plain(inputs.catalog, weight.payload, weight.keys);
    return !why.empty() && packed.refused.emplace(weight.payload, Reason{std::move(why)}).second;
  });
  std::erase_if(packed.by_name, [&](const auto& entry) {
    const auto& [name, weight] = entry;
    return name != weight.payload && inputs.skeleton.find(weight.payload) != nullptr;
  });
  return packed;
}

NotDequantized dequantize_payloads(const PlanInputs& inputs, const PackedWeights& packed, mapping::Resolution& names) {
  if (inputs.policy.quantized == policy::Quantized::kKeep || !has_payloads(inputs.catalog)) return {};
  Dequantizing dequantizing(inputs, packed, names);
  auto& unread = names.resolved.unread;
  std::set<std::string, std::less<>> read;
  for (auto& [name, expression] : names.resolved.expressions) {
    const model::Tensor* tensor = inputs.skeleton.find(name);
    dequantizing.visit_packed(expression);
    if (tensor != nullptr && policy::is_ordinary_float(tensor->dtype)) dequantizing.visit(expression);
    for (std::string& key : expression.keys()) read.insert(std::move(key));
    std::vector<std::string> scales;
    add_scales(expression, scales);
    for (const std::string& key : scales) unread.erase(key);
  }
  for (const std::string& key : dequantizing.unpacked()) {
    const auto found = unread.find(key);
    if (found == unread.end()) continue;
    if (read.contains(key)) {
      unread.erase(found);
    } else {
      found->second = kBesideWeights;  // its order, or its shape
    }
  }
  leave_other_scales(names.resolved);
  // Names that the checkpoint itself does not have.
  std::erase_if(unread, [&](const auto& entry) { return inputs.catalog.find(entry.first) == nullptr; });
  return dequantizing.take_reasons();
}

}  // namespace lading::planner
