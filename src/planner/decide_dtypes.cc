#include "planner/decide_dtypes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace lading::planner {
namespace {

std::string_view owner_of(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

// Whole names: a remedy is to be copied.
std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", escape(text)); }

std::string first_few(const std::vector<std::string_view>& names) {
  constexpr std::size_t kFew = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(kFew, names.size()); ++i) text += (i > 0 ? ", " : "") + quote(names[i]);
  if (names.size() > kFew) text += fmt::format(" and {} more", names.size() - kFew);
  return text;
}

class DTypeDecider {
 public:
  DTypeDecider(const PlanInputs& inputs, const policy::Pins& pins, Decisions& out)
      : inputs_(inputs), pins_(pins), out_(out), requests_(inputs.policy) {}

  Errors run() {
    // They matter only where a tower is computed in a dtype of the policy's (R28).
    find_frozen(inputs_.policy.compute_dtype ? model::ModuleSet(inputs_.skeleton.frozen_subtrees())
                                             : model::ModuleSet());
    for (const StatementId i : out_.plan.statements.ids()) {
      if (!out_.tensors[i].is_refused) decide(i);
    }
    refuse_payloads();
    report_records();
    report_wide();
    return std::move(errors_);
  }

 private:
  // A storage is a tower's if all its names are: the others would be computed with something that trains.
  void find_frozen(const model::ModuleSet& modules) {
    is_frozen_.assign(out_.plan.statements.size(), !modules.empty());
    if (modules.empty()) return;
    for (const StatementId i : is_frozen_.ids()) {
      if (!modules.is_above(out_.plan.statements[i].name)) is_frozen_[out_.tensors[i].head] = false;
    }
  }

  [[nodiscard]] policy::DTypeQuestion question_about(StatementId i) const {
    // One storage is asked about once: names may differ in what is requested or pinned, but in nothing else (R31).
    const StatementId head = out_.tensors[i].head;
    const Speakers& speakers = out_.tensors[head].speakers;
    const model::Tensor& memory = inputs_.skeleton.tensors[speakers.memory.number()];
    const model::Tensor& member = inputs_.skeleton.tensors[speakers.kind.number()];
    const Statement& s = out_.plan.statements[i];
    policy::DTypeQuestion question;
    question.name = s.name;
    question.kind = member.kind;
    question.constructed = memory.dtype;
    question.presence = memory.presence;
    question.checkpoint = out_.plan.statements[head].checkpoint == 0 ? dtype_of_file(s, head) : base_dtype(head);
    question.is_dequantized = !question.checkpoint && is_dequantized(head);
    question.pinned = pins_.of(s.name);
    question.derived = out_.tensors[head].is_derived;
    if (question.derived) question.declared = inputs_.skeleton.tensors[speakers.value.number()].declared_dtype;
    question.frozen = is_frozen_[head];
    question.requires_grad = member.requires_grad;
    question.request = requests_.of(s.name);
    return question;
  }

  // What is dequantized has no dtype in the file, but its other parts may have one.
  [[nodiscard]] std::optional<DType> dtype_of_file(const Statement& s, StatementId head) const {
    if (!is_dequantized(head)) return s.checkpoint_dtype;
    std::optional<DType> dtype;
    for (const SourceId number : out_.tensors[head].pieces.source_numbers) {
      const Source& source = out_.plan.sources[number];
      if (source.scaling) continue;
      const auto both = policy::promote_types(dtype.value_or(source.dtype), source.dtype);
      if (both) dtype = *both;
    }
    return dtype;
  }

  [[nodiscard]] bool is_dequantized(StatementId head) const {
    const SourceNumbers& numbers = out_.tensors[head].pieces.source_numbers;
    return std::any_of(numbers.begin(), numbers.end(),
                       [&](SourceId number) { return out_.plan.sources[number].scaling.has_value(); });
  }

