#include "api/group_load.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "plan/words.h"
#include "ranks/coordinator.h"
#include "ranks/pulse.h"
#include "ranks/records.h"

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

// The load of one rank among others.
class GroupLoad {
 public:
  GroupLoad(ranks::Channel& channel, Request request) : coordinator_(channel, {}), request_(std::move(request)) {
    request_.plan.ranks = {{channel.rank()}};
  }

  Result<Report, GroupFailure> run() {
    auto report = load();
    coordinator_.leave();
    return report;
  }

 private:
  Result<Report, GroupFailure> load() {
    if (auto begun = coordinator_.begin(); !begun) return failed(begun.error());
    const std::atomic<bool>* const wanted = std::exchange(request_.cancelled, &cancelled_);
    ranks::Pulse pulse(coordinator_, [this] { cancelled_ = true; });
    const auto begin = std::chrono::steady_clock::now();
    auto plan = make_plan(request_.plan);
    const double planning_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (auto agreed = agree(plan); !agreed) {
      GroupFailure failure = told(agreed.error());
      if (!plan) failure.failure.refused = plan.error().stage;
      return fail(std::move(failure));
    }
    request_.progress = [&, shown = request_.progress](const LoadProgress& progress) {
      if (wanted != nullptr && *wanted) cancelled_ = true;
      pulse.progress(progress.done_bytes);
      if (shown) shown(progress);
    };
    auto report = load_plan(request_, *std::move(plan));
    if (!report) return failed_here(std::move(report).error());
    if (auto committed = coordinator_.commit(); !committed) return failed(committed.error());
    report->planning_seconds = planning_seconds;
    return *std::move(report);
  }

  // What is compared first is what an error can be named by; the digest of the plan covers the rest.
  Result<void, Verdict> agree(const Result<PlanReport, PlanRefusal>& plan) {
    std::optional<ranks::Failure> failure;
    if (!plan) failure = ranks::Failure{plan.error().problems, plan.error().exit_code(), false, {}};
    const std::uint64_t processes = coordinator_.channel().size();
    if (plan && plan->rank_count != processes) {
      Error error(Code::kUsage, "the layout has another number of ranks than there are processes");
      error.expected = fmt::format("{} processes", plan->rank_count);
      error.found = fmt::format("{}", processes);
      failure = ranks::Failure{std::move(error), exit_code(Code::kUsage), false, {}};
    }
    LADING_TRY(coordinator_.agree("the plan", {}, failure ? &*failure : nullptr));
    LADING_TRY(agree_records(coordinator_, "checkpoint", checkpoint_records(*plan->plan)));
    LADING_TRY(agree_records(coordinator_, "model", model_records(*plan->plan)));
    LADING_TRY(coordinator_.agree("the plan's digest", {{"plan", plan->digest}}));
    return {};
  }

  Unexpected<GroupFailure> failed(const Verdict& verdict) { return fail(told(verdict)); }

  GroupFailure told(const Verdict& verdict) const {
    GroupFailure failure;
    failure.failure.begun = verdict.begun;
    failure.failure.problems = verdict.errors();
    failure.error_id = verdict.id;
    if (verdict.at_fault.contains(coordinator_rank()) && verdict.exit_code != 0) failure.exit_code = verdict.exit_code;
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

  [[nodiscard]] std::uint64_t coordinator_rank() const { return request_.plan.ranks->front(); }

  Coordinator coordinator_;
  Request request_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace

Result<std::optional<MpiGroup>> MpiGroup::join() {
  if (!ranks::is_under_mpi()) return std::optional<MpiGroup>();
  LADING_ASSIGN_OR_RETURN(auto world, ranks::MpiWorld::start(ranks::Options().deadline * 6 / 10));
  return std::optional<MpiGroup>(MpiGroup(std::move(world)));
}

Result<Report, GroupFailure> MpiGroup::load(Request request) {
  auto report = GroupLoad(world_->channel(), std::move(request)).run();
  has_failed_ = !report;
  return report;
}

void MpiGroup::leave() { static_cast<void>(world_->stop(has_failed_ ? 2s : 30s)); }

}  // namespace lading
