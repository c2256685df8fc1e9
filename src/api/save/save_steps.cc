#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "api/planned.h"
#include "api/refuse.h"
#include "api/save/planned_save.h"
#include "api/save/save_part.h"
#include "api/save/write_share.h"
#include "api/shared/destinations.h"
#include "exec/save/write_files.h"
#include "io/anchor.h"
#include "io/new_directory.h"
#include "lading/save.h"
#include "ledger/ledger.h"

namespace lading {
namespace {

constexpr std::string_view kLedgerName = "lading.ledger.json";
// A note lists the keys of a checkpoint, about 80 bytes each.
constexpr std::uint64_t kMostPartBytes = 1'000'000'000;

io::IfExists if_exists(const SavePlace& place) {
  return place.existing == ExistingDirectory::kReplace ? io::IfExists::kReplace : io::IfExists::kRefuse;
}

Error about_part(std::string message, std::string file) {
  return Error(Code::kIncomplete, std::move(message))
      .in_file(file)
      .by_rule("R69")
      .try_this("Discard this save, and save again.");
}

// The notes of all processes, added up.
class Parts {
 public:
  Parts(const PlannedSave& planned, const std::string& digest, const io::NewDirectory& directory)
      : load_(planned.plan.load),
        save_(planned.plan),
        digest_(digest),
        directory_(directory),
        bytes_(load_.sources.size()),
        digests_(load_.sources.size()) {}

  Result<void, Errors> read() {
    const auto anchor = io::Anchor::open(directory_.path());
    if (!anchor) return fail(Errors(anchor.error()));
    const auto names = anchor->list("");
    if (!names) return fail(Errors(names.error()));
    for (const std::string& name : *names) {
      if (is_part_name(name)) read(*anchor, name);
    }
    check_ranks();
    check_keys();
    if (!errors_.empty()) return fail(std::move(errors_));
    return {};
  }

  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] const device::Digest& digest_of(plan::SourceId source) const { return digests_[source]; }

 private:
  void read(const io::Anchor& anchor, const std::string& name) {
    const auto refuse = [&](const Errors& errors) {
      for (const Error& error : errors) errors_.add(Error(error).in_file(directory_.path_of(name)));
    };
    const auto file = anchor.open_file(name);
    if (!file) return refuse(file.error());
    if (file->size_bytes() > kMostPartBytes) return refuse(about_part("the note is too large", name));
    JsonBuffer buffer(file->size_bytes());
    if (auto read = file->read_exact(0, std::span(buffer.data(), file->size_bytes())); !read) {
      return refuse(read.error());
    }
    const auto document = JsonDocument::parse(std::move(buffer));
    if (!document) return refuse(document.error());
    const auto part = parse_part(*document, load_.sources.size());
    if (!part) return refuse(part.error());
    if (part->plan != digest_) return refuse(about_part("the note is of another save", name));
    names_.push_back(name);
    ranks_.insert(ranks_.end(), part->ranks.begin(), part->ranks.end());
    for (const exec::WrittenKey& key : part->keys) {
      bytes_[key.source] += key.bytes;
      digests_[key.source] += key.digest;
    }
  }

  void check_ranks() {
    std::sort(ranks_.begin(), ranks_.end());
    for (const plan::RankWrites& rank : save_.ranks) {
      const auto count = std::count(ranks_.begin(), ranks_.end(), rank.rank);
      if (count == 1) continue;
      errors_.add(about_part(count == 0 ? "a rank has not written its part" : "a rank has written its part twice",
                             directory_.path())
                      .on_rank(static_cast<int>(rank.rank)));
    }
  }

  void check_keys() {
    for (const plan::SourceId source : load_.sources.ids()) {
      const std::uint64_t wanted = load_.sources[source].bytes.size_bytes();
      if (bytes_[source] == wanted) continue;
      errors_.add(about_part("the ranks have not written all bytes of the key", directory_.path())
                      .of_tensor(load_.sources[source].key)
                      .wanted(fmt::format("{} bytes", wanted))
                      .got(fmt::format("{} bytes", bytes_[source])));
    }
  }

