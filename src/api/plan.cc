#include "lading/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "api/compare_ties.h"
#include "api/document.h"
#include "api/skeleton_values.h"
#include "base/text.h"
#include "checker/checker.h"
#include "io/choose.h"
#include "layout/strategy.h"
#include "model/skeleton_json.h"
#include "plan/explain.h"
#include "plan/plan_diff.h"
#include "plan/totals.h"
#include "plan/words.h"
#include "planner/planner.h"
#include "source/checkpoint_source.h"
#include "source/sampled_contents.h"

namespace lading {
namespace {

// All ranks at once are held in memory; more than this is for a program that asks for one after the other.
constexpr std::uint64_t kMaxRanksAtOnce = 4096;
constexpr std::uint64_t kMaxPlanBytes = 1'000'000'000;

// What planning and loading keep of a tensor for one rank, measured (docs/formats.md). A small file may not make them
// take gigabytes; one that has gigabytes itself may.
constexpr std::uint64_t kBytesKeptPerTensor = 3'500;
constexpr std::uint64_t kMaxBytesKept = 2'000'000'000;
constexpr std::uint64_t kMaxTimesTheFiles = 4;

Unexpected<PlanRefusal> refuse(PlanStage stage, Errors problems) { return {PlanRefusal{stage, std::move(problems)}}; }

Error usage(std::string message) { return {Code::kUsage, std::move(message)}; }

class Planning {
 public:
  explicit Planning(const PlanRequest& request) : request_(request) {}

  Result<PlanReport, PlanRefusal> run() {
    if (!check_request()) return refuse(PlanStage::kRequest, std::move(problems_));
    auto checkpoint = open_checkpoint();
    read_documents();
    if (!checkpoint) {
      checkpoint.error().add(std::move(problems_));
      return refuse(PlanStage::kCheckpoint, std::move(checkpoint).error());
    }
    const checkpoint::Catalog& catalog = checkpoint->catalog();
    if (!problems_.empty()) return refuse(PlanStage::kDocuments, std::move(problems_));
    check_amount(catalog);
    if (!problems_.empty()) return refuse(PlanStage::kPlanning, std::move(problems_));
    if (!request_.skeleton) take(planner::skeleton_of(catalog), skeleton_);
    if (!request_.layout && problems_.empty()) lay_out();
    if (!problems_.empty()) return refuse(PlanStage::kPlanning, std::move(problems_));
    if (!choose_ranks()) return refuse(PlanStage::kRequest, std::move(problems_));

    look_at_caches(*checkpoint);
    auto made = planned(catalog);
    if (made && !policy_.may_untie.empty()) made = tied_again(*std::move(made), *checkpoint);
    if (!made) return refuse(PlanStage::kPlanning, std::move(made).error());
    if (request_.tied_keys == TiedKeys::kCompare) {
      Errors different = compare_ties(*made, *checkpoint);
      if (!different.empty()) return refuse(PlanStage::kPlanning, std::move(different));
    }
    Errors warnings = checkpoint->warnings();
    warnings.add(std::move(warnings_));
    warnings.add(std::move(made->warnings));
    made->warnings = std::move(warnings);
    const auto checked = checker::check_plan(*made);
    if (!checked) return refuse(PlanStage::kProof, checked.error());

    PlanReport report;
    const source::SourceFile& main_file = checkpoint->index() ? *checkpoint->index() : checkpoint->shards().front();
    report.path = checkpoint->anchor().display(main_file.relative);
    report.bytes_proved = checked->bytes_proved;
    if (made->ranks.size() == made->mesh.ranks()) {
      made->unread_bytes = 0;
      for (const checker::Unread& unread : checked->unread) *made->unread_bytes += unread.bytes;
    }
    report.unread_bytes = made->unread_bytes;
    fill_in(report, *made);
    report.plan = std::make_shared<const plan::Plan>(*std::move(made));
    report.source = std::make_shared<const source::CheckpointSource>(*std::move(checkpoint));
    if (auto values = SkeletonValues(skeleton_); !values.by_name.empty()) {
      report.values = std::make_shared<const SkeletonValues>(std::move(values));
    }
    return report;
  }

 private:
  Result<plan::Plan, Errors> planned(const checkpoint::Catalog& catalog) const {
    return planner::make_plan({catalog, skeleton_, layout_, mapping_, policy_, request_.is_part_of_model, is_cached_},
                              ranks_);
  }