  // Of a tensor that an adapter has. A trained copy of a base tensor has the dtype that the base gives it: it is
  // computed with the rest of the model. Others, that no key of the base is for, have the dtype that their module was
  // made in (PEFT keeps LoRA in F32). The adapter's file is cast to either, as PEFT does.
  [[nodiscard]] std::optional<DType> base_dtype(StatementId head) const {
    std::optional<DType> dtype;
    for (const std::string& key : out_.tensors[head].unread_keys) {
      const std::optional<DType> next = inputs_.catalog.find(key)->dtype;
      if (!next || !policy::is_ordinary_float(*next)) return std::nullopt;
      const auto both = policy::promote_types(dtype.value_or(*next), *next);
      if (!both) return std::nullopt;
      dtype = *both;
    }
    return dtype;
  }

  void decide(StatementId i) {
    Statement& s = out_.plan.statements[i];
    const StatementId head = out_.tensors[i].head;
    s.checkpoint_dtype = checkpoint_dtype(s, head);
    const policy::DTypeQuestion question = question_about(i);
    auto decision = policy::decide_dtype(inputs_.policy, question);
    if (!decision) {
      const DType source = question.checkpoint.value_or(question.constructed);
      const bool is_payload = policy::is_float8(source) || policy::is_packed(source);
      if (is_payload && decision.error().has_no_common_dtype) {
        payloads_.push_back(i);
      } else {
        out_.tells_of_payloads = out_.tells_of_payloads || decision.error().is_of_payload;
        errors_.add(std::move(decision).error().of_tensor(s.name));
      }
      return;
    }
    if (is_held_by_its_record(question, *decision)) held_by_record_.insert(head);
    if (is_kept_wide(question, *decision)) kept_wide_.insert(head);
    s.storage = decision->storage;
    s.compute = decision->compute;
    s.storage_rule = decision->storage_rule;
    s.compute_rule = decision->compute_rule;
    s.follows_tower = decision->follows_tower;
    s.dtype_reason = std::move(decision->reason);
    s.dtype_reason.reserve(s.dtype_reason.size() + decision->storage_rule.size() + decision->compute_rule.size() + 16);
    s.dtype_reason.append(" (").append(decision->storage_rule).append("; compute ");
    s.dtype_reason.append(decision->compute_rule).append(")");
    check_casts(s, head);
    if (s.shape.size_bytes(s.storage)) return;
    errors_.add(Error(Code::kPlan, "the tensor is too large, or its last element ends inside a byte")
                    .of_tensor(s.name)
                    .by_rule("S3")
                    .got(fmt::format("{} {}", name(s.storage), s.shape.text()))
                    .try_this("Request another dtype for this tensor."));
  }

  // F32 in the file and not pinned, so that compute_dtype is void for it, and only for that (R26).
  [[nodiscard]] bool is_held_by_its_record(const policy::DTypeQuestion& question,
                                           const policy::DTypeDecision& decision) const {
    const policy::Policy& policy = inputs_.policy;
    if (policy.compute_record != policy::ComputeRecord::kCheckpoint || !question.requires_grad) return false;
    if (!policy.compute_dtype || bits(*policy.compute_dtype) >= bits(DType::kF32)) return false;
    if (question.kind != model::Kind::kParameter || question.derived || question.checkpoint != DType::kF32)
      return false;
    if (question.pinned && policy::pin_withstands(*question.pinned, *policy.compute_dtype)) return false;
    return decision.storage == DType::kF32 && decision.compute == DType::kF32;
  }

  // The commonest recipe is an F32 file, F32 masters and BF16 compute. By the rule it computes in F32 (ADR 0004).
  void report_records() {
    if (held_by_record_.empty()) return;
    std::vector<std::string_view> names;
    for (const StatementId i : held_by_record_) names.push_back(out_.plan.statements[i].name);
    const std::string_view policy = name(*inputs_.policy.compute_dtype);
    out_.plan.warnings.add(
        Error(
            Code::kDType,
            fmt::format("{0} trainable parameter{1} will be computed in F32, not in the compute dtype {3}, because the "
                        "checkpoint has {2} in F32",
                        names.size(), names.size() == 1 ? "" : "s", names.size() == 1 ? "it" : "them", policy))
            .of_tensor(names.front())
            .by_rule("R26")
            .got(first_few(names))
            .try_this(
                fmt::format("Set \"compute_record\": \"ignore\" to compute them in {}, except those that the model "
                            "keeps in F32.",
                            policy)));
  }