  const plan::Plan& load_;
  const plan::SavePlan& save_;
  const std::string& digest_;
  const io::NewDirectory& directory_;
  std::vector<std::string> names_;
  std::vector<std::uint64_t> ranks_;
  IndexedVector<plan::SourceId, std::uint64_t> bytes_;
  IndexedVector<plan::SourceId, device::Digest> digests_;
  Errors errors_;
};

// The ledger of a load of the new checkpoint by one rank, with the digests that were taken before it was written. The
// files are opened as every reader opens them.
Result<std::string, Errors> ledger_of(const PlannedSave& planned, const Parts& parts, const SavePlace& place,
                                      const io::NewDirectory& directory) {
  const plan::Plan& load = planned.plan.load;
  const std::string main = planned.plan.index_name.empty() ? load.files.front().name : planned.plan.index_name;
  PlanRequest request;
  request.checkpoint.path = fmt::format("{}/{}", directory.path(), main);
  auto report = make_plan(request);
  if (!report) return fail(std::move(report).error().problems);
  const Planned& read = Planned::of(*report);
  std::map<std::string_view, plan::SourceId> by_key;
  for (const plan::SourceId id : load.sources.ids()) by_key.emplace(load.sources[id].key, id);
  ledger::LedgerFacts facts;
  facts.checkpoint = fmt::format("{}/{}", place.directory, main);
  for (const plan::PlannedFile& file : read.plan.files) {
    const io::FileIdentity& identity = read.source.shards()[file.catalog_file].identity;
    facts.files.emplace_back(
        ledger::FileIdentity{identity.inode, static_cast<std::uint64_t>(std::max<std::int64_t>(0, identity.mtime_s)),
                             static_cast<std::uint64_t>(identity.mtime_ns)});
  }
  const plan::RankPlan& rank = read.plan.ranks.front();
  for (const plan::DestinationId d : rank.destinations.ids()) {
    const plan::Destination& destination = rank.destinations[d];
    const auto found = by_key.find(read.plan.statements[destination.statement].name);
    if (found == by_key.end()) {
      return fail(Errors(about_part("the file has a key that was not planned", directory.path())));
    }
    facts.destinations.push_back(
        {0, d, destination.buffer_bytes, destination.buffer_bytes, parts.digest_of(found->second), std::nullopt});
  }
  return ledger::ledger_json(ledger::make_ledger(read.plan, facts));
}

// Of keys that no tensor makes: what the base's files have.
struct KeptBytes {
  std::map<std::string, std::span<std::byte>, std::less<>> by_key;
  std::shared_ptr<const void> owned;
};

Result<KeptBytes, Errors> read_kept(const PlannedSave& planned, const SaveWriting& writing) {
  KeptBytes kept;
  if (!planned.kept_load) return kept;
  LoadRequest request;
  request.threads = writing.threads;
  request.cancelled = writing.cancelled;
  auto loaded = load_plan(request, *planned.kept_load);
  if (!loaded) {
    Errors problems;
    for (Error error : loaded.error().problems) {
      if (error.code == Code::kFileChanged) error.remedy = "Save again when no other program writes to the base.";
      problems.add(std::move(error));
    }
    return fail(std::move(problems));
  }
  for (const LoadedTensor& tensor : loaded->tensors) kept.by_key.emplace(tensor.destination.name, tensor.memory);
  kept.owned = std::move(loaded->owned);
  return kept;
}

}  // namespace

