#include "plan/decide_dtypes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace lading::plan {
namespace {

using Modules = std::set<std::string, std::less<>>;

bool is_beneath_any(std::string_view name, const Modules& modules) {
  if (modules.empty()) return false;
  if (modules.contains("")) return true;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    if (modules.contains(name.substr(0, dot))) return true;
  }
  return false;
}

bool is_sharded(const layout::Placement& placement) {
  const auto& cuts = placement.slots.front().cuts;
  return std::any_of(cuts.begin(), cuts.end(), [](const layout::Cut& cut) {
    return cut.kind == layout::CutKind::kShard || cut.kind == layout::CutKind::kStridedShard;
  });
}

class DTypeDecider {
 public:
  DTypeDecider(const PlanInputs& inputs, const policy::Pins& pins, Decisions& out)
      : inputs_(inputs), pins_(pins), out_(out) {}

  Errors run() {
    const std::vector<std::string> frozen = inputs_.skeleton.frozen_subtrees();
    const Modules frozen_modules(frozen.begin(), frozen.end());
    for (std::size_t i = 0; i < out_.plan.statements.size(); ++i) decide(i, frozen_modules);
    return std::move(errors_);
  }

 private:
  void decide(std::size_t i, const Modules& frozen_modules) {
    const model::Tensor& tensor = inputs_.skeleton.tensors[i];
    Statement& s = out_.plan.statements[i];
    const std::size_t head = out_.class_of[i];
    s.checkpoint_dtype = checkpoint_dtype(s, head);
    policy::DTypeQuestion question;
    question.name = s.name;
    question.kind = s.kind;
    question.constructed = tensor.dtype;
    question.presence = tensor.presence;
    question.checkpoint = s.checkpoint_dtype;
    question.pinned = pins_.of(s.name);
    question.derived = out_.is_derived[head];
    if (question.derived) question.declared = tensor.declared_dtype;
    question.sharded = is_sharded(s.placement);
    question.frozen = is_beneath_any(s.name, frozen_modules);
    question.requires_grad = tensor.requires_grad;
    auto decision = policy::decide_dtype(inputs_.policy, question);
    if (!decision) {
      errors_.add(std::move(decision).error().of_tensor(s.name));
      return;
    }
    s.storage = decision->storage;
    s.compute = decision->compute;
    s.dtype_reason =
        fmt::format("{} ({}; compute {})", decision->reason, decision->storage_rule, decision->compute_rule);
    check_casts(s, head);
    if (s.shape.size_bytes(s.storage)) return;
    errors_.add(Error(Code::kPlan, "the tensor is too large, or ends inside a byte")
                    .of_tensor(s.name)
                    .by_rule("S3")
                    .got(fmt::format("{} {}", name(s.storage), s.shape.text())));
  }

  // Each part is cast by itself, in one step (R24).
  void check_casts(const Statement& s, std::size_t head) {
    for (const std::uint32_t number : out_.pieces[head].source_numbers) {
      const Source& source = out_.plan.sources[number];
      if (source.dtype == s.storage || policy::cast_is_possible(source.dtype, s.storage)) continue;
      errors_.add(
          Error(Code::kDType, fmt::format("{} cannot be cast to what the whole is stored as", quote(source.key)))
              .of_tensor(s.name)
              .by_rule("R23")
              .wanted(std::string(name(s.storage)))
              .got(std::string(name(source.dtype))));
    }
  }

  // Of all its sources together.
  std::optional<DType> checkpoint_dtype(const Statement& s, std::size_t head) {
    std::optional<DType> dtype;
    for (const std::uint32_t number : out_.pieces[head].source_numbers) {
      const DType next = out_.plan.sources[number].dtype;
      if (!dtype) dtype = next;
      if (*dtype == next) continue;
      const auto both = policy::promote_types(*dtype, next);
      if (!both) {
        errors_.add(Error(Code::kDType, "its parts have dtypes that do not go together")
                        .of_tensor(s.name)
                        .by_rule("R23")
                        .got(fmt::format("{} and {}", name(*dtype), name(next))));
        return dtype;
      }
      dtype = *both;
    }
    return dtype;
  }

  const PlanInputs& inputs_;
  const policy::Pins& pins_;
  Decisions& out_;
  Errors errors_;
};

}  // namespace

Errors decide_dtypes(const PlanInputs& inputs, const policy::Pins& pins, Decisions& decisions) {
  return DTypeDecider(inputs, pins, decisions).run();
}

}  // namespace lading::plan
