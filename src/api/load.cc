#include "lading/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "api/loaded.h"
#include "api/planned.h"
#include "api/shared/destinations.h"
#include "exec/available_memory.h"
#include "exec/executor.h"
#include "exec/own_memory.h"
#include "ledger/ledger.h"
#include "plan/exchange_choice.h"
#include "plan/plan.h"
#include "plan/replicas.h"
#include "plan/words.h"
#include "source/read_speed.h"

namespace lading {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Of a list by rank that the caller gave.
Result<void> check_by_rank(const PlanReport& plan, std::size_t size, std::string_view what) {
  const std::uint64_t ranks = Planned::of(plan).plan.mesh.ranks();
  if (size == ranks) return {};
  return fail(Error(Code::kUsage, fmt::format("there must be {} for each rank", what))
                  .wanted(std::to_string(ranks))
                  .got(std::to_string(size))
                  .try_this(fmt::format("Pass {} for each rank.", what)));
}

class Loading {
 public:
  Loading(const LoadRequest& request, PlanReport plan) : request_(request) { report_.plan = std::move(plan); }

  Result<LoadReport, LoadFailure> run() {
    if (!take_memory()) return fail(LoadFailure{{}, false, std::move(problems_), ""});
    const Clock::time_point begin = Clock::now();
    exec::Outcome outcome = exec::execute(inputs(), options());
    report_.loading_seconds = seconds_since(begin);
    report_.handle = Loaded::handle({facts_of(outcome)});
    if (!outcome.errors.empty()) {
      std::string ledger = outcome.begun ? ledger_json(report_) : "";
      return fail(LoadFailure{{}, outcome.begun, std::move(outcome.errors), std::move(ledger)});
    }
    report_.read_bytes = outcome.read_bytes;
    report_.staging_bytes = outcome.staging_bytes;
    report_.threads = outcome.threads;
    report_.opening_seconds = outcome.opening_seconds;
    report_.closing_seconds = outcome.closing_seconds;
    report_.notes = std::move(outcome.notes);
    for (std::size_t i = 0; i < report_.tensors.size(); ++i) {
      if (request_.digests == Digests::kOn) report_.tensors[i].digest = outcome.outcomes[i].digest.text();
    }
    return std::move(report_);
  }

 private:
  [[nodiscard]] const plan::Plan& plan() const { return Planned::of(report_.plan).plan; }

  [[nodiscard]] const source::CheckpointSource& source() const { return Planned::of(report_.plan).source; }
  [[nodiscard]] const auto& values() const { return Planned::of(report_.plan).values.by_name; }

  bool take_memory() {
    std::vector<DestinationInfo> destinations = destinations_of(report_.plan);
    if (!request_.owners.empty() && request_.owners.size() != destinations.size()) {
      problems_.add(Error(Code::kUsage, "the number of owners is not the number of destinations")
                        .wanted(std::to_string(destinations.size()))
                        .got(std::to_string(request_.owners.size()))
                        .try_this("Use the owners that owners_of() returns."));
      return false;
    }
    if (!check_owners(destinations)) return false;
    auto own = std::make_shared<exec::OwnMemory>();
    if (!request_.memory) {
      if (auto allocated = own->allocate(plan()); !allocated) {
        problems_.add(std::move(allocated).error());
      }
      report_.owned = own;
    }
    for (std::size_t i = 0; i < destinations.size() && !problems_.is_full(); ++i) {
      DestinationInfo& d = destinations[i];
      LoadedTensor loaded;
      if (!request_.memory && d.provenance == Provenance::kKept) {
        problems_.add(
            Error(Code::kUsage, "the policy keeps this tensor's value, but no memory that holds it was given")
                .of_tensor(d.name)
                .on_rank(static_cast<int>(d.rank))
                .by_rule("R14")
                .try_this("Pass the memory that holds it (LoadRequest::memory), or declare it meta in the skeleton."));
      } else if (!request_.memory) {
        if (problems_.empty()) loaded.memory = own->destinations()[i];
      } else if (auto memory = request_.memory(d)) {
        loaded.memory = *memory;
      } else {
        problems_.add(std::move(memory).error().of_tensor(d.name).on_rank(static_cast<int>(d.rank)));
      }
      loaded.destination = std::move(d);
      report_.tensors.push_back(std::move(loaded));
    }
    return problems_.empty();
  }