Result<PreparedSave> prepare_save(const SavePlanReport& plan, const SavePlace& place) {
  if (!PlannedSave::is_behind(plan)) return fail(not_a_planned_save());
  LADING_ASSIGN_OR_RETURN(io::NewDirectory made, io::NewDirectory::create(place.directory, if_exists(place)));
  const plan::SavePlan& save = PlannedSave::of(plan).plan;
  const auto fill = [&]() -> Result<void> {
    for (const plan::FileId id : save.load.files.ids()) {
      const plan::PlannedFile& file = save.load.files[id];
      LADING_ASSIGN_OR_RETURN(const io::Fd fd, made.create_file(file.name, file.size_bytes));
      const std::string& header = save.headers[id];
      LADING_TRY(io::write_exact(fd.get(), 0, std::as_bytes(std::span(header)), made.path_of(file.name)));
    }
    return {};
  };
  if (auto filled = fill(); !filled) {
    (void)made.discard();
    return fail(std::move(filled).error());
  }
  PreparedSave prepared{made.temporary(), made.path(), made.removed(), nullptr};
  prepared.lock = std::make_shared<const io::NewDirectory>(std::move(made));
  return prepared;
}

Result<SaveShareReport, Errors> write_share(const SavePlanReport& plan, const SaveShare& share, const SavePlace& place,
                                            const std::string& temporary, const SaveWriting& writing) {
  const PlannedSave& planned = PlannedSave::of(plan);
  const auto directory = io::NewDirectory::open(place.directory, temporary);
  if (!directory) return fail(Errors(directory.error()));
  exec::SaveInputs inputs{planned.plan, share.ranks, share.memory, {}};
  inputs.open = [&](plan::FileId id) -> Result<exec::OutputFile> {
    const plan::PlannedFile& file = planned.plan.load.files[id];
    LADING_ASSIGN_OR_RETURN(io::Fd fd, directory->open_file(file.name, file.size_bytes));
    return exec::OutputFile{std::move(fd), directory->path_of(file.name)};
  };
  exec::SaveOptions options;
  options.threads = writing.threads;
  options.sync = place.durable == Durable::kYes ? exec::Sync::kYes : exec::Sync::kNo;
  options.memory = writing.from == SavedFrom::kHostCopy ? exec::MemoryPlace::kHost : exec::MemoryPlace::kAsPlanned;
  options.cancelled = writing.cancelled;
  if (writing.progress) {
    options.progress = [&](const exec::Progress& p) { writing.progress({p.done_bytes, p.total_bytes, p.read_bytes}); };
  }
  exec::SaveOutcome outcome = exec::write_files(inputs, options);
  if (!outcome.errors.empty()) return fail(std::move(outcome.errors));
  SavePart part{plan.digest, {}, std::move(outcome.keys)};
  for (const std::uint32_t r : share.ranks) part.ranks.push_back(planned.plan.ranks[r].rank);
  if (auto noted = directory->write_file(part_name(part.ranks.front()), part_json(part)); !noted) {
    return fail(Errors(noted.error()));
  }
  return SaveShareReport{outcome.written_bytes, outcome.staging_bytes, outcome.threads, outcome.writing_seconds,
                         outcome.sync_seconds};
}

Result<SaveShareReport, Errors> write_save(const SavePlanReport& plan, const SavePlace& place,
                                           const std::string& temporary, const SaveWriting& writing) {
  if (!PlannedSave::is_behind(plan)) return fail(Errors(not_a_planned_save()));
  const PlannedSave& planned = PlannedSave::of(plan);
  SaveShare share{planned.ranks, {}};
  Errors problems;
  LADING_ASSIGN_OR_RETURN(const KeptBytes kept, read_kept(planned, writing));
  const std::vector<DestinationInfo> destinations = destinations_of(plan);
  auto next = destinations.begin();
  for (const std::uint32_t r : planned.ranks) {
    auto& of_rank = share.memory.emplace_back();
    for (; next != destinations.end() && next->rank == planned.plan.ranks[r].rank; ++next) {
      auto memory = writing.memory(*next);
      if (const auto key = planned.kept.find(next->name); key != planned.kept.end()) {
        const std::span<std::byte> bytes = kept.by_key.at(key->second);
        of_rank.push_back({bytes.data(), bytes.size(), false});
      } else if (memory) {
        // Nobody writes to it: the engine's memories are those of loads.
        of_rank.push_back({const_cast<std::byte*>(memory->data()), memory->size(), false});
      } else {
        problems.add(std::move(memory).error().of_tensor(next->name).on_rank(static_cast<int>(next->rank)));
      }
    }
  }
  if (!problems.empty()) return fail(std::move(problems));
  return write_share(plan, share, place, temporary, writing);
}