  // Wider in the checkpoint than the request, which promotes and never rounds (R23).
  [[nodiscard]] bool is_kept_wide(const policy::DTypeQuestion& question, const policy::DTypeDecision& decision) const {
    const policy::Policy& policy = inputs_.policy;
    if (policy.cast != policy::Cast::kPromote || !policy.dtype || question.request->by_subtree) return false;
    if (!question.checkpoint || question.derived || decision.follows_tower) return false;
    if (question.pinned && policy::pin_withstands(*question.pinned, *policy.dtype)) return false;
    const auto promoted = policy::promote_types(*question.checkpoint, *policy.dtype);
    return promoted && policy::is_ordinary_float(*promoted) && bits(*promoted) > bits(*policy.dtype);
  }

  // A request that the files' own dtypes outdo is easily taken for one that was heard.
  void report_wide() {
    if (kept_wide_.empty()) return;
    std::vector<std::string_view> names;
    std::set<std::string_view> dtypes;
    for (const StatementId i : kept_wide_) {
      names.push_back(out_.plan.statements[i].name);
      dtypes.insert(name(out_.plan.statements[i].storage));
    }
    const bool is_one = names.size() == 1;
    out_.plan.warnings.add(
        Error(Code::kDType,
              fmt::format("dtype {} was requested, but {} tensor{} of the checkpoint {} stored in {}: by default "
                          "(cast=\"promote\") a request never rounds",
                          name(*inputs_.policy.dtype), names.size(), is_one ? "" : "s", is_one ? "is" : "are",
                          fmt::join(dtypes, ", ")))
            .of_tensor(names.front())
            .by_rule("R23")
            .got(first_few(names))
            .try_this("Set \"cast\": \"exact\" to round them, except those that the model keeps in F32."));
  }

  // Payloads of quantized weights do not promote with the request. One error for all, with what to write.
  void refuse_payloads() {
    if (payloads_.empty()) return;
    std::vector<std::string_view> names;
    for (const StatementId i : payloads_) {
      names.push_back(out_.plan.statements[i].name);
      out_.tensors[i].is_refused = true;
    }
    const Statement& first = out_.plan.statements[payloads_.front()];
    const DType source = first.checkpoint_dtype.value_or(inputs_.skeleton.tensors[payloads_.front().number()].dtype);
    const auto requested = requests_.of(first.name).dtype;
    errors_.add(Error(Code::kDType, fmt::format("{} quantized tensor{} cannot be promoted to the requested dtype",
                                                names.size(), names.size() == 1 ? "" : "s"))
                    .of_tensor(first.name)
                    .by_rule("R23")
                    .wanted(fmt::format("{}, as in the checkpoint", name(source)))
                    .got(fmt::format("a request for {} of {}", requested ? name(*requested) : "auto", first_few(names)))
                    .try_this(payload_remedy()));
  }

  // The modules to ask "auto" for: the largest ones in which nothing else changes by it. If those are too many
  // to write, the one module above all payloads, and then other tensors in it change too.
  [[nodiscard]] std::string payload_remedy() const {
    constexpr std::size_t kMostModules = 8;
    const std::set<std::string_view> others = modules_that_auto_would_change();
    std::set<std::string_view> modules;
    std::string_view above = owner_of(out_.plan.statements[payloads_.front()].name);
    for (const StatementId i : payloads_) {
      const std::string_view name = out_.plan.statements[i].name;
      std::string_view module = name;
      const std::string_view asked_for = asked_for_by(name);
      while (module != asked_for && !others.contains(owner_of(module))) module = owner_of(module);
      modules.insert(module);
      while (!model::is_beneath(name, above)) above = owner_of(above);
    }
    const bool is_exact = modules.size() <= kMostModules;
    if (!is_exact) {
      modules = {above};
      for (const StatementId i : payloads_) {
        const std::string_view asked_for = asked_for_by(out_.plan.statements[i].name);
        if (asked_for.size() > above.size()) modules.insert(asked_for);
      }
    }
    std::string field = modules.erase(std::string_view()) > 0 ? "\"dtype\": \"auto\"" : "";
    if (!modules.empty()) {
      std::string entries;
      for (const std::string_view module : modules) {
        entries += fmt::format("{}{}: \"auto\"", entries.empty() ? "" : ", ", in_quotes(module));
      }
      field += fmt::format("{}\"subtree_dtypes\": {{{}}}", field.empty() ? "" : " and ", entries);
    }
    return fmt::format("Set {} to leave them as they are in the checkpoint{}.", field,
                       is_exact ? "" : ", together with all other tensors of these modules");
  }

