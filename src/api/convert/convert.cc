#include "lading/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "api/convert/beside_files.h"
#include "api/convert/check_place.h"
#include "api/convert/config_text.h"
#include "api/convert/merge.h"
#include "api/given.h"
#include "api/open_checkpoint.h"
#include "api/refuse.h"
#include "api/save/write_share.h"
#include "checker/checker.h"
#include "exec/executor.h"
#include "exec/own_memory.h"
#include "io/choose.h"
#include "io/new_directory.h"
#include "planner/amount_checks.h"
#include "planner/convert/converted_model.h"
#include "planner/convert/parts.h"
#include "planner/planner.h"
#include "policy/policy.h"
#include "source/checkpoint_source.h"

namespace lading {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kPartsInMemory = 2;
constexpr std::chrono::milliseconds kBetweenReports{200};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

SaveFailure refusal(Stage stage, Errors problems) { return {stage, std::move(problems)}; }

std::string folder_of(const source::CheckpointSource& checkpoint) {
  const source::SourceFile& main = checkpoint.index() ? *checkpoint.index() : checkpoint.shards().front();
  return std::filesystem::path(main.relative).parent_path().string();
}

class Converting {
 public:
  Converting(const ConvertRequest& request, const SavePlace& place, source::CheckpointSource checkpoint)
      : request_(request),
        place_(place),
        checkpoint_(std::move(checkpoint)),
        beside_(checkpoint_.anchor(), folder_of(checkpoint_)) {}

  Result<ConvertReport, SaveFailure> run() {
    const Clock::time_point begin = Clock::now();
    if (auto planned = plan(); !planned) return fail(std::move(planned).error());
    report_.planning_seconds = seconds_since(begin);
    const Clock::time_point writing = Clock::now();
    const auto prepared = prepare_save(report_.plan, place_);
    if (!prepared) return fail(SaveFailure{{}, prepared.error()});
    if (auto done = write(prepared->temporary); !done) {
      (void)discard_save(place_, prepared->temporary);
      return fail(SaveFailure{{}, std::move(done).error()});
    }
    report_.converting_seconds = seconds_since(writing);
    return std::move(report_);
  }

 private:
  Result<void, SaveFailure> plan() {
    if (auto checked = check_place(checkpoint_, place_.directory); !checked) {
      return fail(refusal(Stage::kRequest, checked.error()));
    }
    const checkpoint::Catalog& catalog = checkpoint_.catalog();
    if (Errors problems = planner::check_amount(catalog); !problems.empty()) {
      return fail(refusal(Stage::kPlanning, std::move(problems)));
    }
    if (auto looked = look_beside(); !looked) return fail(refusal(Stage::kCheckpoint, std::move(looked).error()));
    const planner::ConvertedDTypes dtypes{request_.dtype, config_dtype_.value_or(DType::kBF16)};
    planner::KeyChanges changes{request_.renames, request_.drop, request_.keep, {}};
    if (request_.mapping) {
      auto mapping = mapping_given(*request_.mapping);
      if (!mapping) return fail(refusal(Stage::kDocuments, std::move(mapping).error()));
      changes.mapping = *std::move(mapping);
    }
    auto model = planner::converted_model(catalog, dtypes, changes);
    if (!model) return fail(refusal(Stage::kPlanning, std::move(model).error()));
    report_.dropped = std::move(model->dropped);
    was_quantized_ = model->was_quantized;
    if (request_.adapter) {
      if (auto added = add_adapter(model->skeleton); !added) return added;
    }
    planner::Followers followers;
    for (const planner::Merge& merge : merges_) followers[merge.tensor] = {merge.a, merge.b};
    const layout::Layout layout =
        planner::cut_into_parts(model->skeleton, request_.part_bytes / kPartsInMemory, followers);
    if (auto planned = plan_load(*model, layout); !planned) return planned;
    if (auto planned = plan_files(model->skeleton, layout); !planned) return planned;
    return change_config();
  }

  Result<void, SaveFailure> add_adapter(model::Skeleton& skeleton) {
    auto adapter = open_adapter(*request_.adapter);
    if (!adapter) return fail(refusal(Stage::kCheckpoint, std::move(adapter).error()));
    if (auto checked = check_place(adapter->source, place_.directory); !checked) {
      return fail(refusal(Stage::kRequest, checked.error()));
    }
    report_.adapter_path = adapter->source.main_path();
    auto merges = planner::merge_adapter(adapter->source.catalog(), adapter->config, skeleton);
    if (!merges) {
      merges.error().relocate(report_.adapter_path, 0);
      return fail(refusal(Stage::kPlanning, std::move(merges).error()));
    }
    merges_ = *std::move(merges);
    for (const planner::Merge& merge : merges_) {
      report_.merged.push_back({merge.tensor, merge.a, merge.b, merge.scale});
      unmerged_elems_ += skeleton.find(merge.tensor)->shape.num_elems().value_or(0);
    }
    checkpoint_.append(std::move(adapter->source));
    return {};
  }

