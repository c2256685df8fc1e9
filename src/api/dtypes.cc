#include "lading/dtypes.h"

#include <set>

#include "api/given.h"
#include "api/open_checkpoint.h"
#include "api/refuse.h"
#include "planner/decide.h"
#include "policy/policy.h"

namespace lading {
namespace {

class Resolving {
 public:
  explicit Resolving(const DTypesRequest& request) : request_(request) {}

  Result<DTypesReport, Refusal> run() {
    if (!request_.skeleton) {
      return refuse(
          Stage::kRequest,
          Error(Code::kUsage, "the request has no skeleton, which describes the model").try_this("Pass a skeleton."));
    }
    take(skeleton_given(*request_.skeleton), skeleton_, problems_);
    if (request_.mapping) take(mapping_given(*request_.mapping), mapping_, problems_);
    if (request_.policy) take(policy_given(*request_.policy), policy_, problems_);
    if (!problems_.empty()) return refuse(Stage::kDocuments, std::move(problems_));
    report_.frozen_subtrees = skeleton_.frozen_subtrees();
    if (!request_.checkpoint) {
      if (!decide_by_model()) return refuse(Stage::kPlanning, std::move(problems_));
    } else {
      LADING_TRY(decide_by_checkpoint());
    }
    if (request_.units && !draw_units()) return refuse(Stage::kPlanning, std::move(problems_));
    return std::move(report_);
  }

 private:
  bool decide_by_model() {
    auto decisions = policy::decide_without_files(policy_, skeleton_);
    if (!decisions) {
      problems_.add(std::move(decisions).error());
      return false;
    }
    for (std::size_t i = 0; i < decisions->size(); ++i) {
      policy::DTypeDecision& d = (*decisions)[i];
      add(i, told(d, std::move(d.reason)));
    }
    return true;
  }

  // As a plan decides it; no rank's transfers are worked out, so it does not matter who holds what.
  Result<void, Refusal> decide_by_checkpoint() {
    const auto checkpoint = open_checkpoint(*request_.checkpoint);
    if (!checkpoint) return refuse(Stage::kCheckpoint, checkpoint.error());
    const layout::Layout one_rank;
    auto decisions = planner::decide({checkpoint->catalog(), skeleton_, one_rank, mapping_, policy_});
    if (!decisions) return refuse(Stage::kPlanning, std::move(decisions).error());
    report_.warnings.add(checkpoint->warnings());
    report_.warnings.add(std::move(decisions->plan.warnings));
    for (const plan::StatementId id : decisions->plan.statements.ids()) {
      plan::Statement& s = decisions->plan.statements[id];
      TensorDTypes decided = told(s, std::move(s.dtype_reason));
      decided.checkpoint = s.checkpoint_dtype;
      add(id.number(), std::move(decided));
    }
    return {};
  }

  // Of a policy's decision, or a plan's statement.
  template <class Decided>
  static TensorDTypes told(const Decided& of, std::string reason) {
    TensorDTypes decided;
    decided.storage = of.storage;
    decided.compute = of.compute;
    decided.storage_rule = of.storage_rule;
    decided.compute_rule = of.compute_rule;
    decided.reason = std::move(reason);
    decided.follows_tower = of.follows_tower;
    return decided;
  }

  void add(std::size_t i, TensorDTypes decided) {
    const model::Tensor& tensor = skeleton_.tensors[i];
    decided.name = tensor.name;
    decided.kind = tensor.kind;
    if (decided.follows_tower && decided.compute != decided.storage) decided.cast = decided.compute;
    report_.tensors.push_back(std::move(decided));
  }

  bool draw_units() {
    const std::set<std::string_view> ignored(request_.ignored.begin(), request_.ignored.end());
    std::vector<policy::GroupMember> members;
    for (std::size_t i = 0; i < skeleton_.tensors.size(); ++i) {
      const model::Tensor& tensor = skeleton_.tensors[i];
      if (tensor.kind != model::Kind::kParameter || ignored.contains(tensor.name)) continue;
      const TensorDTypes& decided = report_.tensors[i];
      std::string_view tied_to;
      if (tensor.tie_class && policy_.ties == policy::Ties::kKeep) {
        tied_to = skeleton_.tie_classes[*tensor.tie_class].front();
      }
      members.push_back({tensor.name,
                         {},
                         decided.storage,
                         decided.compute,
                         tensor.requires_grad,
                         tensor.shape.num_elems().value_or(1),
                         tied_to});
      if (tensor.shape.rank() > 0) continue;
      problems_.add(Error(Code::kPlan, "FSDP2 cannot shard a parameter without dims")
                        .of_tensor(tensor.name)
                        .by_rule("R53")
                        .try_this("Make it a parameter of shape [1], or a buffer."));
    }
    auto units = policy::propose_units(policy_, *request_.units, members);
    if (units) {
      report_.units = *std::move(units);
    } else {
      problems_.add(std::move(units).error());
    }
    return problems_.empty();
  }

  const DTypesRequest& request_;
  model::Skeleton skeleton_;
  mapping::Mapping mapping_;
  policy::Policy policy_;
  DTypesReport report_;
  Errors problems_;
};

}  // namespace

Result<DTypesReport, Refusal> resolve_dtypes(const DTypesRequest& request) { return Resolving(request).run(); }

}  // namespace lading
