#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include "api/given.h"
#include "api/open_checkpoint.h"
#include "api/refuse.h"
#include "api/save/planned_save.h"
#include "api/shared/destinations.h"
#include "api/shared/lay_out.h"
#include "base/element_bytes.h"
#include "base/strided_loop.h"
#include "checker/save/check_save.h"
#include "lading/save.h"
#include "layout/device_choice.h"
#include "planner/planner.h"
#include "planner/save/plan_save.h"

namespace lading {
namespace {

// All ranks are planned at once.
constexpr std::uint64_t kMostRanks = 4096;

class SavePlanning {
 public:
  explicit SavePlanning(const SaveRequest& request) : request_(request) {}

  Result<SavePlanReport, Refusal> run() {
    if (!request_.skeleton && !request_.base) {
      problems_.add(usage("a save needs a skeleton, which describes the model in memory, or a base")
                        .try_this("Pass a skeleton."));
    }
    if (request_.base && request_.options.keys) {
      problems_.add(usage("a base and keys were given").try_this("Pass a base checkpoint, or keys."));
    }
    if (!request_.base && request_.options.unmapped == saving::UnmappedKeys::kKeep) {
      problems_.add(usage("keys of the base are to be kept, but there is no base").try_this("Pass a base checkpoint."));
    }
    const bool is_given = request_.options.dtypes == saving::FileDTypes::kGiven;
    if (is_given != request_.options.dtype.has_value()) {
      problems_.add(usage("the dtype of the files was not given, or not asked for").try_this("Correct the request."));
    }
    if (!problems_.empty() || !choose_devices()) return refuse(Stage::kRequest, std::move(problems_));
    auto base = opened();
    read_documents();
    if (!base) {
      base.error().add(std::move(problems_));
      return refuse(Stage::kCheckpoint, std::move(base).error());
    }
    if (!problems_.empty()) return refuse(Stage::kDocuments, std::move(problems_));
    if (!request_.skeleton) take(planner::skeleton_of(base->catalog()), skeleton_, problems_);
    lay_out();
    if (!problems_.empty()) return refuse(Stage::kPlanning, std::move(problems_));
    if (!choose_ranks()) return refuse(Stage::kRequest, std::move(problems_));

    const checkpoint::Catalog* const catalog = request_.base ? &base->catalog() : nullptr;
    const std::string index_name =
        base->index() ? std::filesystem::path(base->index()->relative).filename().string() : std::string();
    auto made = planner::plan_save({catalog, index_name, skeleton_, layout_, mapping_, request_.options});
    if (!made) return refuse(Stage::kPlanning, std::move(made).error());
    const auto checked = checker::check_save(made->plan);
    if (!checked) return refuse(Stage::kProof, checked.error());
    PlannedSave planned{{}, ranks_};
    for (const planner::KeptKey& key : made->kept_keys) planned.kept.emplace(key.tensor, key.key);
    LADING_TRY(plan_kept(*made, planned));
    SavePlanReport report = report_of(*made, planned.kept);
    report.bytes_proved = checked->bytes_proved;
    report.warnings = std::move(warnings_);
    report.warnings.add(std::move(made->plan.load.warnings));
    planned.plan = std::move(made->plan);
    report.handle = PlannedSave::handle(std::move(planned));
    return report;
  }

 private:
  [[nodiscard]] Result<source::CheckpointSource, Errors> opened() const {
    return request_.base ? open_checkpoint(*request_.base) : source::CheckpointSource::none();
  }

  void read_documents() {
    if (request_.skeleton) take(skeleton_given(*request_.skeleton), skeleton_, problems_);
    if (request_.mapping) take(mapping_given(*request_.mapping), mapping_, problems_);
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
    return problems_.empty();
  }

  void lay_out() {
    const auto* wanted = std::get_if<layout::ByStrategy>(&request_.layout);
    if (wanted != nullptr) take(lay_out_by_strategy(*wanted, devices_, skeleton_, warnings_), layout_, problems_);
  }

