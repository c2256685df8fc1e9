// The dtype contract, R22 to R29 and R31, R32. docs/how-it-works/dtype-contract.md has the same as one table, and
// dtype_table_test.cc holds the two together: change both.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "policy/policy.h"

namespace lading::policy {
namespace {

using model::Kind;
using model::Presence;

struct Asked {
  DType dtype;
  std::string_view rule;
  std::string reason;
  bool follows_tower = false;
};

DTypeRefusal refusal(Error error) { return {std::move(error), false, false}; }

bool is_floating(DType dtype) { return class_of(dtype) == DTypeClass::kFloat; }

// The dtype that the value has before anything is decided.
DType source_dtype(const DTypeQuestion& question) {
  if (question.derived) return question.declared.value_or(question.constructed);
  return question.checkpoint.value_or(question.constructed);
}

bool is_kept(const DTypeQuestion& question) {
  return !question.derived && !question.checkpoint && !question.is_dequantized && question.presence == Presence::kReal;
}

bool is_buffer(Kind kind) { return kind == Kind::kBuffer || kind == Kind::kNonPersistentBuffer; }

Request request_of(const Policy& policy, const DTypeQuestion& question) {
  return question.request ? *question.request : Requests(policy).of(question.name);
}

// The user's own word about this tensor, which no tower changes: a dtype for its subtree, or an exact one.
bool is_asked_for(const Policy& policy, const DTypeQuestion& question) {
  if (!question.checkpoint && question.kind != Kind::kParameter) return false;  // a request is about weights
  const Request request = request_of(policy, question);
  return request.dtype && (request.by_subtree || policy.cast == Cast::kExact);
}

// Whether the tensor, being of this dtype, is of a frozen tower that is computed in one dtype (R28). Payloads of
// quantized weights are left alone, and so are tables that are computed in a dtype of their own (R29).
bool follows_its_tower(const Policy& policy, const DTypeQuestion& question, DType dtype) {
  if (!policy.compute_dtype || !question.frozen || question.requires_grad || question.derived) return false;
  if (!is_ordinary_float(dtype)) return false;
  if (question.pinned && pin_withstands(*question.pinned, *policy.compute_dtype)) return false;
  if (is_asked_for(policy, question)) return false;
  return is_buffer(question.kind) || question.kind == Kind::kParameter;
}

Result<Asked, DTypeRefusal> ask_by_request(const Policy& policy, const DTypeQuestion& question) {
  const DType source = source_dtype(question);
  const std::string_view where = question.checkpoint ? "the checkpoint" : "its constructor";
  const auto requested = request_of(policy, question).dtype;
  if (!requested) {
    std::string reason(name(source));
    reason.append(" as in ").append(where);
    return Asked{source, "R22", std::move(reason)};
  }
  if (question.is_dequantized) {
    return Asked{*requested, "R48", fmt::format("dequantized to {}, as requested", name(*requested))};
  }
  if (policy.cast == Cast::kExact) {
    return Asked{*requested, "R23", fmt::format("{} is requested exactly", name(*requested))};
  }
  auto promoted = promote_types(source, *requested);
  if (!promoted) {
    return fail(DTypeRefusal{std::move(promoted)
                                 .error()
                                 .of_tensor(question.name)
                                 .wanted(fmt::format("{}, as in {}", name(source), where))
                                 .got(fmt::format("a request for {}", name(*requested)))
                                 .try_this(fmt::format("Set \"subtree_dtypes\": {{\"{}\": \"auto\"}} to leave it as it "
                                                       "is, or \"cast\": \"exact\" to convert it.",
                                                       escape(question.name))),
                             true, false});
  }
  return Asked{
      *promoted, "R23",
      fmt::format("{} in {} and {} requested make {}", name(source), where, name(*requested), name(*promoted))};
}

Result<Asked, DTypeRefusal> ask(const Policy& policy, const DTypeQuestion& question) {
  const DType source = source_dtype(question);
  if (question.derived) return Asked{source, "R29", fmt::format("computed in its declared dtype {}", name(source))};
  if (question.kind == Kind::kExtraState) return Asked{source, "R10", "extra state is restored as it is"};
  if (!is_floating(source)) return Asked{source, "R23", fmt::format("{} is not floating and stays", name(source))};
  if (is_kept(question)) return Asked{source, "R14", fmt::format("the existing {} value is kept", name(source))};
  if (follows_its_tower(policy, question, source)) {
    return Asked{*policy.compute_dtype, "R28",
                 fmt::format("{}: in a frozen subtree, so in the compute dtype", name(*policy.compute_dtype)), true};
  }
  // A request is about weights. What a constructor makes beside them is as the constructor says.
  if (!question.checkpoint && question.kind != Kind::kParameter) {
    return Asked{source, "R28", fmt::format("{} as constructed: no file holds it", name(source))};
  }
  LADING_ASSIGN_OR_RETURN(Asked asked, ask_by_request(policy, question));
  const bool payload_as_in_file = is_float8(source) && asked.dtype == source;
  if (question.pinned && !payload_as_in_file && pin_withstands(*question.pinned, asked.dtype)) {
    return Asked{DType::kF32, "R25", fmt::format("pinned to F32, where it would be {}", name(asked.dtype))};
  }
  return asked;
}

Error too_narrow(const DTypeQuestion& question, const Asked& asked) {
  return Error(Code::kDType,
               fmt::format("the tensor's memory is too narrow for the dtype that it should have: {}", asked.reason))
      .of_tensor(question.name)
      .by_rule(asked.rule)
      .wanted(fmt::format("{}, or wider", name(asked.dtype)))
      .got(std::string(name(question.constructed)))
      .try_this("Allocate it with a wider dtype, or set \"cast\": \"destination\" so that the memory keeps its dtype.");
}

Result<Asked, DTypeRefusal> settle(const Policy& policy, const DTypeQuestion& question, Asked asked) {
  if (question.presence == Presence::kMeta) return asked;
  // zero.Init rounds RoPE tables when they are constructed; they are made anew, whatever is there.
  if (question.derived && question.presence == Presence::kReal) return asked;
  if (policy.cast == Cast::kDestination) {
    return Asked{question.constructed, "R61", fmt::format("the memory is {}, and decides", name(question.constructed))};
  }
  if (!is_wide_enough(asked.dtype, question.constructed)) return fail(refusal(too_narrow(question, asked)));
  if (asked.dtype != question.constructed) {
    asked.reason += fmt::format("; the memory is {}, which can hold it", name(question.constructed));
    asked.dtype = question.constructed;
  }
  return asked;
}

struct Computed {
  DType dtype;
  std::string_view rule;
  bool follows_tower = false;
};

Computed compute(const Policy& policy, const DTypeQuestion& question, DType storage) {
  if (!is_floating(storage) || is_packed(storage)) return {storage, "R26"};
  if (follows_its_tower(policy, question, storage)) return {*policy.compute_dtype, "R28", true};
  if (question.kind != Kind::kParameter) return {storage, "R28"};  // FSDP2 casts parameters only
  if (!policy.compute_dtype) return {storage, "R26"};              // then nobody casts
  DType otherwise = storage;
  // The record says what the authors computed in; it is void where the bits are gone.
  const bool has_record =
      policy.compute_record == ComputeRecord::kCheckpoint && !question.derived && question.checkpoint.has_value();
  if (has_record && is_wide_enough(*question.checkpoint, storage)) {
    otherwise = *question.checkpoint;
  } else if (storage == DType::kF32 && bits(*policy.compute_dtype) < bits(DType::kF32)) {
    otherwise = *policy.compute_dtype;
  }
  const bool payload = is_float8(otherwise) && otherwise == storage;
  if (question.pinned && !payload && pin_withstands(*question.pinned, otherwise)) return {DType::kF32, "R26"};
  return {otherwise, "R26"};
}

}  // namespace

std::optional<DType> requested_dtype(const Policy& policy, std::string_view name) {
  return Requests(policy).of(name).dtype;
}

Requests::Requests(const Policy& policy) : dtype_(policy.dtype) {
  subtrees_.reserve(policy.subtree_dtypes.size());
  // transformers loads a parameter in the dtype that its constructor names, whatever was requested.
  const auto is_requested = [&](const auto& made) { return made.second == policy.dtype; };
  const auto& made = policy.constructed_dtypes;
  if (policy.cast == Cast::kExact && std::any_of(made.begin(), made.end(), is_requested)) {
    for (const auto& one : made) {
      if (!is_requested(one)) subtrees_.insert_or_assign(one.first, one.second);
    }
  }
  for (const auto& [module, dtype] : policy.subtree_dtypes) subtrees_.insert_or_assign(module, dtype);
}

std::string_view Requests::entry_of(std::string_view name) const {
  if (subtrees_.empty()) return {};
  for (std::string_view module = name; !module.empty();) {
    if (subtrees_.contains(module)) return module;
    const auto dot = module.rfind('.');
    module = dot == std::string_view::npos ? std::string_view() : module.substr(0, dot);
  }
  return {};
}

Request Requests::of(std::string_view name) const {
  const auto found = subtrees_.find(entry_of(name));
  return found == subtrees_.end() ? Request{dtype_, false} : Request{found->second, true};
}

Result<DTypeDecision, DTypeRefusal> decide_dtype(const Policy& policy, const DTypeQuestion& question) {
  LADING_ASSIGN_OR_RETURN(Asked asked, ask(policy, question));
  LADING_ASSIGN_OR_RETURN(Asked settled, settle(policy, question, std::move(asked)));
  if (!question.derived && question.checkpoint && !cast_is_possible(*question.checkpoint, settled.dtype)) {
    const bool is_of_payload = is_packed(*question.checkpoint) || is_float8(*question.checkpoint);
    return fail(DTypeRefusal{Error(Code::kDType, fmt::format("{} cannot be converted to {} in one rounding",
                                                             name(*question.checkpoint), name(settled.dtype)))
                                 .of_tensor(question.name)
                                 .by_rule(is_of_payload ? "R48" : "R24")
                                 .wanted(std::string(name(*question.checkpoint)))
                                 .got(std::string(name(settled.dtype)))
                                 .try_this("Load it in the checkpoint's dtype."),
                             false, is_of_payload});
  }
  const Computed computed = compute(policy, question, settled.dtype);
  return DTypeDecision{settled.dtype,
                       computed.dtype,
                       settled.rule,
                       computed.rule,
                       std::move(settled.reason),
                       settled.follows_tower || computed.follows_tower};
}

Errors check_tie_dtypes(const std::vector<TieMember>& members) {
  const auto like_first = [&](const TieMember& member) {
    return member.storage == members.front().storage && member.compute == members.front().compute;
  };
  if (std::all_of(members.begin(), members.end(), like_first)) return {};
  std::string found;
  for (const TieMember& member : members) {
    found += fmt::format("{}{} {}/{}", found.empty() ? "" : ", ", quote(member.name), name(member.storage),
                         name(member.compute));
  }
  return Error(Code::kDType, "tensors that share one storage would have several dtypes")
      .of_tensor(members.front().name)
      .by_rule("R31")
      .wanted("one storage and one compute dtype")
      .got(std::move(found))
      .try_this("Request one dtype for all of them, or untie them.");
}

}  // namespace lading::policy
