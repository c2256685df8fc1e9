#include "planner/source_refusals.h"

#include <fmt/format.h>

#include <utility>

#include "base/text.h"
#include "planner/input_checks.h"

namespace lading::planner {

Error in_keep_and_external() {
  return Error(Code::kPlan, "the tensor is listed both in keep and in external, which contradict each other")
      .wanted("either keep or external")
      .try_this("Remove the tensor from \"keep\" or from \"external\".");
}

Error in_keep_and_adapter() {
  return Error(Code::kPlan, "the tensor is listed in keep, but an adapter has it, which contradict each other")
      .wanted("a value in one place")
      .try_this("Remove the tensor from \"keep\", or load the model without this adapter.");
}

Error kept_without_value(model::Presence presence) {
  return Error(Code::kPlan, "the tensor is listed in keep, but has no value yet")
      .wanted("a real value")
      .got(presence == model::Presence::kMeta ? "a tensor on meta" : "memory without a value")
      .try_this("Give the tensor a value before the load, or remove it from \"keep\".");
}

Error in_two_adapters() {
  return Error(Code::kPlan, "two adapters have values for names of one tensor")
      .wanted("one adapter that has it")
      .try_this("Load one of these adapters only.");
}

Error differs_in_shape(const model::Tensor& tensor, std::string found, std::string remedy) {
  return Error(Code::kPlan,
               fmt::format("the shape of this {} differs between model and checkpoint", describe(tensor.kind)))
      .of_tensor(tensor.name)
      .wanted(tensor.shape.text())
      .got(std::move(found))
      .try_this(std::move(remedy));
}

Error forms_differ(std::string one, std::string other) {
  return Error(Code::kPlan, "the checkpoint has different dtypes or shapes for the tied tensors")
      .wanted(std::move(one))
      .got(std::move(other))
      .try_this("Untie them before sharding (\"ties\": \"untie\"), or map only one of the keys.");
}

Error not_in_checkpoint(const model::Tensor& tensor, std::string found, std::string remedy) {
  return Error(Code::kPlan, fmt::format("the checkpoint does not have this {}", describe(tensor.kind)))
      .wanted(fmt::format("a key for {}", tensor.shape.text()))
      .got(std::move(found))
      .try_this(std::move(remedy));
}

Error recipes_differ(std::string_view tied_to) {
  return Error(Code::kPlan,
               fmt::format("the tensor shares its storage with {}, but their recipes give different values",
                           quote(tied_to)))
      .wanted("one recipe for all names of a tie class")
      .got("two that differ")
      .try_this("Give both the same recipe, or omit one of them.");
}

Error without_source(model::Kind kind) {
  return Error(Code::kPlan, fmt::format("this {} has no source for its value", describe(kind)))
      .wanted("a derivation, a real value or a recipe")
      .got("none of them")
      .try_this("Build the model under lading.skeleton(), or give the tensor a recipe.");
}

}  // namespace lading::planner
