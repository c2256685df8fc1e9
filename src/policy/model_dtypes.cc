// The dtype contract for a whole model, where no checkpoint is known.
#include <map>

#include "policy/policy.h"

namespace lading::policy {
namespace {

// One storage is asked about once; it is a tower's if all its names are.
std::vector<bool> frozen_tensors(const model::Skeleton& skeleton) {
  const model::ModuleSet modules(skeleton.frozen_subtrees());
  std::vector<bool> class_is_frozen(skeleton.tie_classes.size(), true);
  for (const model::Tensor& tensor : skeleton.tensors) {
    if (tensor.tie_class && !modules.is_above(tensor.name)) class_is_frozen[*tensor.tie_class] = false;
  }
  std::vector<bool> is_frozen;
  for (const model::Tensor& tensor : skeleton.tensors) {
    is_frozen.push_back(tensor.tie_class ? class_is_frozen[*tensor.tie_class] : modules.is_above(tensor.name));
  }
  return is_frozen;
}

}  // namespace

Result<std::vector<DTypeDecision>, Errors> decide_without_files(const Policy& policy, const model::Skeleton& skeleton) {
  const Pins pins(skeleton, policy);
  const Requests requests(policy);
  const std::vector<bool> is_frozen = frozen_tensors(skeleton);
  std::vector<DTypeDecision> decisions;
  Errors errors;
  std::map<std::size_t, std::vector<TieMember>> ties;
  for (std::size_t i = 0; i < skeleton.tensors.size(); ++i) {
    const model::Tensor& tensor = skeleton.tensors[i];
    DTypeQuestion question;
    question.name = tensor.name;
    question.kind = tensor.kind;
    question.constructed = tensor.dtype;
    question.presence = tensor.presence;
    question.pinned = pins.of(tensor.name);
    question.derived = tensor.derivation.has_value();
    question.declared = tensor.declared_dtype;
    question.frozen = is_frozen[i];
    question.requires_grad = tensor.requires_grad;
    question.request = requests.of(tensor.name);
    auto decision = decide_dtype(policy, question);
    if (!decision) {
      errors.add(std::move(decision).error().of_tensor(tensor.name));
      continue;
    }
    if (tensor.tie_class) ties[*tensor.tie_class].push_back({tensor.name, decision->storage, decision->compute});
    decisions.push_back(*std::move(decision));
  }
  for (const auto& [tie, members] : ties) errors.add(check_tie_dtypes(members));
  if (!errors.empty()) return fail(std::move(errors));
  return decisions;
}

}  // namespace lading::policy
