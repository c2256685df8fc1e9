#include "api/group_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "api/loaded.h"
#include "api/planned.h"
#include "api/replica_sets.h"
#include "ranks/coordinator.h"
#include "ranks/exchange.h"
#include "ranks/pulse.h"
#include "ranks/records.h"
#include "ranks/replicas.h"

namespace lading {
namespace {

using namespace std::chrono_literals;
using ranks::Coordinator;
using ranks::Record;
using ranks::Verdict;

std::vector<Record> checkpoint_records(const plan::Plan& plan) {
  std::vector<Record> records;
  for (const plan::Source& source : plan.sources) {
    records.push_back({source.key,
                       {{"dtype", std::string(name(source.dtype))},
                        {"shape", source.shape.text()},
                        {"file", plan.files[source.file].name},
                        {"bytes", fmt::format("{} to {}", source.bytes.begin, source.bytes.end)}}});
  }
  return records;
}

std::vector<Record> model_records(const plan::Plan& plan) {
  std::vector<Record> records;
  for (const plan::Statement& statement : plan.statements) {
    records.push_back({statement.name,
                       {{"shape", statement.shape.text()},
                        {"storage dtype", std::string(name(statement.storage))},
                        {"compute dtype", std::string(name(statement.compute))},
                        {"source", std::string(word(statement.provenance))}}});
  }
  return records;
}

std::string_view word(Exchange exchange) {
  switch (exchange) {
    case Exchange::kNever: return "never";
    case Exchange::kNode: return "node";
    case Exchange::kJob: return "job";
  }
  return "never";
}

// What every rank said in a field that was collected; "" of one that said nothing.
std::vector<std::string> said_by_rank(const Verdict& verdict, const std::string& field, std::uint64_t ranks) {
  std::vector<std::string> said(ranks);
  const auto found = verdict.fields.find(field);
  if (found == verdict.fields.end()) return said;
  for (const ranks::Share& share : found->second.list) {
    for (const ranks::RankSet::Run run : share.ranks.runs()) {
      for (std::uint64_t rank = run.begin; rank < std::min(run.end, ranks); ++rank) said[rank] = share.value;
    }
  }
  return said;
}

std::uint64_t sum_of(const std::vector<std::string>& numbers) {
  std::uint64_t sum = 0;
  for (const std::string& text : numbers) {
    std::uint64_t number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    sum += number;
  }
  return sum;
}

// The stage at which a rank that ends so refused to load.
Stage stage_of(Exit exit_code) {
  switch (exit_code) {
    case Exit::kUsage: return Stage::kRequest;
    case Exit::kCheckpoint: return Stage::kCheckpoint;
    case Exit::kPlan: return Stage::kPlanning;
    default: return Stage::kProof;
  }
}

// MPI is handed host memory only. Of all ranks alike: those that hold the same must come to the same answer.
bool is_in_host_memory(const plan::Plan& plan, const plan::Destination& destination) {
  if (plan.statements[destination.statement].placement.device == layout::DeviceRule::kCpu) return true;
  const auto& list = plan.devices.list;
  if (list.empty()) return plan.devices.type == layout::DeviceType::kCpu;
  return std::all_of(list.begin(), list.end(),
                     [](const layout::Device& device) { return device.type == layout::DeviceType::kCpu; });
}

void keep_for_ever(std::shared_ptr<const void> memory) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;  // never freed
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
}

// The load of one rank among others.
class GroupLoad {
 public:
  GroupLoad(ranks::Channel& channel, ranks::Bulk& bulk, GroupRequest request)
      : coordinator_(channel, request.options),
        bulk_(bulk),
        exchange_(request.exchange),
        node_(std::move(request.node)),
        refusal_(std::move(request.refusal)),
        size_(channel.size()),
        request_(std::move(request.load)) {
    request_.plan.ranks = {{channel.rank()}};
  }

  Result<GroupReport, GroupFailure> run() {
    auto report = load();
    coordinator_.leave();
    return report;
  }

