// Skeleton: a model without values. Every parameter and buffer by name, and the facts about each that
// decide where its value comes from.
//
// Names are global and unique; a tensor that is reachable under two names is listed under both, and a
// tie class says that they are one storage (R9, R49). make_skeleton() checks and sorts it, and so does a plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lading/dtype.h"
#include "lading/export.h"
#include "lading/name_pattern.h"
#include "lading/result.h"
#include "lading/shape.h"

namespace lading::model {

enum class Kind : std::uint8_t {
  kParameter,
  kBuffer,               ///< persistent: in the state dict
  kNonPersistentBuffer,  ///< never in a state dict
  kAttribute,            ///< a plain tensor attribute, not registered
  kExtraState,           ///< an `_extra_state` blob
};

/// "parameter", "buffer", "non_persistent_buffer", "attribute", "extra_state"
[[nodiscard]] LADING_API std::string_view word(Kind kind);

enum class Presence : std::uint8_t {
  kMeta,  ///< no memory yet: to be allocated in the dtype that policy decides
  kReal,  ///< memory with a value: kept unless something better is known (R7, R14)
  kEmpty  ///< memory without a value, of fixed dtype, such as a ZeRO-3 partition
};

enum class RecipeKind : std::uint8_t {
  kFill,             ///< every element is `value`
  kUniform,          ///< from `low` to `high`
  kNormal,           ///< mean `mean`, deviation `std`
  kTruncatedNormal,  ///< the same, cut at `low` and `high`
  kHost,             ///< a value that the front hands in: derived by replaying the constructor
  kCall,             ///< computed from other tensors of this load, `inputs`, by the front
};

/// How to make a value that no file holds.
struct Recipe {
  RecipeKind kind = RecipeKind::kFill;
  double value = 0;
  double low = 0;
  double high = 0;
  double mean = 0;
  double std = 1;
  std::optional<std::uint64_t> zero_row = {};  ///< of dim 0: a padding_idx, zero on its owner (R20)
  std::vector<std::string> inputs = {};        ///< of kCall (R66)

  friend bool operator==(const Recipe&, const Recipe&) = default;
};

struct Tensor {
  std::string name;
  Kind kind = Kind::kParameter;
  Shape shape;                ///< global
  DType dtype = DType::kF32;  ///< as constructed, or of the memory that the tensor has already
  bool requires_grad = false;
  bool adapter = false;  ///< a LoRA matrix or the like: not expected in the base checkpoint (R65)
  Presence presence = Presence::kMeta;
  bool assigned = false;  ///< a real value that somebody put into a model built without values: no key is missed (R14)
  std::string device;     ///< where a real value is; "cpu", "cuda:0"; empty on meta
  std::optional<Recipe> derivation;  ///< what the value must be: a function of the config alone (RoPE)
  /// Of a derivation whose memory is there in another dtype: zero.Init makes RoPE tables bf16 (R29).
  std::optional<DType> declared_dtype;
  std::optional<Recipe> init;  ///< what to start with if nothing else has it
  /// The value of a derivation or init of kHost, if the document has it: in value_dtype(), row by row.
  std::optional<std::vector<std::byte>> data;
  std::optional<std::uint32_t> tie_class;  ///< into Skeleton::tie_classes; make_skeleton sets it

  [[nodiscard]] DType value_dtype() const { return declared_dtype.value_or(dtype); }
  friend bool operator==(const Tensor&, const Tensor&) = default;
};

/// Which dtype requests a pin withstands (R25).
enum class PinStrength : std::uint8_t {
  kFloat16,             ///< transformers' _keep_in_fp32_modules
  kFloat16AndBFloat16,  ///< _keep_in_fp32_modules_strict
};

struct Pin {
  /// A tensor's name; or dotted components that must appear in the name, side by side
  /// (docs/how-it-works/dtype-contract.md), "*" in one of them for any characters of that component.
  NamePattern pattern;
  PinStrength strength = PinStrength::kFloat16AndBFloat16;

  friend bool operator==(const Pin&, const Pin&) = default;
};

struct Skeleton {
  std::vector<Tensor> tensors;                        ///< sorted by name
  std::vector<std::vector<std::string>> tie_classes;  ///< disjoint, each sorted, of two names or more
  std::vector<Pin> pins;

  /// Null if there is none. Binary search.
  [[nodiscard]] LADING_API const Tensor* find(std::string_view name) const;
  /// Dotted module names that own at least one parameter, below them or in them, and none that
  /// requires a gradient; only the outermost of each. "" is the whole model. Sorted.
  /// A tied parameter trains if it does under any of its names.
  [[nodiscard]] LADING_API std::vector<std::string> frozen_subtrees() const;

  friend bool operator==(const Skeleton&, const Skeleton&) = default;
};

/// Sorts the tensors and merges overlapping tie classes. Rejects duplicate names, invalid recipes, and ties of unknown
/// names, different shapes or dtypes, or a single name. The error lists every problem.
LADING_API Result<Skeleton, Errors> make_skeleton(std::vector<Tensor> tensors,
                                                  std::vector<std::vector<std::string>> tie_classes,
                                                  std::vector<Pin> pins);

}  // namespace lading::model
