// Quantized payloads: which tensors of a checkpoint are scales or zero points, and of which payload (R48). Pure.
//
// Nobody writes down in safetensors that a tensor is quantized. Its neighbours say it: "x.weight" beside
// "x.weight_scale_inv", "x.qweight" beside "x.scales". Names are taken apart into words, so that the schemes need no
// list of models. Beside the files, config.json may name the scheme.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/catalog.h"

namespace lading::checkpoint {

/// A dtype that payloads of quantized weights have. Not of scales: E8M0 is one.
[[nodiscard]] bool is_payload_dtype(DType dtype);
/// Of these, the ones that have no other use than quantization: 8 bits of float and less.
[[nodiscard]] bool is_low_precision(DType dtype);

/// A dtype that scales of floats have, each of whose values F32 has too.
[[nodiscard]] bool is_scale_dtype(DType dtype);

/// Whether a name without a dtype beside it says that the tensor is a weight: "x.weight", "x.qweight".
[[nodiscard]] bool is_weight_name(std::string_view key);

class QuantizedKeys {
 public:
  /// Borrows the catalog.
  explicit QuantizedKeys(const Catalog& catalog);

  /// The scales and zero points of a payload, sorted by name; empty: nothing says that it is one.
  [[nodiscard]] std::vector<const CatalogTensor*> companions_of(const CatalogTensor& payload) const;

  /// Whether the key is the scale or zero point of a weight, by its name: not "input_scale", nor "k_scale".
  [[nodiscard]] static bool is_scale_of_weight(std::string_view key);

  /// Whether weights are multiplied by it, by its name: "weight_scale", "weight_scale_inv", "scales". Not a zero point,
  /// a codebook, nor a scale of scales.
  [[nodiscard]] static bool is_factor(std::string_view key);

  /// Of a payload without companions: keys beside it that may be its scales, by names that say no more. Those that
  /// say that they are of inputs, outputs or caches are not among them.
  [[nodiscard]] std::vector<const CatalogTensor*> suspects_of(const CatalogTensor& payload) const;

  /// "fp8 blocks", "mxfp4", …: what names and dtypes say. `companions` are those of the payload.
  [[nodiscard]] std::string_view scheme_of(const CatalogTensor& payload,
                                           const std::vector<const CatalogTensor*>& companions) const;

 private:
  void add_prefixes(std::uint32_t tensor);
  void add_suspect(std::uint32_t tensor);

  const Catalog& catalog_;
  std::unordered_map<std::string, std::vector<std::uint32_t>> by_stem_;         // module and words, into the catalog
  std::unordered_map<std::string_view, std::vector<std::uint32_t>> by_prefix_;  // a whole key, into the catalog
  std::unordered_map<std::string_view, std::vector<std::uint32_t>> suspects_;   // by module, or by key
};

/// A key beside the payload that changes what its numbers mean to the module: an order of columns (g_idx), or a factor
/// of inputs (pre_quant_scale). `known` ones do not count. Null: there is none.
[[nodiscard]] const CatalogTensor* find_change_of_meaning(const Catalog& catalog, std::string_view payload,
                                                          const std::vector<std::string>& known);

/// For people who look at a checkpoint: which schemes it uses, each once.
[[nodiscard]] Errors quantization_notes(const Catalog& catalog);

}  // namespace lading::checkpoint