  Result<void> look_beside() {
    LADING_ASSIGN_OR_RETURN(config_, beside_.config());
    CopyCode code = CopyCode::kNo;
    if (config_) {
      report_.beside.emplace_back(kConfigName);
      // One that is no JSON is refused by change_config(), if it has to be changed.
      if (const auto facts = config_facts(*config_)) {
        config_dtype_ = facts->dtype;
        code = facts->names_code ? CopyCode::kYes : CopyCode::kNo;
      }
    }
    LADING_ASSIGN_OR_RETURN(copied_, beside_.find(code));
    report_.beside.insert(report_.beside.end(), copied_.begin(), copied_.end());
    return {};
  }

  // One rank after the other is loaded, so each of them has the staging memory that one rank needs.
  Result<void, SaveFailure> plan_load(const planner::ConvertedModel& model, const layout::Layout& layout) {
    policy::Policy policy;
    policy.cast = policy::Cast::kDestination;
    policy.budget_bytes = policy::kLeastBudgetBytes * layout.mesh.ranks();
    std::vector<bool> is_cached;
    for (const source::SourceFile& shard : checkpoint_.shards()) {
      const auto file = checkpoint_.open_file(shard);
      is_cached.push_back(file && io::Chooser::is_in_memory(*file));
    }
    std::vector<std::uint64_t> ranks(layout.mesh.ranks());
    std::iota(ranks.begin(), ranks.end(), std::uint64_t{0});
    std::vector<planner::AdapterNames> adapters;  // keys are the names
    for (const std::string& path : checkpoint_.adapter_paths()) adapters.push_back({{}, path});
    auto made = planner::make_plan({checkpoint_.catalog(), model.skeleton, layout, model.mapping, policy, false,
                                    std::move(is_cached), std::move(adapters)},
                                   ranks);
    if (!made) return fail(refusal(Stage::kPlanning, std::move(made).error()));
    const auto checked = checker::check_plan(*made);
    if (!checked) return fail(refusal(Stage::kProof, checked.error()));
    load_ = *std::move(made);
    for (const planner::Merge& merge : merges_) {
      if (load_.find(merge.tensor)->checkpoint_dtype != DType::kF64) continue;
      return fail(refusal(Stage::kPlanning, Error(Code::kPlan, "an adapter cannot be added to a weight of F64")
                                                .of_tensor(merge.tensor)
                                                .by_rule("R65")
                                                .try_this("Convert the checkpoint to F32 first.")));
    }
    report_.path = checkpoint_.main_path();
    report_.dequantized = load_.keys.dequantized;
    report_.warnings = checkpoint_.warnings();
    report_.warnings.add(load_.warnings);
    for (const plan::RankPlan& rank : load_.ranks) {
      report_.part_bytes = std::max(report_.part_bytes, rank.owned_bytes);
    }
    return {};
  }

  // Warnings of this plan are about ranks that write at the same time.
  Result<void, SaveFailure> plan_files(const model::Skeleton& skeleton, const layout::Layout& layout) {
    SaveRequest request;
    request.skeleton = skeleton;
    request.layout = layout;
    request.ranks.reset();
    request.options.dtypes = saving::FileDTypes::kMemory;
    request.options.max_shard_bytes = request_.max_shard_bytes;
    if (!merges_.empty()) set_keys(skeleton, request.options);
    const saving::Metadata& metadata = checkpoint_.catalog().files.front().metadata;
    if (!was_quantized_ && !metadata.empty()) request.options.metadata = metadata;
    auto planned = plan_save(request);
    if (!planned) return fail(refusal(planned.error().stage, std::move(planned.error().problems)));
    report_.plan = *std::move(planned);
    return {};
  }