 private:
  Result<GroupReport, GroupFailure> load() {
    if (auto begun = coordinator_.begin(); !begun) return failed(begun.error());
    wished_ = std::exchange(request_.cancelled, &cancelled_);
    ranks::Pulse pulse(
        coordinator_, [this] { cancelled_ = true; }, [this] { heed_wish(); });
    const auto begin = std::chrono::steady_clock::now();
    request_.plan.tied_keys = TiedKeys::kCompare;
    auto plan = make_plan(request_.plan);
    const double planning_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (auto agreed = agree(plan); !agreed) {
      GroupFailure failure = told(agreed.error());
      if (!plan && failure.failure.refused) failure.failure.refused = plan.error().stage;
      return fail(std::move(failure));
    }
    request_.progress = [&, shown = request_.progress](const LoadProgress& progress) {
      look_at_wish();
      pulse.progress(done_bytes_ = progress.done_bytes);
      if (shown) shown(progress);
    };
    if (exchange_ != Exchange::kNever) {
      share_out(*plan);
      request_.receive = [&](const LoadReport& so_far) { return receive(so_far, pulse); };
    }
    phase_ = Phase::kLoading;
    auto report = load_plan(request_, *std::move(plan));
    phase_ = Phase::kLoaded;
    if (!report) return failed_here(std::move(report).error());
    pulse.rest();
    const auto agreed = agree_replicas(coordinator_, replica_sets(*report),
                                       {{"read", fmt::format("{}", report->read_bytes), ranks::Field::Mode::kCollect}});
    if (!agreed) return failed_after(*report, agreed.error());
    if (auto committed = coordinator_.commit(); !committed) return failed_after(*report, committed.error());
    report->planning_seconds = planning_seconds;
    report->notes.insert(report->notes.end(), notes_.begin(), notes_.end());
    return GroupReport{*std::move(report), sum_of(said_by_rank(*agreed, "read", coordinator_.channel().size()))};
  }

  void look_at_wish() {
    if (wished_ != nullptr && *wished_) cancelled_ = true;
  }

  // While bytes move the load itself hears of the wish, and says how far it came.
  void heed_wish() {
    look_at_wish();
    const Phase phase = phase_;
    if (!cancelled_ || phase == Phase::kLoading) return;
    coordinator_.fail({Error(Code::kCancelled, "the load was cancelled"), Exit::kLoad, phase == Phase::kLoaded, {}});
  }

  Result<void> receive(const LoadReport& so_far, ranks::Pulse& pulse) {
    // A rank may wait long for one that reads slowly. Once all have read, standing still is a failure.
    pulse.rest();
    const auto all_there = coordinator_.agree("what was read", {}, nullptr, ranks::Patience::kWhileAlive);
    if (!all_there) return fail(Error(Code::kCancelled, "another rank failed to read its part"));
    pulse.progress(done_bytes_ += 1, ranks::Activity::kExchanging);
    ranks::ExchangeOptions options;
    options.rank = own_rank();
    options.is_cancelled = [this] {
      look_at_wish();
      return cancelled_.load();
    };
    options.on_progress = [&](std::uint64_t bytes) {
      pulse.progress(done_bytes_ + bytes, ranks::Activity::kExchanging);
    };
    return hand_over(so_far, options);
  }

  // Who reads what. Ranks that hold the same come to the same answer.
  void share_out(const PlanReport& plan) {
    auto owners = owners_of(plan, nodes_);
    LADING_CHECK(owners.has_value());  // agree() saw as many ranks as the plan has
    bool has_left_out = false;
    std::size_t next = 0;
    for (const plan::RankPlan& rank : Planned::of(plan).plan.ranks) {
      for (const plan::Destination& d : rank.destinations) {
        std::optional<std::uint64_t>& owner = (*owners)[next++];
        if (!owner || is_in_host_memory(Planned::of(plan).plan, d)) continue;
        owner.reset();
        has_left_out = true;
      }
    }
    if (has_left_out) notes_.emplace_back("tensors on GPUs are not exchanged over MPI: each rank read its own copy");
    request_.owners = *std::move(owners);
  }

  Result<void> hand_over(const LoadReport& so_far, const ranks::ExchangeOptions& options) {
    std::vector<ranks::Handover> handovers;
    std::map<const void*, std::shared_ptr<const std::vector<std::uint64_t>>> on_node;  // by list of replicas
    for (std::size_t i = 0; i < so_far.tensors.size(); ++i) {
      if (!request_.owners[i]) continue;
      const auto& replicas = so_far.tensors[i].destination.replicas;
      auto& members = on_node[replicas.get()];
      if (members == nullptr) members = members_of(*replicas);
      handovers.push_back({*request_.owners[i], members, so_far.tensors[i].memory});
    }
    ranks::ExchangeOutcome outcome = ranks::exchange(bulk_, handovers, options);
    // A peer that stands still in the middle of a transfer may go on later, and MPI then writes or reads: the memory
    // stays until the process ends.
    if (!outcome.memory_is_free) keep_for_ever(so_far.owned);
    return std::move(outcome.result);
  }

  [[nodiscard]] std::shared_ptr<const std::vector<std::uint64_t>> members_of(
      const std::vector<std::uint64_t>& replicas) const {
    auto members = std::make_shared<std::vector<std::uint64_t>>();
    for (const std::uint64_t rank : replicas) {
      if (nodes_[rank] == nodes_[own_rank()]) members->push_back(rank);
    }
    return members;
  }

