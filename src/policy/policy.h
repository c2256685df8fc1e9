// Policy: what the user wants, and the decisions that follow from it, one tensor at a time. Pure.
//
// Every decision says which rule of the contract made it, so that a plan can be explained.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "lading/dtype.h"
#include "lading/result.h"
#include "model/skeleton.h"

namespace lading::policy {

enum class Cast : std::uint8_t {
  kPromote,      ///< storage = promote(checkpoint, requested): an explicit request never narrows (R23)
  kExact,        ///< everything floating becomes the requested dtype, pins excepted: transformers' meaning
  kDestination,  ///< what is allocated decides
};

enum class Ties : std::uint8_t { kKeep, kUntie };
enum class Strictness : std::uint8_t { kStrict, kReport };

struct Policy {
  std::optional<DType> dtype;  ///< requested; nothing: auto, as in the checkpoint (R22)
  Cast cast = Cast::kPromote;
  std::optional<DType> compute_dtype;  ///< the mixed-precision policy's param_dtype
  std::optional<DType> reduce_dtype;
  Strictness unexpected = Strictness::kStrict;
  Ties ties = Ties::kKeep;
  std::uint64_t seed = 0;
  std::uint64_t budget_bytes = 256ULL << 20;  ///< host memory above the model itself, per node
  // Names in which "*" stands for any characters.
  std::vector<std::string> allow_missing;
  std::vector<std::string> allow_unexpected;
  std::vector<std::string> allow_mismatch;
  std::vector<std::string> keep;      ///< real values that win over the checkpoint
  std::vector<std::string> external;  ///< values that the caller hands in
  std::vector<model::Pin> pins;       ///< beside the skeleton's own
  std::vector<std::pair<std::string, DType>> subtree_dtypes;  ///< requested dtype by module prefix (R32)
};

/// `lading.policy/1`.
Result<Policy, Errors> parse_policy(const JsonDocument& document);
std::string policy_json(const Policy& policy);

/// torch.promote_types. Refuses float8 with anything else, and what torch refuses.
Result<DType> promote_types(DType a, DType b);

/// Whether a value of `from` can be stored as `to` in one correctly rounded step; no packed, complex or integer narrowing.
[[nodiscard]] bool cast_is_possible(DType from, DType to);

/// Which pins a set of names is under, by one matcher for everything (R25).
class Pins {
 public:
  Pins(const model::Skeleton& skeleton, const Policy& policy);
  /// True if the tensor stays fp32 under this request.
  [[nodiscard]] bool holds(std::string_view name, std::optional<DType> requested) const;
  /// Patterns that match no tensor of the skeleton: worth a note.
  [[nodiscard]] const std::vector<std::string>& unmatched() const { return unmatched_; }

 private:
  std::vector<model::Pin> pins_;
  std::vector<std::string> unmatched_;
};

/// A dotted pattern ("norm", "mlp.gate") is in a name if its components appear in it, whole and side by side.
[[nodiscard]] bool pin_matches(std::string_view pattern, std::string_view name);

struct DTypeQuestion {
  std::string_view name;
  model::Kind kind = model::Kind::kParameter;
  DType constructed = DType::kF32;
  model::Presence presence = model::Presence::kMeta;
  std::optional<DType> checkpoint;  ///< nothing: no file holds it
  bool pinned = false;
  bool derived = false;  ///< its value is computed, in its declared dtype (R29)
  bool sharded = false;  ///< a DTensor: never cast in place, so decided at allocation (R28)
  bool frozen = false;   ///< in a fully frozen subtree
  bool requires_grad = false;
};

struct DTypeDecision {
  DType storage = DType::kF32;
  DType compute = DType::kF32;
  std::string_view storage_rule;  ///< "R23"
  std::string_view compute_rule;  ///< "R26"
  std::string reason;             ///< one sentence
};

/// One table for everything: docs/dtypes.md.
Result<DTypeDecision> decide_dtype(const Policy& policy, const DTypeQuestion& question);

/// A trainable parameter as FSDP2 sees it when it groups (R27).
struct GroupMember {
  std::string_view name;
  std::string_view group;  ///< the FSDP2 unit
  DType storage = DType::kF32;
  DType compute = DType::kF32;
  bool requires_grad = false;
};
/// Problems of FSDP2 units whose trainable parameters are not of one storage dtype; names the inseparable ones.
Errors check_groups(const std::vector<GroupMember>& members);

struct GroupProposal {
  DType storage;
  DType compute;
  std::vector<std::string> modules;     ///< to be sharded as units of this dtype
  std::vector<std::string> parameters;
};
/// How to shard so that every unit is uniform: by (storage, compute); parameters of one module that differ are inseparable, an error.
Result<std::vector<GroupProposal>, Errors> propose_groups(const std::vector<GroupMember>& members);

}  // namespace lading::policy