  // Merged weights are F32 in memory, and rounded as they are written. The adapter's matrices are not saved.
  void set_keys(const model::Skeleton& skeleton, saving::Options& options) {
    std::map<std::string_view, DType> rounded;
    std::set<std::string_view> factors;
    for (const planner::Merge& merge : merges_) {
      rounded.emplace(merge.tensor, merge.dtype);
      for (const std::string* one : {&merge.a, &merge.b}) {
        factors.insert(*one);
        options.leave_out.push_back(NamePattern::exact(*one));
      }
    }
    options.dtypes = saving::FileDTypes::kBase;
    options.keys.emplace();
    for (const model::Tensor& tensor : skeleton.tensors) {
      if (factors.contains(tensor.name)) continue;
      const auto found = rounded.find(tensor.name);
      options.keys->push_back({tensor.name, tensor.shape, found == rounded.end() ? tensor.dtype : found->second, {}});
    }
  }

  Result<void, SaveFailure> change_config() {
    ConfigChange change{was_quantized_, request_.dtype};
    if (was_quantized_ && !request_.dtype && !config_dtype_) change.dtype = DType::kBF16;
    if (!config_ || (!change.drops_quantization && !change.dtype)) return {};
    auto changed = changed_config(*config_, change);
    if (!changed) {
      changed.error().relocate(checkpoint_.anchor().display(config_path()), 0);
      return fail(refusal(Stage::kDocuments, std::move(changed).error()));
    }
    config_ = *std::move(changed);
    return {};
  }

  [[nodiscard]] std::string config_path() const {
    return (std::filesystem::path(folder_of(checkpoint_)) / kConfigName).string();
  }

  // Two parts are in memory: one is written while the next one is read.
  Result<void, Errors> write(const std::string& temporary) {
    std::vector<plan::RankPlan> ranks = std::exchange(load_.ranks, {});
    std::future<Written> writing;  // whose destructor waits
    for (std::uint32_t r = 0; r < ranks.size(); ++r) {
      load_.ranks.clear();
      load_.ranks.push_back(std::move(ranks[r]));
      LADING_ASSIGN_OR_RETURN(std::shared_ptr<const Part> part, load_part());
      if (r > 0) LADING_TRY(finish_part(writing));
      writing = begin_part(r, std::move(part), temporary);
    }
    LADING_TRY(finish_part(writing));
    if (unmerged_elems_ != 0) {
      return fail(Errors(Error(Code::kInternal, "the parts do not have all of the weights that an adapter is added to")
                             .try_this("Report this bug.")));
    }
    LADING_TRY(write_beside(temporary));
    LADING_ASSIGN_OR_RETURN(report_.finished, finish_save(report_.plan, place_, temporary));
    const auto replaced = commit_save(place_, temporary);
    if (!replaced) return fail(Errors(replaced.error()));
    report_.replaced = *replaced;
    return {};
  }

  struct Part {
    exec::OwnMemory memory;
    std::vector<exec::DestinationMemory> saved;  // of it
  };
  using Written = Result<SaveShareReport, Errors>;

  // Loads the only rank of load_.
  Result<std::shared_ptr<const Part>, Errors> load_part() {
    const auto part = std::make_shared<Part>();
    if (auto allocated = part->memory.allocate(load_); !allocated) return fail(Errors(std::move(allocated).error()));
    exec::Inputs inputs{load_, {}, {}, {}};
    auto& destinations = inputs.memory.emplace_back();
    for (const std::span<std::byte> one : part->memory.destinations()) {
      destinations.push_back({one.data(), one.size()});
    }
    inputs.open = [this](plan::FileId file) {
      return checkpoint_.open_file(checkpoint_.shards()[load_.files[file].catalog_file]);
    };
    exec::Options options;
    options.threads = request_.threads;
    options.verify = exec::Verify::kOff;  // digests are taken as it is written
    options.cancelled = request_.cancelled;
    options.progress = [this](const exec::Progress& p) { tell(p.read_bytes); };
    exec::Outcome outcome = exec::execute(inputs, options);
    if (!outcome.errors.empty()) return fail(std::move(outcome.errors));
    report_.read_bytes += outcome.read_bytes;
    reading_staging_bytes_ = std::max(reading_staging_bytes_, outcome.staging_bytes);
    const auto merged = merge_part(load_, part->memory.destinations(), merges_);
    if (!merged) return fail(Errors(merged.error()));
    unmerged_elems_ -= *merged;
    part->saved = saved_of(destinations);
    return std::shared_ptr<const Part>(part);
  }

