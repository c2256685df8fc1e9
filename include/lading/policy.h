// Policy: what the user wants of dtypes, of keys that are missing or unexpected, of ties and of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lading/dtype.h"
#include "lading/name_pattern.h"
#include "lading/skeleton.h"

namespace lading::policy {

enum class Cast : std::uint8_t {
  kPromote,      ///< storage = promote(checkpoint, requested): an explicit request never narrows (R23)
  kExact,        ///< everything floating becomes the requested dtype, pins excepted: transformers' meaning
  kDestination,  ///< a tensor with memory keeps its dtype; one on meta is as under kPromote
};

/// What the checkpoint's dtype says about the dtype to compute in (R26, ADR 0004).
enum class ComputeRecord : std::uint8_t {
  kCheckpoint,  ///< the rule's text: it goes before the policy's compute_dtype, parameter by parameter
  kIgnore,      ///< it is not looked at: F32 storage is computed in compute_dtype, pins excepted
};

/// What becomes of quantized payloads that have their scales beside them (R48).
enum class Quantized : std::uint8_t {
  kDequantize,  ///< where the model's tensor is an ordinary float
  kKeep,        ///< payloads and scales are loaded as they are, into a model that has tensors for both
};

/// How a payload and its scale are multiplied.
enum class Arithmetic : std::uint8_t {
  kExact,      ///< the exact product, rounded once to the storage dtype
  kReference,  ///< the bits of the scheme's reference implementation, which may round twice
};

enum class Ties : std::uint8_t { kKeep, kUntie };
enum class Strictness : std::uint8_t { kStrict, kReport };

struct Policy {
  std::optional<DType> dtype;  ///< requested; nothing: auto, as in the checkpoint (R22)
  Cast cast = Cast::kPromote;
  std::optional<DType> compute_dtype;  ///< the mixed-precision policy's param_dtype
  ComputeRecord compute_record = ComputeRecord::kCheckpoint;
  Strictness unexpected = Strictness::kStrict;
  Ties ties = Ties::kKeep;
  Quantized quantized = Quantized::kDequantize;
  Arithmetic arithmetic = Arithmetic::kExact;
  std::uint64_t seed = 0;
  /// Host memory above the model itself, per node; kLeastBudgetBytes or more.
  std::uint64_t budget_bytes = 256ULL << 20;
  std::vector<NamePattern> allow_missing;
  std::vector<NamePattern> not_expected;  ///< the model itself expects no file to have them: never missing
  std::vector<NamePattern> allow_unexpected;
  std::vector<NamePattern> allow_mismatch;
  std::vector<NamePattern> may_untie;  ///< leave their tie class if their own key holds other values than the class's
  std::vector<NamePattern> keep;       ///< real values that win over the checkpoint
  std::vector<NamePattern> external;   ///< values that the caller hands in
  std::vector<model::Pin> pins;        ///< beside the skeleton's own
  /// Requested dtype by module, or by the name of one tensor (R32); nothing: auto there.
  std::vector<std::pair<std::string, std::optional<DType>>> subtree_dtypes;
  /// The dtypes that the constructor gave to tensors, where that is the author's word: in a model that was built in the
  /// requested dtype, kExact leaves a tensor that was made in another one in that.
  std::vector<std::pair<std::string, DType>> constructed_dtypes;

  friend bool operator==(const Policy&, const Policy&) = default;
};

/// What one rank needs to read at speed, and so the least that a node can be given.
inline constexpr std::uint64_t kLeastBudgetBytes = 32ULL << 20;

/// Where units shall be. Modules are dotted names, "" is the root, which always is one.
struct UnitWish {
  std::vector<std::string> modules;
  std::vector<std::string> containers;  ///< modules without a forward of their own: no unit can be one
  std::vector<std::string> duplicates;  ///< further names of modules that are reachable under several
};

/// One call of fully_shard.
struct UnitProposal {
  std::vector<std::string> modules;  ///< one, or several that are gathered together
  DType storage = DType::kF32;       ///< of what trains in it
  DType compute = DType::kF32;       ///< its param_dtype
  std::optional<DType> output;       ///< what is around it computes in another dtype, so its outputs become that
  bool wished = false;               ///< not only drawn for a dtype's sake
  std::vector<std::string> parameters;

  friend bool operator==(const UnitProposal&, const UnitProposal&) = default;
};

}  // namespace lading::policy