  // What is compared first is what an error can be named by; the digest of the plan covers the rest.
  Result<void, Verdict> agree(const Result<PlanReport, Refusal>& plan) {
    Errors problems;
    if (!plan) problems = plan.error().problems;
    const std::uint64_t processes = coordinator_.channel().size();
    if (plan && plan->rank_count != processes) {
      Error error(Code::kUsage, "the number of processes is not the layout's number of ranks");
      error.expected = fmt::format("{} processes", plan->rank_count);
      error.found = fmt::format("{}", processes);
      error.remedy = fmt::format("Start {0} processes (mpirun -n {0}), or change the mesh.", plan->rank_count);
      problems.add(std::move(error));
    }
    if (exchange_ != Exchange::kNever && request_.memory) {
      problems.add(Error(Code::kUsage, "an exchange over MPI cannot fill memory of the caller")
                       .try_this("Omit the memory, or the exchange."));
    }
    if (refusal_) problems.add(*refusal_);
    std::optional<ranks::Failure> failure;
    const Exit of_request = exit_code(refusal_ ? refusal_->code : Code::kUsage);
    const Exit code = plan ? of_request : plan.error().exit_code();
    if (!problems.empty()) failure = ranks::Failure{std::move(problems), code, false, {}};
    LADING_TRY(coordinator_.agree("the plan", {}, failure ? &*failure : nullptr));
    LADING_TRY(agree_records(coordinator_, "checkpoint", checkpoint_records(Planned::of(*plan).plan)));
    LADING_TRY(agree_records(coordinator_, "model", model_records(Planned::of(*plan).plan)));
    const bool has_digests = request_.digests == Digests::kOn;
    const auto contents = sampled_contents(*plan);
    if (!contents) failure = ranks::Failure{contents.error(), exit_code(contents.error().code), false, {}};
    LADING_ASSIGN_OR_RETURN(const Verdict agreed,
                            coordinator_.agree("the plan's digest",
                                               {{"plan", plan->digest},
                                                {"contents of the checkpoint's files", contents ? *contents : ""},
                                                {"exchange", std::string(word(exchange_))},
                                                {"digests", has_digests ? "on" : "off"},
                                                {"node", node_, ranks::Field::Mode::kCollect}},
                                               failure ? &*failure : nullptr));
    nodes_ = said_by_rank(agreed, "node", processes);
    if (exchange_ == Exchange::kJob) nodes_.assign(processes, "");
    return {};
  }

  Unexpected<GroupFailure> failed(const Verdict& verdict) { return fail(told(verdict)); }

  // Everything is written here, and it may not be used.
  Unexpected<GroupFailure> failed_after(LoadReport& report, const Verdict& verdict) {
    GroupFailure failure = told(verdict);
    failure.failure.begun = true;
    Loaded loaded = Loaded::of(report);
    loaded.facts.has_failed = true;
    report.handle = Loaded::handle(std::move(loaded));
    failure.failure.ledger = ledger_json(report);
    return fail(std::move(failure));
  }

  GroupFailure told(const Verdict& verdict) const {
    GroupFailure failure;
    failure.failure.begun = verdict.begun;
    if (verdict.is_refusal()) failure.failure.refused = stage_of(verdict.exit_code);
    failure.failure.problems = verdict.errors();
    const ranks::RankSet speakers = verdict.at_fault.empty() ? ranks::RankSet(own_rank()) : verdict.speakers(size_);
    for (const ranks::RankSet::Run run : speakers.runs()) {
      for (std::uint64_t rank = run.begin; rank < run.end; ++rank) failure.speakers.push_back(rank);
    }
    failure.error_id = verdict.id;
    if (verdict.at_fault.contains(own_rank()) && verdict.exit_code != Exit::kOk) failure.exit_code = verdict.exit_code;
    return failure;
  }

  // Stopped because another rank failed, or by itself: the first to say so is whom all ranks name.
  Unexpected<GroupFailure> failed_here(LoadFailure own) {
    const Verdict verdict = coordinator_.fail({own.problems, own.exit_code(), own.begun, {}});
    GroupFailure failure = told(verdict);
    failure.failure.begun = own.begun;
    failure.failure.ledger = std::move(own.ledger);
    return fail(std::move(failure));
  }

  [[nodiscard]] std::uint64_t own_rank() const { return request_.plan.ranks->front(); }

  Coordinator coordinator_;
  ranks::Bulk& bulk_;
  const Exchange exchange_;
  const std::string node_;
  const std::optional<Error> refusal_;
  const std::uint64_t size_;
  LoadRequest request_;
  std::vector<std::string> nodes_;  // by rank: between those of one name bytes are handed over
  std::vector<std::string> notes_;
  enum class Phase : std::uint8_t { kAgreeing, kLoading, kLoaded };

  std::uint64_t done_bytes_ = 0;
  const std::atomic<bool>* wished_ = nullptr;  // the caller's: the load shall stop
  std::atomic<bool> cancelled_ = false;        // it stops, because of the wish or of another rank
  std::atomic<Phase> phase_ = Phase::kAgreeing;
};

}  // namespace

Result<GroupReport, GroupFailure> load_in_group(ranks::Channel& channel, ranks::Bulk& bulk, GroupRequest request) {
  return GroupLoad(channel, bulk, std::move(request)).run();
}

}  // namespace lading