  // A file that cannot be opened is told of when it is read.
  void look_at_caches(const source::CheckpointSource& source) {
    for (const source::SourceFile& shard : source.shards()) {
      const auto file = source.open_file(shard);
      is_cached_.push_back(file && io::Chooser::is_in_memory(*file));
    }
  }

  // What may leave its tie stays if its key holds what the others have, in one form with them (R50).
  Result<plan::Plan, Errors> tied_again(plan::Plan made, const source::CheckpointSource& source) {
    const auto leaving = compare_leaving(made, skeleton_, policy_, source);
    if (!leaving) return fail(Errors(leaving.error()));
    if (!leaving->others_stay) return made;
    policy_.may_untie.clear();
    for (const std::string& name : leaving->different) policy_.may_untie.push_back(NamePattern::exact(name));
    auto tied = planned(source.catalog());
    return tied ? std::move(tied) : std::move(made);
  }

  bool check_request() {
    const bool by_strategy = !request_.mesh.empty() || !request_.strategy.empty() || !request_.tp_plan.empty() ||
                             !request_.device.empty() || request_.devices_per_node;
    if (request_.layout && by_strategy) {
      problems_.add(
          usage("a layout stands for itself: mesh, strategy, tensor-parallel plan and device do not go with it"));
    } else if (!request_.mesh.empty() && request_.strategy.empty()) {
      problems_.add(usage("a mesh needs a strategy").wanted("single, ddp, fsdp2, hsdp, tp, fsdp2+tp or zero3"));
    }
    if (auto mesh = layout::parse_mesh(request_.mesh); request_.mesh.empty()) {
      // One rank.
    } else if (mesh) {
      strategy_.mesh = *std::move(mesh);
    } else {
      problems_.add(std::move(mesh).error());
    }
    if (problems_.empty()) choose_devices();
    if (!request_.strategy.empty()) take(layout::parse_strategy(request_.strategy), strategy_.strategy);
    for (const auto& [pattern, style] : request_.tp_plan) {
      layout::TpRule& rule = strategy_.tp_plan.emplace_back();
      rule.pattern = pattern;
      take(layout::parse_tp_style(style), rule.style);
    }
    return problems_.empty();
  }

  void check_amount(const checkpoint::Catalog& catalog) {
    std::uint64_t file_bytes = 0;
    for (const checkpoint::CatalogFile& file : catalog.files) file_bytes += file.size_bytes;
    const std::uint64_t kept = catalog.tensors.size() * kBytesKeptPerTensor;
    if (kept <= kMaxBytesKept || kept / kMaxTimesTheFiles <= file_bytes) return;
    problems_.add(
        Error(Code::kPlan, "planning the checkpoint would take more memory than its size justifies")
            .wanted(fmt::format("at most {}, or {} times its files", human_bytes(kMaxBytesKept), kMaxTimesTheFiles))
            .got(fmt::format("about {} for {} tensors in {} of files", human_bytes(kept),
                             with_commas(catalog.tensors.size()), human_bytes(file_bytes)))
            .try_this("Load a checkpoint with fewer tensors; if this one is real, please report it."));
  }

  // "cuda" names no index by itself: the mesh and the size of a node do (R34).
  void choose_devices() {
    const std::string& device = request_.device;
    const std::uint64_t ranks = strategy_.mesh.ranks();
    if (request_.devices_per_node && device != "cuda") {
      problems_.add(usage("a number of devices per node goes with the device \"cuda\" only").by_rule("R34"));
    } else if (request_.devices_per_node == std::uint64_t{0}) {
      problems_.add(usage("a node without devices").by_rule("R34").wanted("1 or more"));
    } else if (device == "cuda") {
      constexpr std::uint64_t kUsual = 8;
      layout::DeviceMap& devices = strategy_.devices;
      devices.type = device;
      devices.per_node = request_.devices_per_node.value_or(std::min(ranks, kUsual));
      warnings_.add(Error(Code::kLayout, ranks == 1 ? std::string("the rank has cuda:0")
                                                    : fmt::format("rank r has cuda:(r % {})", devices.per_node))
                        .by_rule("R34"));
    } else if (!device.empty() && device != "cpu") {
      auto parsed = layout::parse_device(device);
      if (!parsed) {
        problems_.add(std::move(parsed).error());
      } else if (ranks != 1 && (!request_.ranks || request_.ranks->size() != 1)) {
        problems_.add(usage("one device for several ranks")
                          .by_rule("R34")
                          .wanted("cuda, which is then counted by rank, or one rank (--rank R)")
                          .got(quote(device))
                          .try_this("Name the rank with --rank, or give --device cuda."));
      } else {
        choose_device_of_one(*std::move(parsed), ranks);
      }
    }
  }

