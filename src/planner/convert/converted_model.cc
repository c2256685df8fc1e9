#include "planner/convert/converted_model.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/quantized.h"
#include "planner/quantized/dequantize.h"
#include "planner/quantized/packed_weights.h"
#include "policy/policy.h"

namespace lading::planner {
namespace {

using checkpoint::CatalogTensor;

class ModelMaker {
 public:
  ModelMaker(const checkpoint::Catalog& catalog, const ConvertedDTypes& dtypes)
      : catalog_(catalog), dtypes_(dtypes), quantized_(catalog) {}

  Result<model::Skeleton, Errors> run() {
    add_packed();
    for (const CatalogTensor& tensor : catalog_.tensors_of(0)) find_scales(tensor);
    for (const CatalogTensor& tensor : catalog_.tensors_of(0)) {
      if (!part_of_others_.contains(tensor.name)) add(tensor);
    }
    if (!errors_.empty()) return fail(std::move(errors_));
    return model::make_skeleton(std::move(tensors_), {}, {});
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
      part_of_others_.insert(weight.keys.begin(), weight.keys.end());
      leave_other_scales(weight.payload);
      add_tensor(name, weight.shape, dtypes_.asked.value_or(dtypes_.dequantized));
    }
  }

  // A payload under the name of the weight: what belongs to it is no tensor of the new checkpoint.
  void find_scales(const CatalogTensor& tensor) {
    if (!is_payload(tensor)) return;
    for (const CatalogTensor* one : quantized_.companions_of(tensor)) part_of_others_.insert(one->name);
    leave_other_scales(tensor.name);
  }

  void leave_other_scales(std::string_view payload) {
    for (std::string& key : scales_beside(payload)) part_of_others_.insert(std::move(key));
  }

  [[nodiscard]] bool is_payload(const CatalogTensor& tensor) const {
    return tensor.dtype && checkpoint::is_payload_dtype(*tensor.dtype) && !part_of_others_.contains(tensor.name) &&
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
      add_tensor(tensor.name, tensor.shape, dtypes_.asked.value_or(dtypes_.dequantized));
    } else {
      add_tensor(tensor.name, tensor.shape, is_float ? dtypes_.asked.value_or(*tensor.dtype) : *tensor.dtype);
    }
  }

  void add_tensor(const std::string& name, const Shape& shape, DType dtype) {
    model::Tensor& tensor = tensors_.emplace_back();
    tensor.name = name;
    tensor.shape = shape;
    tensor.dtype = dtype;
    tensor.presence = model::Presence::kEmpty;
    tensor.device = "cpu";
  }

  const checkpoint::Catalog& catalog_;
  const ConvertedDTypes& dtypes_;
  checkpoint::QuantizedKeys quantized_;
  std::set<std::string, std::less<>>
      part_of_others_;  // keys that quantized weights are made of, or that only they need
  std::vector<model::Tensor> tensors_;
  Errors errors_;
};

}  // namespace

Result<model::Skeleton, Errors> converted_model(const checkpoint::Catalog& catalog, const ConvertedDTypes& dtypes) {
  return ModelMaker(catalog, dtypes).run();
}

}  // namespace lading::planner
