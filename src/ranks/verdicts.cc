#include "ranks/verdicts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace lading::ranks {
namespace {

constexpr std::size_t kShownShares = 8;

double seconds(Time time) { return std::chrono::duration<double>(time).count(); }

Verdict failed(const RankSet& at_fault, Error error) {
  Verdict verdict;
  verdict.problems.push_back({std::move(error), ""});
  verdict.exit_code = Exit::kRanks;
  verdict.at_fault = at_fault;
  return verdict;
}

// Who has the problem stands before it, unless all have, or it says so itself.
Problem told_to_all(const Told& told, std::uint64_t size) {
  Problem problem = told.problem;
  Error& error = problem.error;
  if (error.rank || told.ranks.size() == size) return problem;
  if (told.ranks.size() == 1) {
    error.rank = static_cast<int>(told.ranks.first());
  } else {
    error.message = fmt::format("{}: {}", told.ranks.text(), error.message);
  }
  return problem;
}

std::string list(const std::vector<Share>& shares) {
  std::string out;
  for (std::size_t i = 0; i < shares.size() && i < kShownShares; ++i) {
    out += fmt::format("{}{} on {}", i == 0 ? "" : "; ", shares[i].value.empty() ? "nothing" : shorten(shares[i].value),
                       shares[i].ranks.text());
  }
  if (shares.size() > kShownShares) out += fmt::format("; and {} others", shares.size() - kShownShares);
  return out;
}

// All but the largest share, which stands for what was meant.
RankSet minority(const std::vector<Share>& shares) {
  const auto largest = std::max_element(shares.begin(), shares.end(),
                                        [](const Share& a, const Share& b) { return a.ranks.size() < b.ranks.size(); });
  RankSet others;
  for (const Share& share : shares) {
    if (&share != &*largest) others.add(share.ranks);
  }
  return others;
}

}  // namespace

RankReport report_of(std::uint64_t rank, const std::vector<Field>& fields, const Failure* failure) {
  RankReport report;
  report.ranks = RankSet(rank);
  for (const Field& field : fields) report.fields[field.name] = {field.mode, {{field.value, RankSet(rank)}}};
  if (failure == nullptr) return report;
  RankReport told;
  told.ranks = report.ranks;
  for (const Error& error : failure->problems) told.problems.push_back({{error, ""}, RankSet(rank)});
  for (const Problem& problem : failure->others) told.problems.push_back({problem, RankSet(rank)});
  told.problems_not_listed = failure->problems.not_listed();
  told.exit_code = failure->exit_code;
  told.begun = failure->begun;
  report.merge(std::move(told));
  return report;
}

Verdict failure_of(std::uint64_t rank, const Failure& failure) {
  // The number of ranks does not matter: one rank told it.
  return verdict_of(report_of(rank, {}, &failure), 0);
}

Verdict verdict_of(const RankReport& all, std::uint64_t size) {
  Verdict verdict;
  for (const Told& told : all.problems) {
    verdict.problems.push_back(told_to_all(told, size));
    verdict.at_fault.add(told.ranks);
  }
  verdict.problems_not_listed = all.problems_not_listed;
  verdict.exit_code = all.exit_code;
  verdict.begun = all.begun;
  if (!verdict.problems.empty()) return verdict;
  for (const auto& [name, shares] : all.fields) {
    if (shares.mode == Field::Mode::kCollect) {
      verdict.fields[name] = shares;
    } else if (shares.list.size() > 1) {
      verdict.problems.push_back(
          {Error(Code::kRanksDiffer, fmt::format("the ranks differ in {}", name)).by_rule("R44").got(list(shares.list)),
           ""});
      verdict.at_fault.add(minority(shares.list));
      verdict.exit_code = Exit::kRanks;
    }
  }
  if (verdict.problems.empty()) verdict.kind = Verdict::Kind::kAgreed;
  return verdict;
}

Verdict no_sign_of_life(const RankSet& silent, Time since) {
  return failed(
      silent, Error(Code::kNoAnswer, fmt::format("{} sent no heartbeat for {:.1f} s: killed, stopped, or disconnected",
                                                 silent.text(), seconds(since)))
                  .by_rule("R44")
                  .try_this("Look at the last lines in the log of that process."));
}

Verdict did_not_come(const RankSet& silent, const std::string& step, Time timeout) {
  return failed(silent, Error(Code::kNoAnswer,
                              fmt::format("{} did not reach the step \"{}\" within the timeout of {:g} s",
                                          silent.empty() ? "not all ranks" : silent.text(), step, seconds(timeout)))
                            .by_rule("R44")
                            .try_this("Start the load on every rank."));
}

Verdict overslept(std::uint64_t rank, Time gap) {
  return failed(RankSet(rank),
                Error(Code::kNoAnswer,
                      fmt::format("rank {} did not run for {:.1f} s: it was stopped, or could not send heartbeats",
                                  rank, seconds(gap)))
                    .by_rule("R44"));
}

Verdict stalled(std::uint64_t rank, Time since, Activity activity) {
  const bool exchanges = activity == Activity::kExchanging;
  return failed(RankSet(rank),
                Error(Code::kNoAnswer, fmt::format("the {} of rank {} made no progress for {:.0f} s",
                                                   exchanges ? "exchange of bytes" : "load", rank, seconds(since)))
                    .by_rule("R44")
                    .try_this(exchanges ? "Check the network between the ranks, or load without an exchange."
                                        : "Check the storage that it reads from."));
}

Verdict twins(std::uint64_t rank) {
  return failed(RankSet(rank), Error(Code::kRanksDiffer, fmt::format("two processes claim to be rank {}", rank))
                                   .by_rule("R44")
                                   .try_this("Give every process its own rank."));
}

Verdict other_world(std::uint64_t rank, std::uint64_t size, const std::string& theirs) {
  return failed(RankSet(rank),
                Error(Code::kRanksDiffer,
                      fmt::format("rank {} was started with {} ranks, the others with {}", rank, size, theirs))
                    .by_rule("R44"));
}

Verdict no_store() {
  Verdict verdict = failed({}, Error(Code::kNoAnswer,
                                     "this rank lost contact with the rank that coordinates the load; its outcome is "
                                     "unknown here and counts as failed")
                                   .by_rule("R44")
                                   .try_this("Look at the log of the rank that holds the store, usually rank 0."));
  return verdict;
}

Error unreadable_note(std::uint64_t rank) {
  return Error(Code::kRanksDiffer, fmt::format("the message of rank {} cannot be read: it comes from another version "
                                               "of lading, or from another program",
                                               rank))
      .by_rule("R44");
}

}  // namespace lading::ranks
