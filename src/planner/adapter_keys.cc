#include "planner/adapter_keys.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "base/text.h"

namespace lading::planner {
namespace {

using checkpoint::CatalogTensor;

class AdapterKeyFinder {
 public:
  AdapterKeyFinder(const PlanInputs& inputs, Decisions& out) : inputs_(inputs), out_(out) {}

  Errors run() {
    LADING_CHECK(inputs_.adapters.size() + 1 == inputs_.catalog.checkpoints());
    for (std::uint32_t checkpoint = 1; checkpoint < inputs_.catalog.checkpoints(); ++checkpoint) {
      for (const CatalogTensor& tensor : inputs_.catalog.tensors_of(checkpoint)) place(tensor, checkpoint);
      for (const auto& [key, name] : names_of(checkpoint).names) {
        if (inputs_.catalog.find(key, checkpoint) == nullptr) report_missing(key, name, checkpoint);
      }
    }
    return std::move(errors_);
  }

 private:
  [[nodiscard]] const AdapterNames& names_of(std::uint32_t checkpoint) const {
    return inputs_.adapters[checkpoint - 1];
  }

  [[nodiscard]] std::optional<StatementId> id_of(std::string_view name) const {
    const model::Tensor* found = inputs_.skeleton.find(name);
    if (found == nullptr) return std::nullopt;
    return StatementId(static_cast<std::size_t>(found - inputs_.skeleton.tensors.data()));
  }

  // Of a tensor of the model, which is known.
  void refuse(StatementId i, std::uint32_t checkpoint, Error error) {
    out_.tensors[i].is_refused = true;
    errors_.add(std::move(error).of_tensor(out_.plan.statements[i].name).in_file(names_of(checkpoint).path));
  }

  void place(const CatalogTensor& tensor, std::uint32_t checkpoint) {
    const auto& names = names_of(checkpoint).names;
    const auto named = names.find(tensor.name);
    const std::string& name = named == names.end() ? tensor.name : named->second;
    const auto i = id_of(name);
    if (!i) {
      errors_.add(Error(Code::kPlan, "the adapter has a tensor that the model has no place for")
                      .of_tensor(tensor.name)
                      .in_file(names_of(checkpoint).path)
                      .by_rule("R39")
                      .wanted(fmt::format("a tensor {} in the model", quote(name)))
                      .try_this("Load the adapter into the model that it was trained with."));
      return;
    }
    if (tensor.shape != inputs_.skeleton.tensors[i->number()].shape) {
      return refuse(*i, checkpoint,
                    Error(Code::kPlan, "the tensor has another shape in the adapter")
                        .by_rule("R41")
                        .wanted(inputs_.skeleton.tensors[i->number()].shape.text())
                        .got(fmt::format("{} from {}", tensor.shape.text(), quote(tensor.name)))
                        .try_this("Load the adapter into the model that it was trained with."));
    }
    const auto [place, is_new] = out_.adapter_keys.try_emplace(*i, AdapterKey{checkpoint, tensor.name});
    if (is_new) return;
    refuse(*i, checkpoint,
           Error(Code::kPlan, "two keys of adapters are for one tensor")
               .by_rule("R43")
               .wanted("one key")
               .got(fmt::format("{} of {}, and {}", quote(place->second.key),
                                quote(names_of(place->second.checkpoint).path), quote(tensor.name)))
               .try_this("Load only one adapter that has this tensor, under one key."));
  }

  void report_missing(const std::string& key, const std::string& name, std::uint32_t checkpoint) {
    Error error = Error(Code::kPlan, "the adapter does not have this tensor")
                      .by_rule("R39")
                      .wanted(fmt::format("the key {}", quote(key)))
                      .got("no such key")
                      .try_this("Load the adapter that was saved with this configuration.");
    if (const auto i = id_of(name)) return refuse(*i, checkpoint, std::move(error));
    errors_.add(std::move(error).of_tensor(name).in_file(names_of(checkpoint).path));
  }

  const PlanInputs& inputs_;
  Decisions& out_;
  Errors errors_;
};

}  // namespace

Errors find_adapter_keys(const PlanInputs& inputs, Decisions& decisions) {
  return AdapterKeyFinder(inputs, decisions).run();
}

}  // namespace lading::planner