  bool choose_ranks() {
    const std::uint64_t count = layout_.mesh.ranks();
    if (count > kMostRanks) {
      problems_.add(usage("the mesh has too many ranks for a save")
                        .wanted(fmt::format("at most {}", kMostRanks))
                        .got(std::to_string(count))
                        .try_this("Save from fewer ranks."));
      return false;
    }
    if (!request_.ranks) {
      ranks_.resize(count);
      std::iota(ranks_.begin(), ranks_.end(), 0);
      return true;
    }
    for (const std::uint64_t rank : *request_.ranks) {
      if (rank >= count) {
        problems_.add(usage(fmt::format("rank {} does not exist", rank))
                          .wanted(fmt::format("a rank below {}", count))
                          .try_this("Correct the rank, or the mesh."));
      } else {
        ranks_.push_back(static_cast<std::uint32_t>(rank));  // the load has every rank in order
      }
    }
    std::sort(ranks_.begin(), ranks_.end());
    ranks_.erase(std::unique(ranks_.begin(), ranks_.end()), ranks_.end());
    if (ranks_.empty() && problems_.empty()) {
      problems_.add(usage("the list of ranks is empty").try_this("Name the ranks whose memory this process has."));
    }
    return problems_.empty();
  }

  // The load of the keys that these ranks take over from the base: of its files as they are now.
  Result<void, Refusal> plan_kept(const planner::SaveDecisions& made, PlannedSave& planned) const {
    std::set<std::string_view> own;
    for (const std::uint32_t r : ranks_) {
      for (const plan::Destination& d : made.plan.load.ranks[r].destinations) {
        own.insert(made.plan.load.statements[d.statement].name);
      }
    }
    std::vector<model::Tensor> tensors;
    for (const planner::KeptKey& key : made.kept_keys) {
      if (!own.contains(key.tensor)) continue;
      model::Tensor& tensor = tensors.emplace_back();
      tensor.name = key.key;
      tensor.kind = model::Kind::kBuffer;
      tensor.shape = key.shape;
      tensor.dtype = key.dtype;
      tensor.presence = model::Presence::kEmpty;
      tensor.device = "cpu";
    }
    if (tensors.empty()) return {};
    auto skeleton = model::make_skeleton(std::move(tensors), {}, {});
    if (!skeleton) return refuse(Stage::kPlanning, std::move(skeleton).error());
    policy::Policy policy;
    policy.cast = policy::Cast::kDestination;
    policy.quantized = policy::Quantized::kKeep;  // bytes
    policy.allow_unexpected = {NamePattern("*")};
    PlanRequest request;
    request.checkpoint = *request_.base;
    request.skeleton = *std::move(skeleton);
    request.policy = std::move(policy);
    LADING_ASSIGN_OR_RETURN(planned.kept_load, make_plan(request));
    return {};
  }

