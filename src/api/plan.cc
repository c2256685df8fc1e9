#include "lading/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "api/compare_ties.h"
#include "api/document.h"
#include "api/given.h"
#include "api/open_checkpoint.h"
#include "api/planned.h"
#include "api/refuse.h"
#include "api/shared/lay_out.h"
#include "base/text.h"
#include "checker/checker.h"
#include "checkpoint/quantized.h"
#include "io/choose.h"
#include "layout/device_choice.h"
#include "plan/explain.h"
#include "plan/plan_diff.h"
#include "plan/totals.h"
#include "plan/words.h"
#include "planner/amount_checks.h"
#include "planner/planner.h"
#include "source/sampled_contents.h"

namespace lading {
namespace {

// All ranks at once are held in memory; more than this is for a program that asks for one after the other.
constexpr std::uint64_t kMaxRanksAtOnce = 4096;
constexpr std::uint64_t kMaxPlanBytes = 1'000'000'000;

PlanReport report_of(const plan::Plan& made) {
  PlanReport report;
  report.mesh = made.mesh;
  report.rank_count = made.mesh.ranks();
  report.digest = plan::digest(made);
  report.ignored_keys = made.ignored_keys;
  report.unexpected_keys = made.unexpected_keys;
  report.dequantized = made.keys.dequantized;
  report.warnings = made.warnings;
  report.unread_bytes = made.unread_bytes;
  report.tensors.reserve(made.statements.size());
  for (const plan::Statement& s : made.statements) {
    report.tensors.push_back({s.name, s.kind, s.shape, s.storage, s.provenance, 0});
  }
  for (const plan::RankPlan& rank : made.ranks) {
    RankTotals& totals = report.ranks.emplace_back();
    totals.rank = rank.rank;
    totals.read_bytes = rank.read_bytes;
    totals.owned_bytes = rank.owned_bytes;
    totals.staging_bytes = rank.staging_bytes;
    totals.flat_parameter_gap_bytes = rank.flat_parameter_gap_bytes;
    for (const auto& [device, bytes] : plan::device_bytes(rank)) {
      totals.device_bytes.emplace_back(layout::parse_device(device).value(), bytes);
    }
  }
  if (made.ranks.empty()) return report;
  for (const plan::Destination& d : made.ranks.front().destinations) {
    const DType storage = made.statements[d.statement].storage;
    report.tensors[d.statement.number()].local_bytes +=
        d.flat_parameter.empty() ? d.buffer_bytes : Shape{d.owned_elems}.size_bytes(storage).value_or(0);
  }
  return report;
}

class Planning {
 public:
  explicit Planning(const PlanRequest& request) : request_(request) {}

  Result<PlanReport, Refusal> run() {
    if (!choose_devices()) return refuse(Stage::kRequest, std::move(problems_));
    auto checkpoint = opened();
    read_documents();
    if (!checkpoint) {
      checkpoint.error().add(std::move(problems_));
      return refuse(Stage::kCheckpoint, std::move(checkpoint).error());
    }
    const checkpoint::Catalog& catalog = checkpoint->catalog();
    if (!problems_.empty()) return refuse(Stage::kDocuments, std::move(problems_));
    problems_.add(planner::check_amount(catalog));
    if (!problems_.empty()) return refuse(Stage::kPlanning, std::move(problems_));
    if (!request_.skeleton) take_catalog_as_model(catalog);
    if (problems_.empty()) lay_out();
    if (!problems_.empty()) return refuse(Stage::kPlanning, std::move(problems_));
    if (!choose_ranks()) return refuse(Stage::kRequest, std::move(problems_));

    look_at_caches(*checkpoint);
    auto made = planned(*checkpoint);
    if (made && !policy_.may_untie.empty()) made = tied_again(*std::move(made), *checkpoint);
    if (!made) return refuse(Stage::kPlanning, std::move(made).error());
    if (request_.tied_keys == TiedKeys::kCompare) {
      Errors different = compare_ties(*made, *checkpoint);
      if (!different.empty()) return refuse(Stage::kPlanning, std::move(different));
    }
    Errors warnings = checkpoint->warnings();
    warnings.add(std::move(warnings_));
    warnings.add(std::move(made->warnings));
    made->warnings = std::move(warnings);
    const auto checked = checker::check_plan(*made);
    if (!checked) return refuse(Stage::kProof, checked.error());
    if (made->ranks.size() == made->mesh.ranks()) {
      made->unread_bytes = 0;
      for (const checker::Unread& unread : checked->unread) *made->unread_bytes += unread.bytes;
    }
    PlanReport report = report_of(*made);
    report.path = checkpoint->main_path();
    report.bytes_proved = checked->bytes_proved;
    report.handle = Planned::handle({*std::move(made), *std::move(checkpoint), SkeletonValues(skeleton_)});
    return report;
  }