  // The entry of subtree_dtypes that a tensor's request comes from; an entry above it would not be heard.
  [[nodiscard]] std::string_view asked_for_by(std::string_view name) const { return requests_.entry_of(name); }

  // Modules with a tensor beneath them, other than payloads, that the request makes different from "auto".
  [[nodiscard]] std::set<std::string_view> modules_that_auto_would_change() const {
    policy::Policy automatic = inputs_.policy;
    automatic.dtype.reset();
    automatic.subtree_dtypes.clear();
    const std::set<StatementId> payloads(payloads_.begin(), payloads_.end());
    std::set<std::string_view> modules;
    for (const StatementId i : out_.plan.statements.ids()) {
      if (payloads.contains(i) || out_.tensors[i].is_refused) continue;
      const Statement& s = out_.plan.statements[i];
      policy::DTypeQuestion question = question_about(i);
      question.request = policy::Request{};
      const auto otherwise = policy::decide_dtype(automatic, question);
      if (otherwise && otherwise->storage == s.storage && otherwise->compute == s.compute) continue;
      for (std::string_view module = s.name; !module.empty();) {
        module = owner_of(module);
        modules.insert(module);
      }
    }
    return modules;
  }

  // Each part is cast by itself, in one step (R24).
  void check_casts(const Statement& s, StatementId head) {
    for (const SourceId number : out_.tensors[head].pieces.source_numbers) {
      const Source& source = out_.plan.sources[number];
      if (source.scaling) {
        if (policy::is_ordinary_float(s.storage)) continue;
        errors_.add(Error(Code::kDType, fmt::format("{} cannot be dequantized to this dtype", quote(source.key)))
                        .of_tensor(s.name)
                        .by_rule("R48")
                        .wanted("F16, BF16, F32 or F64")
                        .got(std::string(name(s.storage)))
                        .try_this("Request a float dtype of 16 bits or more for this tensor."));
        continue;
      }
      if (source.dtype == s.storage || policy::cast_is_possible(source.dtype, s.storage)) continue;
      errors_.add(
          Error(Code::kDType, fmt::format("{} cannot be cast to the storage dtype of the tensor", quote(source.key)))
              .of_tensor(s.name)
              .by_rule("R23")
              .wanted(std::string(name(s.storage)))
              .got(std::string(name(source.dtype)))
              .try_this("Request the checkpoint's dtype for this tensor, or convert the checkpoint."));
    }
  }

  // Of all its sources together.
  std::optional<DType> checkpoint_dtype(const Statement& s, StatementId head) {
    std::optional<DType> dtype;
    for (const SourceId number : out_.tensors[head].pieces.source_numbers) {
      const DType next = out_.plan.sources[number].dtype;
      if (!dtype) dtype = next;
      if (*dtype == next) continue;
      const auto both = policy::promote_types(*dtype, next);
      if (!both && is_dequantized(head)) continue;  // which is no obstacle to putting the parts together
      if (!both) {
        errors_.add(Error(Code::kDType, "the parts of the tensor have dtypes that cannot be combined")
                        .of_tensor(s.name)
                        .by_rule("R23")
                        .got(fmt::format("{} and {}", name(*dtype), name(next)))
                        .try_this("Convert the checkpoint, so that the parts have one dtype."));
        return dtype;
      }
      dtype = *both;
    }
    return dtype;
  }

  const PlanInputs& inputs_;
  const policy::Pins& pins_;
  Decisions& out_;
  policy::Requests requests_;
  IndexedVector<StatementId, bool> is_frozen_;  // of heads: in a tower that nothing trains
  std::vector<StatementId> payloads_;           // that do not promote with what was requested
  std::set<StatementId> held_by_record_;        // heads of classes
  std::set<StatementId> kept_wide_;             // the same
  Errors errors_;
};

}  // namespace

Errors decide_dtypes(const PlanInputs& inputs, const policy::Pins& pins, Decisions& decisions) {
  return DTypeDecider(inputs, pins, decisions).run();
}

}  // namespace lading::planner