  std::future<Written> begin_part(std::uint32_t number, std::shared_ptr<const Part> part,
                                  const std::string& temporary) {
    const auto write = [this, number, part = std::move(part), &temporary]() -> Written {
      SaveWriting writing;
      writing.threads = request_.threads;
      writing.cancelled = request_.cancelled;
      writing.progress = [this](const LoadProgress& p) { written_of_part_ = p.done_bytes; };
      SavePlace without_sync = place_;
      without_sync.durable = Durable::kNo;  // finish_save() syncs all files
      return write_share(report_.plan, {{number}, {part->saved}}, without_sync, temporary, writing);
    };
    try {
      return std::async(std::launch::async, write);
    } catch (const std::system_error&) {  // no thread is to be had
      return std::async(std::launch::deferred, write);
    }
  }

  Result<void, Errors> finish_part(std::future<Written>& writing) {
    while (writing.wait_for(kBetweenReports) == std::future_status::timeout) tell(0);
    LADING_ASSIGN_OR_RETURN(const SaveShareReport written, writing.get());
    report_.written_bytes += written.written_bytes;
    written_of_part_ = 0;
    report_.staging_bytes = std::max(report_.staging_bytes, reading_staging_bytes_ + written.staging_bytes);
    return {};
  }

  void tell(std::uint64_t read_of_part) {
    if (!request_.progress) return;
    request_.progress(
        {report_.written_bytes + written_of_part_, report_.plan.data_bytes, report_.read_bytes + read_of_part});
  }

  // All but the matrices of an adapter, which the plan of the files does not have.
  [[nodiscard]] std::vector<exec::DestinationMemory> saved_of(
      const std::vector<exec::DestinationMemory>& loaded) const {
    std::set<std::string_view> factors;
    for (const planner::Merge& merge : merges_) factors.insert({merge.a, merge.b});
    std::vector<exec::DestinationMemory> saved;
    const plan::RankPlan& rank = load_.ranks.front();
    for (const plan::DestinationId d : rank.destinations.ids()) {
      const bool is_factor = factors.contains(load_.statements[rank.destinations[d].statement].name);
      if (!is_factor) saved.push_back(loaded[d.number()]);
    }
    return saved;
  }

  Result<void, Errors> write_beside(const std::string& temporary) {
    const auto copy = [&]() -> Result<void> {
      LADING_ASSIGN_OR_RETURN(const io::NewDirectory directory, io::NewDirectory::open(place_.directory, temporary));
      LADING_TRY(beside_.copy(copied_, directory));
      return config_ ? directory.write_file(kConfigName, *config_) : Result<void>();
    };
    if (auto copied = copy(); !copied) return fail(Errors(std::move(copied).error()));
    return {};
  }

  const ConvertRequest& request_;
  const SavePlace& place_;
  source::CheckpointSource checkpoint_;
  BesideFiles beside_;
  std::optional<std::string> config_;
  std::optional<DType> config_dtype_;
  std::vector<std::string> copied_;
  bool was_quantized_ = false;
  std::vector<planner::Merge> merges_;
  std::uint64_t reading_staging_bytes_ = 0;         // of the part that needed most
  std::atomic<std::uint64_t> written_of_part_ = 0;  // of the part that is being written
  std::uint64_t unmerged_elems_ = 0;                // of weights that an adapter is still to be added to
  plan::Plan load_;
  ConvertReport report_;
};

Errors check_request(const ConvertRequest& request) {
  Errors problems;
  if (request.dtype && !policy::is_ordinary_float(*request.dtype)) {
    problems.add(usage("floating tensors cannot be converted to this dtype")
                     .wanted("F64, F32, F16 or BF16")
                     .got(std::string(name(*request.dtype)))
                     .try_this("Choose one of these dtypes."));
  }
  if (request.max_shard_bytes == 0 || request.part_bytes == 0) {
    problems.add(usage("the size of a file or of a part is 0").try_this("Pass a size of 1 byte or more."));
  }
  if (request.mapping && !request.renames.empty()) {
    problems.add(usage("renames and a mapping were given, which both name the new tensors")
                     .try_this("Put the renames into the mapping."));
  }
  if (!request.mapping && !request.keep.empty()) {
    problems.add(usage("names to keep were given without a mapping, and without one all tensors keep their names")
                     .try_this("Omit them, or pass a mapping."));
  }
  return problems;
}

}  // namespace

Result<ConvertReport, SaveFailure> convert(const ConvertRequest& request, const SavePlace& place) {
  if (Errors problems = check_request(request); !problems.empty()) {
    return fail(refusal(Stage::kRequest, std::move(problems)));
  }
  auto checkpoint = open_checkpoint(request.checkpoint);
  if (!checkpoint) return fail(refusal(Stage::kCheckpoint, std::move(checkpoint).error()));
  return Converting(request, place, *std::move(checkpoint)).run();
}

}  // namespace lading