 private:
  [[nodiscard]] Result<source::CheckpointSource, Errors> opened() const {
    Errors problems;
    if (!request_.adapters.empty() && (request_.start != Start::kFromCheckpoint || !request_.skeleton)) {
      problems.add(usage("adapters were given without a checkpoint and a skeleton")
                       .try_this("Give the base checkpoint and the skeleton of the model that has the adapters."));
      return fail(std::move(problems));
    }
    if (request_.start == Start::kFromCheckpoint) {
      std::vector<CheckpointRef> adapters;
      for (const AdapterRef& adapter : request_.adapters) adapters.push_back(adapter.checkpoint);
      return open_checkpoints(request_.checkpoint, adapters);
    }
    if (!request_.skeleton)
      problems.add(usage("a load without a checkpoint needs a skeleton, which describes the tensors")
                       .try_this("Pass a skeleton (--skeleton FILE)."));
    if (!request_.checkpoint.path.empty()) {
      problems.add(usage("a checkpoint is given, but the load is to start without one")
                       .got(request_.checkpoint.path)
                       .try_this("Omit the checkpoint, or do not ask for initial values."));
    }
    if (!problems.empty()) return fail(std::move(problems));
    return source::CheckpointSource::none();
  }

  Result<plan::Plan, Errors> planned(const source::CheckpointSource& source) const {
    std::vector<planner::AdapterNames> adapters;
    for (std::size_t i = 0; i < request_.adapters.size(); ++i) {
      adapters.push_back({request_.adapters[i].names, source.adapter_paths()[i]});
    }
    return planner::make_plan({source.catalog(), skeleton_, layout_, mapping_, policy_, request_.is_part_of_model,
                               is_cached_, std::move(adapters)},
                              ranks_);
  }

  // A file that cannot be opened is told of when it is read.
  void look_at_caches(const source::CheckpointSource& source) {
    for (const source::SourceFile& shard : source.shards()) {
      const auto file = source.open_file(shard);
      is_cached_.push_back(file && io::Chooser::is_in_memory(*file));
    }
  }

  void take_catalog_as_model(const checkpoint::Catalog& catalog) {
    take(planner::skeleton_of(catalog), skeleton_, problems_);
    const Errors notes = checkpoint::quantization_notes(catalog);
    if (notes.empty()) return;
    warnings_.add(
        Error(Code::kDType, "the checkpoint is quantized, and is loaded unchanged: without a skeleton, it is the model")
            .of_tensor(*notes.front().tensor)
            .by_rule("R48")
            .try_this("To dequantize, pass the skeleton of a model of ordinary floats (--skeleton FILE)."));
  }

  // What may leave its tie stays if its key holds what the others have, in one form with them (R50).
  Result<plan::Plan, Errors> tied_again(plan::Plan made, const source::CheckpointSource& source) {
    const auto leaving = compare_leaving(made, skeleton_, policy_, source);
    if (!leaving) return fail(Errors(leaving.error()));
    if (!leaving->others_stay) return made;
    policy_.may_untie.clear();
    for (const std::string& name : leaving->different) policy_.may_untie.push_back(NamePattern::exact(name));
    auto tied = planned(source);
    return tied ? std::move(tied) : std::move(made);
  }

  void read_documents() {
    if (request_.skeleton) take(skeleton_given(*request_.skeleton), skeleton_, problems_);
    if (request_.mapping) take(mapping_given(*request_.mapping), mapping_, problems_);
    if (request_.policy) take(policy_given(*request_.policy), policy_, problems_);
    if (const auto* document = std::get_if<Document>(&request_.layout))
      take(read_layout(*document), layout_, problems_);
    if (const auto* layout = std::get_if<layout::Layout>(&request_.layout)) {
      layout_ = *layout;
      problems_.add(layout::check_mesh(layout_.mesh));
    }
  }

  bool choose_devices() {
    const auto* wanted = std::get_if<layout::ByStrategy>(&request_.layout);
    if (wanted == nullptr) return true;
    problems_.add(layout::check_mesh(wanted->mesh));
    if (!problems_.empty()) return false;
    const bool is_for_one_rank = request_.ranks && request_.ranks->size() == 1;
    take(layout::choose_devices({wanted->device, wanted->mesh.ranks(), is_for_one_rank}), devices_, problems_);
    if (!devices_.note.empty()) warnings_.add(Error(Code::kLayout, devices_.note).by_rule("R34"));
    return problems_.empty();
  }

