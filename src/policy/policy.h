// The decisions that follow from a policy, one tensor at a time, and `lading.policy/1`. Pure.
//
// Every decision says which rule of the contract made it, so that a plan can be explained.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json_reader.h"
#include "base/name_pattern.h"
#include "lading/dtype.h"
#include "lading/policy.h"
#include "lading/result.h"
#include "model/skeleton.h"

namespace lading::policy {

/// What no policy can ask for, such as an integer dtype. Messages begin with the field.
Errors check_policy(const Policy& policy);

/// `lading.policy/1`; check_policy() is part of it.
Result<Policy, Errors> parse_policy(const JsonDocument& document);
std::string policy_json(const Policy& policy);

/// What was asked for a tensor: of the longest prefix in `subtree_dtypes`, else the policy's (R32). Under kExact a
/// constructor that named another dtype than the requested one goes before the policy's, and before a module's entry.
[[nodiscard]] std::optional<DType> requested_dtype(const Policy& policy, std::string_view name);

/// What was asked for a tensor, and whether its subtree's entry said so.
struct Request {
  std::optional<DType> dtype;  ///< nothing: auto
  bool by_subtree = false;
};
/// The same as requested_dtype(), for many names: an entry costs nothing that is about other names.
class Requests {
 public:
  explicit Requests(const Policy& policy);
  [[nodiscard]] Request of(std::string_view name) const;
  /// The entry that a tensor's request comes from; "" if it is the policy's.
  [[nodiscard]] std::string_view entry_of(std::string_view name) const;

 private:
  std::optional<DType> dtype_;
  std::unordered_map<std::string_view, std::optional<DType>> subtrees_;  // views of the policy
};

/// torch.promote_types. Refuses float8 with anything else, and what torch refuses.
Result<DType> promote_types(DType a, DType b);

/// Whether a value of `from` can be stored as `to` in one correctly rounded step. Floating dtypes to floating
/// ones, integers to wider ones that hold all their values; no packed, complex or block-scale conversion.
[[nodiscard]] bool cast_is_possible(DType from, DType to);
/// Whether `to` also holds every value of `from`, and torch would promote to it.
[[nodiscard]] bool is_wide_enough(DType from, DType to);
/// Five of them, block scales (E8M0) included.
[[nodiscard]] bool is_float8(DType dtype);
/// F4 and F6: several elements in a byte; they can be copied and nothing else.
[[nodiscard]] bool is_packed(DType dtype);
/// With arithmetic of its own: F16, BF16, F32, F64.
[[nodiscard]] bool is_ordinary_float(DType dtype);

/// A dotted pattern ("norm", "mlp.gate") is in a name if its components appear in it, whole and side by side.
/// "*" in a component stands for any characters of one component.
[[nodiscard]] bool pin_matches(std::string_view pattern, std::string_view name);

/// Whether a pin makes fp32 of what would otherwise be `otherwise`. transformers asks this of the request;
/// asking it of the outcome is the same there, and gives "auto" and compute dtypes their meaning.
[[nodiscard]] bool pin_withstands(model::PinStrength strength, DType otherwise);

/// Which pins a set of names is under, by one matcher for everything (R25).
class Pins {
 public:
  Pins(const model::Skeleton& skeleton, const Policy& policy);
  Pins(const Pins&) = delete;  // the index has views of the patterns
  Pins& operator=(const Pins&) = delete;
  /// The strongest pin on a name; DTypeQuestion::pinned.
  [[nodiscard]] std::optional<model::PinStrength> of(std::string_view name) const;
  /// True if the tensor is fp32 where it would otherwise be stored, or computed, in this dtype.
  [[nodiscard]] bool holds(std::string_view name, DType otherwise) const;
  /// Patterns that match no tensor of the skeleton: worth a note.
  [[nodiscard]] const std::vector<std::string>& unmatched() const { return unmatched_; }

 private:
  // Calls `visit` with each pin on the name.
  template <class Visit>
  void visit_pins_on(std::string_view name, const Visit& visit) const;

