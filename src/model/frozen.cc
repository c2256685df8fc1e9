// Fully frozen subtrees, as R28 needs them.
#include <algorithm>
#include <unordered_map>

#include "model/skeleton.h"

namespace lading::model {
namespace {

std::string_view parent_of(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

}  // namespace

bool is_beneath(std::string_view name, std::string_view module) {
  return module.empty() || name == module ||
         (name.size() > module.size() && name[module.size()] == '.' && name.substr(0, module.size()) == module);
}

bool ModuleSet::is_above(std::string_view tensor) const {
  if (modules_.empty()) return false;
  if (modules_.contains("")) return true;
  for (std::size_t dot = tensor.find('.'); dot != std::string_view::npos; dot = tensor.find('.', dot + 1)) {
    if (modules_.contains(tensor.substr(0, dot))) return true;
  }
  return false;
}

std::vector<std::string> Skeleton::frozen_subtrees() const {
  // One storage is updated whichever of its names the optimizer sees.
  std::vector<bool> class_trains(tie_classes.size(), false);
  // Of a skeleton that make_skeleton() has not seen, the number may be anything.
  const auto is_in_class = [&](const Tensor& tensor) {
    return tensor.tie_class && *tensor.tie_class < tie_classes.size();
  };
  for (const Tensor& tensor : tensors) {
    if (is_in_class(tensor) && tensor.requires_grad) class_trains[*tensor.tie_class] = true;
  }

  // Modules that own a parameter, and whether one of theirs trains.
  std::unordered_map<std::string_view, bool> trains;
  for (const Tensor& tensor : tensors) {
    if (tensor.kind != Kind::kParameter) continue;
    const bool parameter_trains = tensor.requires_grad || (is_in_class(tensor) && class_trains[*tensor.tie_class]);
    for (std::string_view module = tensor.name; !module.empty();) {
      module = parent_of(module);
      bool& module_trains = trains[module];
      module_trains = module_trains || parameter_trains;
    }
  }

  std::vector<std::string> outermost;
  for (const auto& [module, module_trains] : trains) {
    // Whatever is beneath a frozen module is frozen, so looking one step up is enough.
    if (!module_trains && (module.empty() || trains.at(parent_of(module)))) outermost.emplace_back(module);
  }
  std::sort(outermost.begin(), outermost.end());
  return outermost;
}

}  // namespace lading::model
