#include "planner/convert/converted_model.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/quantized.h"
#include "planner/convert/key_changes.h"
#include "planner/quantized/dequantize.h"
#include "planner/quantized/packed_weights.h"
#include "policy/policy.h"

namespace lading::planner {
namespace {

using checkpoint::CatalogTensor;

class PlainTensorFinder {
 public:
  PlainTensorFinder(const checkpoint::Catalog& catalog, const ConvertedDTypes& dtypes)
      : catalog_(catalog), dtypes_(dtypes), quantized_(catalog) {}

  Result<PlainTensors, Errors> run() {
    add_packed();
    for (const CatalogTensor& tensor : catalog_.tensors_of(0)) find_scales(tensor);
    for (const CatalogTensor& tensor : catalog_.tensors_of(0)) {
      if (!found_.parts.contains(tensor.name)) add(tensor);
    }
    if (!errors_.empty()) return fail(std::move(errors_));
    return std::move(found_);
  }

 private:
  void add_packed() {
    PackedWeights packed = find_packed_weights(catalog_);
    for (const auto& [payload, why] : packed.refused) {
      errors_.add(Error(Code::kDType, "the weight is quantized in a way that lading does not dequantize")
                      .of_tensor(payload)
                      .by_rule("R48")
                      .got(why.text)
                      .try_this(why.is_in_config ? "Put the config.json that belongs to the files beside them."
                                                 : "Convert a checkpoint that is not quantized."));
    }
    for (const auto& [name, weight] : packed.by_name) {
      found_.parts.insert(weight.keys.begin(), weight.keys.end());
      std::vector<std::string> keys = weight.keys;
      leave_other_scales(weight.payload, keys);
      add_tensor(name, weight.shape, dtypes_.asked.value_or(dtypes_.dequantized), std::move(keys));
    }
  }

  // A payload under the name of the weight: what belongs to it is no tensor of the new checkpoint.
  void find_scales(const CatalogTensor& tensor) {
    if (!is_payload(tensor)) return;
    std::vector<std::string>& keys = keys_of_payloads_[tensor.name];
    for (const CatalogTensor* one : quantized_.companions_of(tensor)) {
      found_.parts.insert(one->name);
      keys.push_back(one->name);
    }
    leave_other_scales(tensor.name, keys);
  }

  void leave_other_scales(std::string_view payload, std::vector<std::string>& keys) {
    for (std::string& key : scales_beside(payload)) {
      if (catalog_.find(key) == nullptr) continue;
      found_.parts.insert(key);
      keys.push_back(std::move(key));
    }
  }

  [[nodiscard]] bool is_payload(const CatalogTensor& tensor) const {
    return tensor.dtype && checkpoint::is_payload_dtype(*tensor.dtype) && !found_.parts.contains(tensor.name) &&
           !quantized_.companions_of(tensor).empty();
  }

  void add(const CatalogTensor& tensor) {
    if (!tensor.dtype) {
      errors_.add(Error(Code::kUnknownDType, "the tensor has a dtype that lading does not know")
                      .of_tensor(tensor.name)
                      .in_file(catalog_.files[tensor.file].name)
                      .got(quote(tensor.unknown_dtype))
                      .try_this("Convert it with a newer lading."));
      return;
    }
    const bool is_float = policy::is_ordinary_float(*tensor.dtype) || policy::is_float8(*tensor.dtype);
    if (is_payload(tensor)) {
      add_tensor(tensor.name, tensor.shape, dtypes_.asked.value_or(dtypes_.dequantized),
                 std::move(keys_of_payloads_[tensor.name]));
    } else {
      add_tensor(tensor.name, tensor.shape, is_float ? dtypes_.asked.value_or(*tensor.dtype) : *tensor.dtype, {});
    }
  }

  void add_tensor(const std::string& name, const Shape& shape, DType dtype, std::vector<std::string> keys) {
    PlainTensor& plain = found_.list.emplace_back();
    plain.keys = std::move(keys);
    model::Tensor& tensor = plain.tensor;
    tensor.name = name;
    tensor.shape = shape;
    tensor.dtype = dtype;
    tensor.presence = model::Presence::kEmpty;
    tensor.device = "cpu";
  }

  const checkpoint::Catalog& catalog_;
  const ConvertedDTypes& dtypes_;
  checkpoint::QuantizedKeys quantized_;
  std::map<std::string, std::vector<std::string>, std::less<>> keys_of_payloads_;  // scales, by payload
  PlainTensors found_;
  Errors errors_;
};

}  // namespace

Result<ConvertedModel, Errors> converted_model(const checkpoint::Catalog& catalog, const ConvertedDTypes& dtypes,
                                               const KeyChanges& changes) {
  LADING_ASSIGN_OR_RETURN(PlainTensors plain, PlainTensorFinder(catalog, dtypes).run());
  return change_keys(catalog, std::move(plain), dtypes, changes);
}

}  // namespace lading::planner