  // Of a rank among others the device is what its own process calls it. The others do the same, so that the plan, and
  // its digest, are theirs too.
  void choose_device_of_one(const layout::Device& device, std::uint64_t ranks) {
    if (ranks != 1) {
      warnings_.add(Error(Code::kLayout, fmt::format("every rank has {}, in a process of its own", device.text()))
                        .by_rule("R34"));
    }
    constexpr std::uint64_t kMostListed = 1'000'000;
    layout::DeviceMap& devices = strategy_.devices;
    if (ranks != 1 && device.index == 0) {
      devices.type = device.type;
      devices.per_node = 1;
    } else if (ranks > kMostListed) {
      problems_.add(usage("a device with a number for a rank of so many").by_rule("R34").wanted("cuda or cuda:0"));
    } else {
      devices.list.assign(ranks, device);
    }
  }

  template <class T, class E>
  void take(Result<T, E> result, T& out) {
    if (result) {
      out = *std::move(result);
    } else {
      problems_.add(std::move(result).error());
    }
  }

  Result<source::CheckpointSource, Errors> open_checkpoint() const {
    source::OpenOptions options;
    options.locate.root = request_.root;
    options.locate.revision = request_.revision;
    if (request_.trailing_bytes == TrailingBytesPolicy::kAllow) {
      options.trailing_bytes = checkpoint::TrailingBytes::kAllow;
    }
    return source::CheckpointSource::open(request_.checkpoint, options);
  }

  template <class T, class Parse>
  void read(const std::optional<PlanDocument>& document, std::string_view what, const Parse& parse, T& out) {
    if (!document) return;
    const DocumentLimits limits{what};
    const auto json = read_document(*document, limits);
    if (!json) {
      problems_.add(json.error());
      return;
    }
    Result<T, Errors> parsed = parse(*json);
    if (!parsed) parsed.error().relocate(document_name(*document, limits), 0);
    take(std::move(parsed), out);
  }

  void read_documents() {
    read(request_.skeleton, "skeleton", model::parse_skeleton, skeleton_);
    read(request_.layout, "layout", layout::parse_layout, layout_);
    read(request_.mapping, "mapping", mapping::parse_mapping, mapping_);
    read(request_.policy, "policy", policy::parse_policy, policy_);
  }

  void lay_out() {
    std::vector<layout::TensorToPlace> infos;
    infos.reserve(skeleton_.tensors.size());
    for (const model::Tensor& tensor : skeleton_.tensors) {
      infos.push_back({tensor.name, tensor.shape, is_laid_out_as_parameter(tensor)});
    }
    layout::StrategyLayout made;
    take(layout::make_layout(strategy_, infos), made);
    layout_ = std::move(made.layout);
    for (std::string& note : made.notes) warnings_.add(Error(Code::kLayout, std::move(note)));
  }

  // A buffer that shares a parameter's storage lies where the parameter does (R52).
  [[nodiscard]] bool is_laid_out_as_parameter(const model::Tensor& tensor) const {
    if (tensor.kind == model::Kind::kParameter || !tensor.tie_class) return tensor.kind == model::Kind::kParameter;
    const auto& names = skeleton_.tie_classes[*tensor.tie_class];
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return skeleton_.find(name)->kind == model::Kind::kParameter; });
  }

  bool choose_ranks() {
    // A layout file's mesh has passed check_mesh() while it was parsed.
    const std::uint64_t count = layout_.mesh.ranks();
    if (request_.ranks) {
      ranks_ = *request_.ranks;
    } else if (count > kMaxRanksAtOnce) {
      problems_.add(usage("there are too many ranks to work out at once")
                        .wanted(fmt::format("at most {}", kMaxRanksAtOnce))
                        .got(std::to_string(count)));
    } else {
      ranks_.resize(static_cast<std::size_t>(count));
      std::iota(ranks_.begin(), ranks_.end(), std::uint64_t{0});
    }
    for (const std::uint64_t rank : ranks_) {
      if (rank >= count) {
        problems_.add(usage(fmt::format("there is no rank {}", rank)).wanted(fmt::format("a rank below {}", count)));
      }
    }
    return problems_.empty();
  }