Result<FinishedSave, Errors> finish_save(const SavePlanReport& plan, const SavePlace& place,
                                         const std::string& temporary) {
  if (!PlannedSave::is_behind(plan)) return fail(Errors(not_a_planned_save()));
  const PlannedSave& planned = PlannedSave::of(plan);
  const auto directory = io::NewDirectory::open(place.directory, temporary);
  if (!directory) return fail(Errors(directory.error()));
  Parts parts(planned, plan.digest, *directory);
  LADING_TRY(parts.read());
  const plan::SavePlan& save = planned.plan;
  if (!save.index_name.empty()) {
    if (auto written = directory->write_file(save.index_name, save.index); !written) {
      return fail(Errors(written.error()));
    }
  }
  LADING_ASSIGN_OR_RETURN(const std::string ledger, ledger_of(planned, parts, place, *directory));
  if (auto written = directory->write_file(kLedgerName, ledger); !written) return fail(Errors(written.error()));
  for (const std::string& name : parts.names()) {
    if (auto removed = directory->remove_file(name); !removed) return fail(Errors(removed.error()));
  }
  if (place.durable == Durable::kYes) {
    if (auto synced = directory->sync(); !synced) return fail(Errors(synced.error()));
  }
  FinishedSave finished{std::string(kLedgerName), {}};
  for (const plan::SourceId id : save.load.sources.ids()) {
    finished.digests.emplace_back(save.load.sources[id].key, parts.digest_of(id).text());
  }
  return finished;
}

Result<bool> commit_save(const SavePlace& place, const std::string& temporary) {
  LADING_ASSIGN_OR_RETURN(io::NewDirectory directory, io::NewDirectory::open(place.directory, temporary));
  return directory.commit(if_exists(place));
}

Result<bool> discard_save(const SavePlace& place, const std::string& temporary) {
  return io::NewDirectory::discard(place.directory, temporary);
}

Exit SaveFailure::exit_code() const {
  if (refused) return Refusal{*refused, problems}.exit_code();
  return !problems.empty() && problems.front().code == Code::kUsage ? Exit::kUsage : Exit::kLoad;
}

Result<SaveReport, SaveFailure> save(const SaveRequest& request, const SavePlace& place, const SaveWriting& writing) {
  SaveRequest all = request;
  all.ranks.reset();
  auto plan = plan_save(all);
  if (!plan) return fail(SaveFailure{plan.error().stage, std::move(plan.error().problems)});
  SaveReport report;
  report.plan = *std::move(plan);
  const auto prepared = prepare_save(report.plan, place);
  if (!prepared) return fail(SaveFailure{{}, prepared.error()});
  const auto run = [&]() -> Result<void, Errors> {
    LADING_ASSIGN_OR_RETURN(report.written, write_save(report.plan, place, prepared->temporary, writing));
    LADING_ASSIGN_OR_RETURN(report.finished, finish_save(report.plan, place, prepared->temporary));
    const auto replaced = commit_save(place, prepared->temporary);
    if (!replaced) return fail(Errors(replaced.error()));
    report.replaced = *replaced;
    return {};
  };
  if (auto done = run(); !done) {
    (void)discard_save(place, prepared->temporary);
    return fail(SaveFailure{{}, std::move(done).error()});
  }
  return report;
}

}  // namespace lading