  // What is received must come from a rank that holds the same bytes.
  bool check_owners(const std::vector<DestinationInfo>& destinations) {
    for (std::size_t i = 0; i < request_.owners.size() && !problems_.is_full(); ++i) {
      const auto& owner = request_.owners[i];
      const std::vector<std::uint64_t>& replicas = *destinations[i].replicas;
      if (!owner || std::binary_search(replicas.begin(), replicas.end(), *owner)) continue;
      problems_.add(
          Error(Code::kUsage, fmt::format("rank {} is an owner of the tensor, but does not hold its bytes", *owner))
              .of_tensor(destinations[i].name)
              .on_rank(static_cast<int>(destinations[i].rank))
              .by_rule("R17")
              .try_this("Use the owners that owners_of() returns."));
    }
    return problems_.empty();
  }

  [[nodiscard]] exec::Inputs inputs() const {
    exec::Inputs inputs{plan(), {}, {}, {}};
    std::size_t next = 0;
    for (const plan::RankPlan& rank : plan().ranks) {
      auto& memory = inputs.memory.emplace_back();
      for (std::size_t d = 0; d < rank.destinations.size(); ++d, ++next) {
        memory.push_back({report_.tensors[next].memory.data(), report_.tensors[next].memory.size(),
                          received_from(next).has_value()});
      }
    }
    if (request_.receive) inputs.receive = [this] { return request_.receive(report_); };
    inputs.open = [this](plan::FileId file) { return source().open_file(shard(plan().files[file])); };
    if (request_.value || !values().empty()) {
      inputs.value = [this](const plan::Statement& s, std::uint64_t rank) -> Result<exec::HostValue> {
        if (const auto* value = s.provenance == Provenance::kHost ? value_of_skeleton(s.name) : nullptr) {
          return exec::HostValue{value->bytes.data(), value->bytes.size(), value->dtype};
        }
        if (!request_.value) return fail(exec::nobody_hands_in());
        return checked(s, request_.value(s.name, rank));
      };
    }
    if (request_.value && request_.deferred_value) {
      inputs.deferred_value = [this](const plan::Statement& s, std::uint64_t rank, const exec::HostValue& deferred) {
        return checked(s, request_.deferred_value(s.name, rank, {{}, deferred.dtype, {}, deferred.size_bytes}));
      };
    }
    return inputs;
  }

  static Result<exec::HostValue> checked(const plan::Statement& s, Result<HostTensor> given) {
    LADING_ASSIGN_OR_RETURN(const HostTensor value, std::move(given));
    if (value.shape && *value.shape != s.shape) {
      return fail(Error(Code::kPlan, "the supplied value has another shape than the tensor")
                      .of_tensor(s.name)
                      .by_rule("R6")
                      .wanted(s.shape.text())
                      .got(value.shape->text())
                      .try_this("Supply a value of the tensor's shape."));
    }
    if (value.deferred_bytes > 0) return exec::HostValue{nullptr, value.deferred_bytes, value.dtype};
    return exec::HostValue{value.bytes.data(), value.bytes.size(), value.dtype};
  }

  // Null: the caller hands it in.
  [[nodiscard]] const SkeletonValues::Value* value_of_skeleton(const std::string& name) const {
    const auto found = values().find(name);
    return found == values().end() ? nullptr : &found->second;
  }

  // The rank that reads a destination, if it is another one.
  [[nodiscard]] std::optional<std::uint64_t> received_from(std::size_t destination) const {
    if (request_.owners.empty()) return std::nullopt;
    const auto& owner = request_.owners[destination];
    return owner == report_.tensors[destination].destination.rank ? std::nullopt : owner;
  }

  [[nodiscard]] const source::SourceFile& shard(const plan::PlannedFile& file) const {
    const source::SourceFile& shard = source().shards()[file.catalog_file];
    LADING_CHECK(shard.checkpoint == file.checkpoint);  // the checker proved keys by this number
    return shard;
  }

  [[nodiscard]] ledger::LedgerFacts facts_of(const exec::Outcome& outcome) const {
    ledger::LedgerFacts facts;
    facts.checkpoint = report_.plan.path;
    facts.adapters = source().adapter_paths();
    facts.has_failed = !outcome.errors.empty();
    for (const plan::PlannedFile& file : plan().files) facts.files.push_back(identity_of(file));
    for (std::size_t t = 0; t < outcome.outcomes.size(); ++t) {
      const exec::DestinationOutcome& one = outcome.outcomes[t];
      ledger::DestinationFacts& d = facts.destinations.emplace_back();
      d = {outcome.destinations[t].rank,
           outcome.destinations[t].destination,
           one.written_bytes,
           one.expected_bytes,
           {},
           received_from(t)};
      const bool is_kept = report_.tensors[t].destination.provenance == Provenance::kKept;
      if (request_.digests == Digests::kOn && outcome.errors.empty() && !is_kept) d.digest = one.digest;
    }
    return facts;
  }