  SavePlanReport report_of(const planner::SaveDecisions& made,
                           const std::map<std::string, std::string, std::less<>>& kept) {
    const plan::SavePlan& save = made.plan;
    SavePlanReport report;
    report.digest = plan::digest(save);
    report.mesh = save.load.mesh;
    report.index = save.index_name;
    report.left_out = made.left_out;
    report.not_saved = made.not_saved;
    for (const plan::PlannedFile& file : save.load.files) {
      report.files.push_back({file.name, file.size_bytes, 0});
      report.bytes += file.size_bytes;
    }
    IndexedVector<plan::SourceId, std::vector<std::string>> makers = makers_of(save.load, kept);
    for (const plan::SourceId id : save.load.sources.ids()) {
      const plan::Source& source = save.load.sources[id];
      report.keys.push_back({source.key, source.dtype, source.shape, save.load.files[source.file].name, makers[id]});
      report.data_bytes += source.bytes.size_bytes();
      ++report.files[source.file.number()].keys;
    }
    std::sort(report.keys.begin(), report.keys.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    for (const plan::RankWrites& rank : save.ranks) {
      report.ranks.push_back({rank.rank, rank.bytes, rank.writes.size()});
    }
    for (std::size_t r = 0; r < save.ranks.size(); ++r) add_shares(save, r, report.shares);
    for (const planner::KeptKey& key : made.kept_keys) report.kept_keys.emplace_back(key.key, key.tensor);
    for (const auto& [key, why] : made.dropped_keys) {
      report.dropped_keys.push_back(key);
      warnings_.add(Error(Code::kPlan, "the key of the base is left out: " + why)
                        .of_tensor(key)
                        .by_rule("R69")
                        .try_this("Check that the new checkpoint does not need it."));
    }
    return report;
  }

  // Writes are sorted by file and place. One that begins where the last one ends makes no new run.
  static void add_shares(const plan::SavePlan& save, std::size_t r, std::vector<FileShare>& shares) {
    const plan::RankWrites& writes = save.ranks[r];
    const std::size_t first = shares.size();
    for (const plan::Write& write : writes.writes) {
      const plan::Source& source = save.source_of(save.load.ranks[r], write);
      const std::uint64_t run_bytes = bytes_of_elems(write.run_elems, source.dtype);
      std::uint64_t runs = 1;
      std::uint64_t end = write.file_begin_bytes + run_bytes;
      for (const ByteLoop& loop : write.loops) {
        runs *= loop.count;
        end += (loop.count - 1) * loop.target_stride_bytes;
      }
      const std::size_t file = source.file.number();
      if (shares.size() == first || shares.back().file != file) {
        shares.push_back({writes.rank, file, 0, 0, {write.file_begin_bytes, write.file_begin_bytes}});
      }
      FileShare& share = shares.back();
      const bool goes_on = share.runs > 0 && share.span.end == write.file_begin_bytes;
      share.bytes += runs * run_bytes;
      share.runs += goes_on ? runs - 1 : runs;
      share.span.end = std::max(share.span.end, end);
    }
  }

  static IndexedVector<plan::SourceId, std::vector<std::string>> makers_of(
      const plan::Plan& load, const std::map<std::string, std::string, std::less<>>& kept) {
    std::map<std::string_view, plan::SourceId> by_key;
    for (const plan::SourceId id : load.sources.ids()) by_key.emplace(load.sources[id].key, id);
    IndexedVector<plan::SourceId, std::vector<std::string>> makers(load.sources.size());
    for (const plan::Statement& statement : load.statements) {
      if (statement.provenance != Provenance::kFile || kept.contains(statement.name)) continue;
      for (const std::string& key : statement.expression.keys()) makers[by_key.at(key)].push_back(statement.name);
      for (const mapping::Expression& other : statement.must_equal) {
        for (const std::string& key : other.keys()) makers[by_key.at(key)].push_back(statement.name);
      }
    }
    return makers;
  }

  const SaveRequest& request_;
  layout::ChosenDevices devices_;
  model::Skeleton skeleton_;
  layout::Layout layout_;
  mapping::Mapping mapping_;
  std::vector<std::uint32_t> ranks_;
  Errors warnings_;
  Errors problems_;
};

}  // namespace

Result<SavePlanReport, Refusal> plan_save(const SaveRequest& request) { return SavePlanning(request).run(); }

std::vector<DestinationInfo> destinations_of(const SavePlanReport& plan) {
  const PlannedSave& planned = PlannedSave::of(plan);
  return describe_destinations(planned.plan.load, planned.ranks);
}

std::vector<std::uint64_t> writes_of(const SavePlanReport& plan) {
  const PlannedSave& planned = PlannedSave::of(plan);
  std::vector<std::uint64_t> writes;
  for (const std::uint32_t r : planned.ranks) {
    const std::size_t first = writes.size();
    writes.resize(first + planned.plan.load.ranks[r].destinations.size());
    for (const plan::Write& write : planned.plan.ranks[r].writes) {
      ++writes[first + write.transfer.destination.number()];
    }
  }
  return writes;
}

}  // namespace lading
