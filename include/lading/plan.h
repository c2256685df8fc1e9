// What would be loaded, from where, and why: `lading::make_plan(request)`. Nothing is loaded, and no tensor data
// is read but for ties (TiedKeys, and may_untie of the policy).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lading/dtype.h"
#include "lading/export.h"
#include "lading/inspect.h"
#include "lading/provenance.h"
#include "lading/result.h"
#include "lading/shape.h"

namespace lading {

namespace plan {
struct Plan;
}
namespace source {
class CheckpointSource;
}
struct SkeletonValues;

/// A JSON document: a file that holds it, or the text itself.
struct PlanDocument {
  enum class From : std::uint8_t { kFile, kText };
  From from = From::kFile;
  std::string value;

  static PlanDocument file(std::string path) { return {From::kFile, std::move(path)}; }
  static PlanDocument text(std::string json) { return {From::kText, std::move(json)}; }
};

/// Two keys of the checkpoint for tensors that are one in the model.
enum class TiedKeys : std::uint8_t {
  kAssumeEqual,  ///< no tensor data is read; a load compares
  kCompare,      ///< read, and refused if they differ (R50)
};

struct PlanRequest {
  std::string checkpoint;               ///< as inspect() takes it
  std::optional<std::string> root;      ///< links may lead anywhere beneath it
  std::optional<std::string> revision;  ///< of a repository in the Hugging Face cache
  TrailingBytesPolicy trailing_bytes = TrailingBytesPolicy::kRefuse;

  std::optional<PlanDocument> skeleton;  ///< nothing: the checkpoint itself is the model
  /// The skeleton is a part of a model whose whole plan was made before, so scales of its quantized tensors may be
  /// taken by another part (R48).
  bool is_part_of_model = false;
  std::optional<PlanDocument> layout;  ///< nothing: by mesh and strategy
  std::optional<PlanDocument> mapping;
  std::optional<PlanDocument> policy;

  TiedKeys tied_keys = TiedKeys::kAssumeEqual;

  std::string mesh;      ///< "dp=4,tp=2"; "" is one rank
  std::string strategy;  ///< "single", "ddp", "fsdp2", "hsdp", "tp", "fsdp2+tp", "zero3"; "" is "single"
  /// For strategies with tp: a name in which "*" stands for any characters, and "colwise", "rowwise", "replicate"
  /// or "vocab". The first that matches decides.
  std::vector<std::pair<std::string, std::string>> tp_plan;

  /// The ranks that are worked out; nothing: all of them. The verdict covers all.
  std::optional<std::vector<std::uint64_t>> ranks = {{0}};

  /// With a mesh and a strategy: "cpu", "cuda" (rank r has cuda:(r % devices_per_node), which the report states) or,
  /// if `ranks` is one rank, such as "cuda:1", as its process calls it; "" is "cpu". A layout names its own devices.
  std::string device;
  std::optional<std::uint64_t> devices_per_node;  ///< of "cuda"; nothing: all ranks if they are at most 8, else 8
};

struct PlannedTensor {
  std::string name;
  std::string kind;  ///< "parameter", "buffer", …
  Shape shape;       ///< global
  DType storage = DType::kF32;
  Provenance provenance = Provenance::kFile;
  std::uint64_t local_bytes = 0;  ///< on the first rank that was worked out; of an alias: 0
};

struct RankTotals {
  std::uint64_t rank = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t owned_bytes = 0;                                    ///< padding included
  std::uint64_t staging_bytes = 0;                                  ///< of the host, beside the buffers
  std::vector<std::pair<std::string, std::uint64_t>> device_bytes;  ///< buffers by device
  std::uint64_t unit_gap_bytes = 0;  ///< of buffers that tensors share (FSDP1): left as they are
};

struct PlanReport {
  std::string path;                                               ///< of the index or the only file, resolved
  std::string mesh;                                               ///< "dp=4,tp=2"; "" is one rank
  std::uint64_t rank_count = 1;                                   ///< of the mesh
  std::string digest;                                             ///< equal on ranks that agree
  std::uint64_t bytes_proved = 0;                                 ///< by the checker, over `ranks`
  std::vector<PlannedTensor> tensors;                             ///< sorted by name
  std::vector<RankTotals> ranks;                                  ///< those that were asked for
  std::vector<std::pair<std::string, std::string>> ignored_keys;  ///< key and the rule that ignores it
  std::vector<std::string> unexpected_keys;                       ///< allowed, and not read
  Errors warnings;
  std::shared_ptr<const plan::Plan> plan;                  ///< all of it, for the functions below
  std::shared_ptr<const source::CheckpointSource> source;  ///< the files that it is about
  std::shared_ptr<const SkeletonValues> values;            ///< that stand in the skeleton itself; null if none do
  /// Of the checkpoint tensors that the plan names, bytes that no rank reads; known only if all were worked out.
  std::optional<std::uint64_t> unread_bytes;
};

/// Where planning stopped.
enum class PlanStage : std::uint8_t {
  kRequest,     ///< the request makes no sense
  kCheckpoint,  ///< the checkpoint is refused
  kDocuments,   ///< skeleton, layout, mapping or policy is refused
  kPlanning,    ///< they do not go together
  kProof,       ///< the checker refuses the plan: a bug of lading's
};

struct PlanRefusal {
  PlanStage stage = PlanStage::kRequest;
  Errors problems;

  /// Of the command line: 2, 3, 4, 4, 1.
  [[nodiscard]] LADING_API Exit exit_code() const;
};

/// Every problem that can be found at once is in the refusal.
LADING_API Result<PlanReport, PlanRefusal> make_plan(const PlanRequest& request);

/// docs/schema/plan.md
LADING_API std::string plan_json(const PlanReport& report);

/// A word about what the files hold, from a few blocks of each: 32 digits. Another checkpoint of the same shapes as
/// a rule has another one; a few changed values may go unseen.
LADING_API Result<std::string> sampled_contents(const PlanReport& report);

struct ExplainedFact {
  std::string topic;  ///< one word, stable: "value", "dtype", "placement", …
  std::string text;   ///< a sentence; names in it are escaped
};

/// Where a tensor's value comes from, why this dtype, device and placement, and who is tied to it, as the first rank
/// that was worked out has it. An unknown name is an error that says what is near.
LADING_API Result<std::vector<ExplainedFact>, PlanRefusal> explain(const PlanReport& report, std::string_view tensor);

struct PlanChange {
  std::string section;                ///< "plan", "file", "source", "tensor", "rank", "destination"
  std::string name;                   ///< of the file, the tensor, …; "" in section "plan"
  std::string field;                  ///< "" where all of it is new or gone
  std::optional<std::string> before;  ///< JSON text; nothing: was not there
  std::optional<std::string> after;
};

struct PlanDifference {
  std::vector<PlanChange> changes;
  std::vector<std::uint64_t> ranks_not_compared;  ///< that only one of the plans has
};

/// What has changed since `before`, which plan_json() wrote.
LADING_API Result<PlanDifference, PlanRefusal> diff(const PlanReport& report, const PlanDocument& before);

}  // namespace lading