  void lay_out() {
    const auto* wanted = std::get_if<layout::ByStrategy>(&request_.layout);
    if (wanted != nullptr) take(lay_out_by_strategy(*wanted, devices_, skeleton_, warnings_), layout_, problems_);
  }

  bool choose_ranks() {
    const std::uint64_t count = layout_.mesh.ranks();
    if (request_.ranks) {
      ranks_ = *request_.ranks;
    } else if (count > kMaxRanksAtOnce) {
      problems_.add(usage("the request has too many ranks for one plan")
                        .wanted(fmt::format("at most {}", kMaxRanksAtOnce))
                        .got(std::to_string(count))
                        .try_this("Plan one rank at a time (--rank R)."));
    } else {
      ranks_.resize(static_cast<std::size_t>(count));
      std::iota(ranks_.begin(), ranks_.end(), std::uint64_t{0});
    }
    for (const std::uint64_t rank : ranks_) {
      if (rank >= count) {
        problems_.add(usage(fmt::format("rank {} does not exist", rank))
                          .wanted(fmt::format("a rank below {}", count))
                          .try_this("Correct the rank, or the mesh."));
      }
    }
    return problems_.empty();
  }

  const PlanRequest& request_;
  layout::ChosenDevices devices_;
  model::Skeleton skeleton_;
  layout::Layout layout_;
  mapping::Mapping mapping_;
  policy::Policy policy_;
  std::vector<std::uint64_t> ranks_;
  std::vector<bool> is_cached_;  // by the catalog's files
  Errors warnings_;
  Errors problems_;
};

}  // namespace

Exit Refusal::exit_code() const {
  switch (stage) {
    case Stage::kRequest: return Exit::kUsage;
    case Stage::kCheckpoint: return problems.empty() ? Exit::kCheckpoint : lading::exit_code(problems.front().code);
    case Stage::kDocuments:
    case Stage::kPlanning: return Exit::kPlan;
    case Stage::kProof: return Exit::kInternal;
  }
  return Exit::kInternal;
}

Result<PlanReport, Refusal> make_plan(const PlanRequest& request) { return Planning(request).run(); }

Result<std::string> sampled_contents(const PlanReport& report) {
  if (!Planned::is_behind(report)) return fail(not_planned());
  return source::sampled_contents(Planned::of(report).source);
}

std::string plan_json(const PlanReport& report) { return plan::plan_json(Planned::of(report).plan); }

Result<std::vector<ExplainedFact>, Refusal> explain(const PlanReport& report, std::string_view tensor) {
  if (!Planned::is_behind(report)) return refuse(Stage::kRequest, not_planned());
  const plan::Plan& made = Planned::of(report).plan;
  const plan::Statement* statement = made.find(tensor);
  if (statement == nullptr) {
    Error error = usage("the model has no tensor of this name").of_tensor(tensor);
    std::vector<std::string> near;
    for (const std::string& name : plan::near_names(made, tensor)) near.push_back(quote(name));
    error.remedy = near.empty() ? "List the tensors with lading plan --tensors."
                                : fmt::format("Correct the name: similar ones are {}.", fmt::join(near, ", "));
    return refuse(Stage::kRequest, std::move(error));
  }
  return plan::explain(made, *statement, made.ranks.empty() ? nullptr : &made.ranks.front());
}

Result<PlanDifference, Refusal> diff(const PlanReport& report, const Document& before) {
  if (!Planned::is_behind(report)) return refuse(Stage::kRequest, not_planned());
  const DocumentLimits limits{"plan", kMaxPlanBytes, JsonLimits{}};
  const auto old_plan = read_document(before, limits);
  if (!old_plan) return refuse(Stage::kDocuments, old_plan.error());
  const auto new_plan =
      read_document(Document::text(plan_json(report)), {"new plan", JsonDocument::kMaxBytes, JsonLimits{}});
  if (!new_plan) return refuse(Stage::kProof, new_plan.error());
  auto found = plan::diff_plans(*old_plan, *new_plan);
  if (!found) {
    found.error().relocate(document_name(before, limits), 0);
    return refuse(Stage::kDocuments, std::move(found).error());
  }
  return *std::move(found);
}

}  // namespace lading
