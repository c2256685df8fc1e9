// What would be loaded, from where, and why: `lading::make_plan(request)`. Nothing is loaded, and no tensor data
// is read but for ties (TiedKeys, and may_untie of the policy).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lading/checkpoint.h"
#include "lading/document.h"
#include "lading/dtype.h"
#include "lading/export.h"
#include "lading/layout.h"
#include "lading/mapping.h"
#include "lading/plan_facts.h"
#include "lading/policy.h"
#include "lading/provenance.h"
#include "lading/refusal.h"
#include "lading/result.h"
#include "lading/shape.h"
#include "lading/skeleton.h"

namespace lading {

struct Planned;

/// Two keys of the checkpoint for tensors that are one in the model.
enum class TiedKeys : std::uint8_t {
  kAssumeEqual,  ///< no tensor data is read; a load compares
  kCompare,      ///< read, and refused if they differ (R50)
};

/// Where a model starts from.
enum class Start : std::uint8_t {
  kFromCheckpoint,
  /// Nothing is read: every tensor gets the value that its recipe in the skeleton says, keeps the one that it has, or
  /// is handed in. No key can be missing, because nobody expects one.
  kWithoutCheckpoint,
};

struct PlanRequest {
  CheckpointRef checkpoint = {};
  Start start = Start::kFromCheckpoint;

  std::optional<Given<model::Skeleton>> skeleton = {};  ///< nothing: the checkpoint itself is the model
  /// The skeleton is a part of a model whose whole plan was made before, so scales of its quantized tensors may be
  /// taken by another part (R48).
  bool is_part_of_model = false;
  std::optional<Given<mapping::Mapping>> mapping = {};  ///< nothing: the keys are the model's names
  /// Read with the checkpoint, and before it where both have a tensor. Need a checkpoint and a skeleton. Every key must
  /// have a place in the model.
  std::vector<AdapterRef> adapters = {};
  std::optional<Given<policy::Policy>> policy = {};
  /// How the model is sharded and on which devices. Default: one rank, on the CPU.
  std::variant<layout::ByStrategy, Document, layout::Layout> layout = {};

  TiedKeys tied_keys = TiedKeys::kAssumeEqual;

  /// The ranks that are worked out; nothing: all of them. The verdict covers all.
  std::optional<std::vector<std::uint64_t>> ranks = {{0}};
};

struct PlannedTensor {
  std::string name;
  model::Kind kind = model::Kind::kParameter;
  Shape shape;  ///< global
  DType storage = DType::kF32;
  Provenance provenance = Provenance::kFile;
  std::uint64_t local_bytes = 0;  ///< on the first rank that was worked out; of an alias: 0
};

struct RankTotals {
  std::uint64_t rank = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t owned_bytes = 0;                                       ///< padding included
  std::uint64_t staging_bytes = 0;                                     ///< of the host, beside the buffers
  std::vector<std::pair<layout::Device, std::uint64_t>> device_bytes;  ///< buffers by device
  std::uint64_t flat_parameter_gap_bytes = 0;  ///< of flat parameters (FSDP1), between tensors: left as they are
};

/// All of a plan and the files that it is about, for the functions that take a PlanReport. Cheap to copy.
class PlanHandle {
 public:
  PlanHandle() = default;

 private:
  friend struct Planned;
  explicit PlanHandle(std::shared_ptr<const Planned> planned) : planned_(std::move(planned)) {}
  std::shared_ptr<const Planned> planned_;
};

struct PlanReport {
  std::string path;                    ///< of the index or the only file, resolved; empty: no checkpoint
  layout::Mesh mesh;                   ///< without axes: one rank
  std::uint64_t rank_count = 1;        ///< of the mesh
  std::string digest;                  ///< equal on ranks that agree
  std::uint64_t bytes_proved = 0;      ///< by the checker, over `ranks`
  std::vector<PlannedTensor> tensors;  ///< sorted by name
  std::vector<RankTotals> ranks;       ///< those that were asked for
  std::vector<std::pair<std::string, std::string>> ignored_keys;  ///< key and the rule that ignores it
  std::vector<std::string> unexpected_keys;                       ///< allowed, and not read
  std::uint64_t dequantized = 0;                                  ///< keys that are multiplied by their scales
  Errors warnings;
  /// Of the checkpoint tensors that the plan names, bytes that no rank reads; known only if all were worked out.
  std::optional<std::uint64_t> unread_bytes;
  PlanHandle handle;
};

/// Every problem that can be found at once is in the refusal.
LADING_API Result<PlanReport, Refusal> make_plan(const PlanRequest& request);

/// docs/schema/plan.md
LADING_API std::string plan_json(const PlanReport& report);

/// A 128-bit fingerprint of sampled blocks of the files, as 32 digits. Other checkpoints of the same shapes nearly
/// always have another one; a few changed values may go unseen.
LADING_API Result<std::string> sampled_contents(const PlanReport& report);

/// Where a tensor's value comes from, why this dtype, device and placement, and who is tied to it, as the first rank
/// that was worked out has it. An unknown name is an error that says what is near.
LADING_API Result<std::vector<ExplainedFact>, Refusal> explain(const PlanReport& report, std::string_view tensor);

/// What has changed since `before`, which plan_json() wrote.
LADING_API Result<PlanDifference, Refusal> diff(const PlanReport& report, const Document& before);

}  // namespace lading