  static void fill_in(PlanReport& report, const plan::Plan& made) {
    if (!made.mesh.axes().empty()) report.mesh = made.mesh.text();
    report.rank_count = made.mesh.ranks();
    report.digest = plan::digest(made);
    report.ignored_keys = made.ignored_keys;
    report.unexpected_keys = made.unexpected_keys;
    report.warnings = made.warnings;
    report.tensors.reserve(made.statements.size());
    for (const plan::Statement& s : made.statements) {
      report.tensors.push_back({s.name, std::string(model::word(s.kind)), s.shape, s.storage, s.provenance, 0});
    }
    for (const plan::RankPlan& rank : made.ranks) {
      const auto bytes = plan::device_bytes(rank);
      report.ranks.push_back({rank.rank,
                              rank.read_bytes,
                              rank.owned_bytes,
                              rank.staging_bytes,
                              {bytes.begin(), bytes.end()},
                              rank.flat_parameter_gap_bytes});
    }
    if (made.ranks.empty()) return;
    for (const plan::Destination& d : made.ranks.front().destinations) {
      const DType storage = made.statements[d.statement].storage;
      report.tensors[d.statement.number()].local_bytes +=
          d.flat_parameter.empty() ? d.buffer_bytes : Shape{d.owned_elems}.size_bytes(storage).value_or(0);
    }
  }

  const PlanRequest& request_;
  layout::StrategyRequest strategy_;
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

Exit PlanRefusal::exit_code() const {
  switch (stage) {
    case PlanStage::kRequest: return Exit::kUsage;
    case PlanStage::kCheckpoint: return lading::exit_code(problems.front().code);
    case PlanStage::kDocuments:
    case PlanStage::kPlanning: return Exit::kPlan;
    case PlanStage::kProof: return Exit::kInternal;
  }
  return Exit::kInternal;
}

Result<PlanReport, PlanRefusal> make_plan(const PlanRequest& request) { return Planning(request).run(); }

Result<std::string> sampled_contents(const PlanReport& report) { return source::sampled_contents(*report.source); }

std::string plan_json(const PlanReport& report) { return plan::plan_json(*report.plan); }

Result<std::vector<ExplainedFact>, PlanRefusal> explain(const PlanReport& report, std::string_view tensor) {
  const plan::Plan& made = *report.plan;
  const plan::Statement* statement = made.find(tensor);
  if (statement == nullptr) {
    Error error = usage("the model has no tensor of this name").of_tensor(tensor);
    std::vector<std::string> near;
    for (const std::string& name : plan::near_names(made, tensor)) near.push_back(quote(name));
    if (!near.empty()) error.remedy = fmt::format("Near it: {}", fmt::join(near, ", "));
    return refuse(PlanStage::kRequest, std::move(error));
  }
  std::vector<ExplainedFact> facts;
  for (plan::Fact& fact : plan::explain(made, *statement, made.ranks.empty() ? nullptr : &made.ranks.front())) {
    facts.push_back({std::move(fact.topic), std::move(fact.text)});
  }
  return facts;
}

Result<PlanDifference, PlanRefusal> diff(const PlanReport& report, const PlanDocument& before) {
  const DocumentLimits limits{"plan", kMaxPlanBytes, JsonLimits{}};
  const auto old_plan = read_document(before, limits);
  if (!old_plan) return refuse(PlanStage::kDocuments, old_plan.error());
  const auto new_plan =
      read_document(PlanDocument::text(plan_json(report)), {"new plan", JsonDocument::kMaxBytes, JsonLimits{}});
  if (!new_plan) return refuse(PlanStage::kProof, new_plan.error());
  auto found = plan::diff_plans(*old_plan, *new_plan);
  if (!found) {
    found.error().relocate(document_name(before, limits), 0);
    return refuse(PlanStage::kDocuments, std::move(found).error());
  }
  PlanDifference out;
  out.ranks_not_compared = std::move(found->ranks_not_compared);
  for (plan::Change& c : found->changes) {
    out.changes.push_back(
        {std::move(c.section), std::move(c.name), std::move(c.field), std::move(c.before), std::move(c.after)});
  }
  return out;
}

}  // namespace lading