  [[nodiscard]] ledger::FileIdentity identity_of(const plan::PlannedFile& file) const {
    const io::FileIdentity& identity = shard(file).identity;
    return {identity.inode, static_cast<std::uint64_t>(std::max<std::int64_t>(0, identity.mtime_s)),
            static_cast<std::uint64_t>(identity.mtime_ns)};
  }

  [[nodiscard]] exec::Options options() const {
    exec::Options options;
    options.threads = request_.threads;
    options.verify = request_.digests == Digests::kOn ? exec::Verify::kDigest : exec::Verify::kOff;
    options.poison = request_.poison == PoisonFirst::kYes ? exec::Poison::kOn : exec::Poison::kOff;
    options.method = request_.read_method;
    options.cancelled = request_.cancelled;
    if (request_.progress) {
      options.progress = [this](const exec::Progress& p) {
        request_.progress({p.done_bytes, p.total_bytes, p.read_bytes});
      };
    }
    return options;
  }

  const LoadRequest& request_;
  LoadReport report_;
  Errors problems_;
};

}  // namespace

std::string ledger_json(const LoadReport& report) {
  return ledger::ledger_json(ledger::make_ledger(Planned::of(report.plan).plan, Loaded::of(report).facts));
}

Exit LoadFailure::exit_code() const { return refused ? Refusal{*refused, problems}.exit_code() : Exit::kLoad; }

std::vector<DestinationInfo> destinations_of(const PlanReport& report) {
  return describe_destinations(Planned::of(report).plan, {});
}

Result<Owners> owners_of(const PlanReport& plan, const std::vector<std::string>& nodes) {
  if (!Planned::is_behind(plan)) return fail(not_planned());
  LADING_TRY(check_by_rank(plan, nodes.size(), "the name of a node"));
  Owners owners;
  for (const auto& of_rank : plan::owners_of(Planned::of(plan).plan, nodes)) {
    owners.insert(owners.end(), of_rank.begin(), of_rank.end());
  }
  return owners;
}

Result<ExchangeChoice> choose_exchange(const PlanReport& plan, const ExchangeFacts& facts) {
  if (!Planned::is_behind(plan)) return fail(not_planned());
  LADING_TRY(check_by_rank(plan, facts.nodes.size(), "the name of a node"));
  for (const std::vector<double>* speeds : {&facts.read_speeds, &facts.sent_speeds}) {
    if (speeds->empty()) continue;
    LADING_TRY(check_by_rank(plan, speeds->size(), "a speed"));
    if (std::all_of(speeds->begin(), speeds->end(), [](double speed) { return speed > 0; })) continue;
    return fail(Error(Code::kUsage, "a speed must be more than 0 bytes per second")
                    .try_this("Measure the speed again, or pass none."));
  }
  return plan::choose_exchange(Planned::of(plan).plan, facts);
}

Result<double> read_speed(const PlanReport& report) {
  if (!Planned::is_behind(report)) return fail(not_planned());
  const plan::Plan& plan = Planned::of(report).plan;
  std::vector<std::uint32_t> files;
  for (const plan::PlannedFile& file : plan.files) files.push_back(file.catalog_file);
  const std::uint64_t rank = plan.ranks.empty() ? 0 : plan.ranks.front().rank;
  return source::read_speed(Planned::of(report).source, files, {rank, plan.mesh.ranks()});
}

Result<AvailableMemory> available_memory(const layout::Device& device) {
  LADING_ASSIGN_OR_RETURN(exec::FreeMemory found, exec::available_memory(device.text()));
  return AvailableMemory{found.bytes, std::move(found.limit)};
}

Result<void> check_memory(const layout::Device& device, std::uint64_t needed_bytes) {
  return exec::check_memory(device.text(), needed_bytes);
}

Result<LoadReport, LoadFailure> load_plan(const LoadRequest& request, PlanReport plan) {
  if (!Planned::is_behind(plan)) return fail(LoadFailure{Stage::kRequest, false, not_planned(), ""});
  return Loading(request, std::move(plan)).run();
}

Result<LoadReport, LoadFailure> materialize(const LoadRequest& request) {
  const Clock::time_point begin = Clock::now();
  PlanRequest asked = request.plan;
  asked.tied_keys = TiedKeys::kCompare;
  auto plan = make_plan(asked);
  if (!plan) return fail(LoadFailure{plan.error().stage, false, std::move(plan.error().problems), ""});
  const double planning_seconds = seconds_since(begin);
  auto report = load_plan(request, *std::move(plan));
  if (report) report->planning_seconds = planning_seconds;
  return report;
}

}  // namespace lading