  std::vector<model::Pin> pins_;
  std::unordered_map<std::string_view, std::vector<std::uint32_t>> exact_;  // pins of one name
  std::unordered_map<std::string_view, std::vector<std::uint32_t>> plain_;  // patterns without "*"
  std::size_t most_components_ = 0;                                         // of a plain pin
  std::vector<std::uint32_t> wild_;                                         // the others
  std::vector<std::string> unmatched_;
};

struct DTypeQuestion {
  std::string_view name = {};
  model::Kind kind = model::Kind::kParameter;
  DType constructed = DType::kF32;  ///< or of the memory that the tensor has already
  model::Presence presence = model::Presence::kMeta;
  std::optional<DType> checkpoint = {};  ///< of the file, or the value handed in, that it comes from
  bool is_dequantized = false;           ///< it comes from a quantized file, which says nothing of a dtype (R48)
  std::optional<model::PinStrength> pinned = {};  ///< Pins::of
  bool derived = false;                ///< its value is computed, in its declared dtype (R29); then no file counts
  std::optional<DType> declared = {};  ///< of a derivation; nothing: as constructed
  bool frozen = false;                 ///< in a fully frozen subtree
  bool requires_grad = false;
  std::optional<Request> request = {};  ///< Requests::of, where many are asked about; nothing: looked up
};

struct DTypeDecision {
  DType storage = DType::kF32;
  DType compute = DType::kF32;
  std::string_view storage_rule;  ///< "R23"
  std::string_view compute_rule;  ///< "R26"
  std::string reason;             ///< one sentence
  bool follows_tower = false;     ///< of a frozen subtree that is computed in one dtype (R28)
};

struct DTypeRefusal : Error {
  bool has_no_common_dtype = false;  ///< of source and request: an exact cast would do
  bool is_of_payload = false;        ///< packed or 8-bit elements, which no cast can widen without their scale (R48)
};

/// One table for everything: docs/how-it-works/dtype-contract.md.
Result<DTypeDecision, DTypeRefusal> decide_dtype(const Policy& policy, const DTypeQuestion& question);

/// A member of a tie class with what was decided for it.
struct TieMember {
  std::string_view name;
  DType storage = DType::kF32;
  DType compute = DType::kF32;
};
/// One storage has one dtype: a problem that names every member, if they differ (R31).
Errors check_tie_dtypes(const std::vector<TieMember>& members);

/// A parameter as FSDP2 sees it when it groups (R27).
struct GroupMember {
  std::string_view name;
  std::string_view group;  ///< the FSDP2 unit; "" if it is in none yet
  DType storage = DType::kF32;
  DType compute = DType::kF32;
  bool requires_grad = false;
  std::uint64_t elems = 1;        ///< of the whole parameter
  std::string_view tied_to = {};  ///< the first name of its storage, if it has several
};
/// Problems of FSDP2 units. Trainable parameters must be of one storage and one compute dtype. Under a compute
/// dtype a unit has one param_dtype, and FSDP2 gathers every floating member in it, frozen ones too: one that is
/// to be computed in another dtype is refused by name. Parameters that are in no unit are nobody's problem.
Errors check_groups(const Policy& policy, const std::vector<GroupMember>& members);

/// Units as wished, and within them as few further ones as make each uniform (R27), in the order in which
/// fully_shard must be called. Inside a wished unit, the parameters that the module itself owns say which dtype is
/// its own; if it owns none, the dtype of most elements. Modules of one other dtype become one unit together. A
/// frozen parameter goes with any unit of its compute dtype; without a policy's compute dtype, with any at all.
/// Names of one storage come to lie in one unit. `group` of the members is not looked at.
/// Parameters of one module that would have to be in different units are an error that names them; one per module.
Result<std::vector<UnitProposal>, Errors> propose_units(const Policy& policy, const UnitWish& wish,
                                                        const std::vector<GroupMember>& members);

/// What is decided for every tensor of a model that no checkpoint is known of, in the skeleton's order: what is there
/// stays as it is, and what is on meta is taken as constructed. Every problem is in the error.
Result<std::vector<DTypeDecision>, Errors> decide_without_files(const Policy& policy, const model::Skeleton& skeleton);

}  // namespace lading::policy
