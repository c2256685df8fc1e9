#include "ranks/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/version.h"
#include "ranks/tree.h"
#include "ranks/verdicts.h"

namespace lading::ranks {
namespace {

constexpr std::string_view kStepField = "step";
constexpr std::string_view kWorldField = "number of ranks";

std::string made_up_name() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

Options completed(Options options) {
  if (options.process.empty()) options.process = made_up_name();
  return options;
}

}  // namespace

Coordinator::Coordinator(Channel& channel, Options options)
    : channel_(channel), options_(completed(std::move(options))) {}

std::string Coordinator::key(std::string_view name, std::uint64_t rank) const {
  return fmt::format("{}/{}/{}/{}", options_.prefix, load_, name, rank);
}

std::string Coordinator::step_key(std::string_view name, std::uint64_t rank) const {
  return fmt::format("{}/{}/{}/{}/{}", options_.prefix, load_, step_.load(), name, rank);
}

std::string Coordinator::end_key(std::uint64_t step) const {
  return fmt::format("{}/{}/{}/end", options_.prefix, load_, step);
}

// ---- the steps

Result<void, Verdict> Coordinator::begin(std::vector<Field> fields) {
  if (auto refused = choose_load()) return lading::fail(*std::move(refused));
  const std::string size = fmt::format("{}", channel_.size());
  fields.push_back({"protocol", fmt::format("{}", kProtocol)});
  fields.push_back({"version of lading", kVersion});
  fields.push_back({std::string(kWorldField), size, Field::Mode::kSame});
  // Once more, for a rank that the others do not know of: nobody asks it.
  fields.push_back({"world", size, Field::Mode::kCollect});
  LADING_ASSIGN_OR_RETURN(const Verdict agreed, agree("the beginning", fields));
  const auto world = agreed.fields.find("world");
  const bool is_known = world != agreed.fields.end() && world->second.list.size() == 1;
  if (is_known && world->second.list.front().value == size) return {};
  return lading::fail(
      insist(other_world(me(), channel_.size(), is_known ? world->second.list.front().value : "another number")));
}

// Loads are numbered in the entries, where ranks that were not in all of them find each other again.
std::optional<Verdict> Coordinator::choose_load() {
  const std::string own = fmt::format("{}/seen/{}", options_.prefix, me());
  const Reply last = channel_.wait({own}, channel_.now());
  if (last.is_gone()) return lost(last);
  std::uint64_t number = 0;
  std::string who;
  if (last.is_ready()) {
    const std::string& text = last.values.front();
    number = std::strtoull(text.c_str(), nullptr, 10);
    who = text.substr(std::min(text.size(), text.find(' ') + 1));
    if (auto twin = refuse_twin(number, who)) return twin;
  }
  // One that failed before this rank came is passed over if the others have gone on to the next; otherwise it failed
  // here too.
  while (true) {
    load_ = ++number;
    channel_.put(key("open", 0), "");  // by every rank, always with this value: nothing is to be decided
    auto end = look_at_end();
    if (!end || !end->failed()) break;
    if (ended()) return end;  // lost
    const Reply opened =
        channel_.wait({fmt::format("{}/{}/open/0", options_.prefix, number + 1)}, channel_.now() + interval());
    if (opened.is_gone()) return lost(opened);
    if (!opened.is_ready()) return keep(*end);
  }
  channel_.put(own, fmt::format("{} {}", load_, options_.process));
  const Reply joined = channel_.decide(key("join", me()), options_.process);
  if (!joined.is_ready()) return lost(joined);
  if (joined.values.front() != options_.process) return insist(twins(me()));
  channel_.put(key("beat", me()), "0");
  return {};
}

// Another process of this rank is in a load that is not over: a twin, or one that this one was started to replace.
// Either way that load cannot end well.
std::optional<Verdict> Coordinator::refuse_twin(std::uint64_t last, std::string_view who) {
  if (who == options_.process) return {};
  load_ = last;
  const Reply over = channel_.wait({key("over", 0)}, channel_.now());
  if (over.is_gone()) return lost(over);
  if (over.is_ready()) return {};
  Verdict told = propose(twins(me()));
  if (told.failed()) return told;
  return {};
}

Result<Verdict, Verdict> Coordinator::agree(const std::string& name, const std::vector<Field>& fields,
                                            const Failure* failure, Patience patience) {
  if (auto end = ended()) return lading::fail(*std::move(end));
  RankReport mine = report_of(me(), fields, failure);
  mine.fields[std::string(kStepField)] = {Field::Mode::kSame, {{name, RankSet(me())}}};
  const Time limit = patience == Patience::kWhileAlive ? Time::max() : channel_.now() + options_.step_timeout;
  Verdict verdict = run_step({name, Verdict::Kind::kAgreed, limit}, std::move(mine));
  if (verdict.failed()) return lading::fail(keep(verdict));
  if (verdict.kind == Verdict::Kind::kCommitted) return lading::fail(insist(did_not_come(RankSet(me()), name, {})));
  ++step_;
  start_heart();
  return verdict;
}

// After the first agreement only: until then ranks may come minutes apart, and silence proves nothing.
void Coordinator::start_heart() {
  const std::lock_guard lock(heart_mutex_);
  if (beats_) return;
  beats_ = true;
  last_beat_ = last_progress_ = channel_.now();
  for (const std::uint64_t rank : watched()) seen_[rank] = {"", last_beat_};
}

Result<void, Verdict> Coordinator::commit() {
  if (auto end = ended()) {
    if (end->failed()) return lading::fail(*std::move(end));
    return {};
  }
  RankReport mine = report_of(me(), {{std::string(kStepField), "the end"}}, nullptr);
  Verdict verdict = keep(run_step({"the end", Verdict::Kind::kCommitted, Time::max()}, std::move(mine)));
  if (verdict.failed()) return lading::fail(std::move(verdict));
  return {};
}

Verdict Coordinator::fail(const Failure& failure) {
  if (auto end = ended()) return *std::move(end);
  return propose(failure_of(me(), failure));
}

void Coordinator::leave() {
  if (has_left_ || load_ == 0) return;
  has_left_ = true;
  if (is_lost_) return;
  channel_.put(key("over", 0), "");
  channel_.put(key("heard", me()), "");
  if (stays_for_others()) static_cast<void>(all_heard());
}

bool Coordinator::all_heard() {
  const auto end = ended();
  std::vector<std::string> keys;
  for (std::uint64_t rank = 0; rank < channel_.size(); ++rank) {
    const bool is_known_silent =
        end && end->failed() && end->problems.front().error.code == Code::kNoAnswer && end->at_fault.contains(rank);
    if (rank != me() && !is_known_silent) keys.push_back(key("heard", rank));
  }
  return keys.empty() || channel_.wait(keys, channel_.now() + options_.deadline).is_ready();
}

// ---- one step
//
// Reports go up a tree of entries, and one decided entry, the verdict, ends the step for all. With 18 ranks:
//
//   rank 17 -- up/17 --> rank 1 -- up/1 --------.
//                        ranks 2..16 -- up/N ---+--> rank 0 -- decide(end) --> all ranks read `end`
//
// No rank reads more than 16 reports a step, for any number of ranks. Any rank may decide(end) as failed, at any
// time. The first writer wins, so an early failure ends the step, and a late one cannot change what others have read.

Verdict Coordinator::run_step(const Step& step, RankReport mine) {
  if (auto early = gather(step, mine)) return *std::move(early);
  if (me() == 0) return conclude(step, mine);
  if (const Reply told = channel_.put(step_key("up", me()), encode(mine)); told.is_gone()) return lost(told);
  return await_end(step);
}

std::optional<Verdict> Coordinator::gather(const Step& step, RankReport& all) {
  const std::vector<std::uint64_t> children = awaited();
  if (children.empty()) return {};
  std::vector<std::string> keys;
  keys.reserve(children.size());
  for (const std::uint64_t child : children) keys.push_back(step_key("up", child));
  // Who waits for others says so: it is not taken for silent because one of them is.
  if (const Reply told = channel_.put(step_key("at", me()), ""); told.is_gone()) return lost(told);
  while (true) {
    // An interval at a time: a rank that waits must still send heartbeats.
    const Reply reply = channel_.wait(keys, std::min(step.limit, channel_.now() + interval()));
    if (reply.is_gone()) return lost(reply);
    if (reply.is_ready()) {
      for (std::size_t i = 0; i < children.size(); ++i) hear(all, children[i], reply.values[i]);
      return {};
    }
    if (auto end = look_at_end()) return end;
    if (auto end = after_waiting(step)) return end;
  }
}

void Coordinator::hear(RankReport& all, std::uint64_t child, const std::string& entry) const {
  if (auto report = decode_report(entry)) {
    all.merge(*std::move(report));
    return;
  }
  RankReport told;
  told.ranks = RankSet(child);
  told.problems.push_back({{unreadable_note(child), ""}, RankSet(child)});
  told.exit_code = exit_code(Code::kRanksDiffer);
  all.merge(std::move(told));
}

Verdict Coordinator::await_end(const Step& step) {
  const Time limit =
      step.limit == Time::max() ? step.limit : step.limit + options_.deadline;  // the first rank's word first
  while (true) {
    const Reply reply = channel_.wait({end_key(step_)}, std::min(limit, channel_.now() + interval()));
    if (reply.state != Reply::State::kAbsent) return read_end(reply);
    if (auto end = after_waiting({step.name, step.good, limit})) return *std::move(end);
  }
}

std::optional<Verdict> Coordinator::after_waiting(const Step& step) {
  if (auto end = tick()) return end;
  if (channel_.now() < step.limit) return {};
  RankSet silent;
  find_silent(0, silent);
  if (silent.empty()) return {};  // all have come since: what was waited for is there
  return propose(did_not_come(silent, step.name, options_.step_timeout));
}

std::optional<Verdict> Coordinator::look_at_end() {
  const Reply reply = channel_.wait({end_key(step_)}, channel_.now());
  if (reply.state == Reply::State::kAbsent) return {};
  return read_end(reply);
}

Verdict Coordinator::read_end(const Reply& reply) {
  if (!reply.is_ready()) return lost(reply);
  auto verdict = decode_verdict(reply.values.front());
  return verdict ? *std::move(verdict) : lost(Reply::gone("the verdict cannot be read"));
}

// Of the first rank, when all have spoken.
Verdict Coordinator::conclude(const Step& step, const RankReport& all) {
  const Time asked = last_sign();
  Verdict verdict = judge(step, all);
  // Whoever was stopped may have been given up by the others, if they could not even say so: the entries may live here.
  if (!verdict.failed() && has_overslept(channel_.now() - asked)) verdict = overslept(me(), channel_.now() - asked);
  verdict = read_end(end_step(end_key(step_), encode(verdict)));
  if (verdict.kind == Verdict::Kind::kCommitted && has_overslept(channel_.now() - asked)) {
    // A rank that lost contact meanwhile has failed, and never writes "heard".
    channel_.put(key("heard", me()), "");
    if (!all_heard()) return lost(Reply::gone("this rank was stopped while it reported success"));
  }
  return verdict;
}

Time Coordinator::last_sign() {
  const std::lock_guard lock(heart_mutex_);
  return beats_ ? last_beat_ : channel_.now();
}

Verdict Coordinator::judge(const Step& step, const RankReport& all) const {
  Verdict verdict = verdict_of(all, channel_.size());
  verdict.step = step.name;
  if (!verdict.failed() && all.ranks.size() != channel_.size()) {
    verdict = did_not_come({}, step.name, options_.step_timeout);
  }
  if (!verdict.failed()) verdict.kind = step.good;
  verdict.begun = verdict.begun || (verdict.failed() && step.good == Verdict::Kind::kCommitted);
  return verdict;
}

// ---- signs of life

Result<void, Verdict> Coordinator::poll(std::optional<std::uint64_t> done, Activity activity) {
  if (auto end = ended()) {
    if (end->failed()) return lading::fail(*std::move(end));
    return {};
  }
  if (auto end = check_progress(done, activity); end && end->failed()) return lading::fail(*std::move(end));
  {
    const std::unique_lock lock(heart_mutex_, std::try_to_lock);
    if (!lock || !beats_ || channel_.now() - last_beat_ < interval()) return {};
  }
  if (auto end = tick(); end && end->failed()) return lading::fail(*std::move(end));
  if (auto end = look_at_end(); end && end->failed()) return lading::fail(keep(*end));
  return {};
}

std::optional<Verdict> Coordinator::check_progress(std::optional<std::uint64_t> done, Activity activity) {
  if (!done) return {};
  const Time now = channel_.now();
  {
    const std::lock_guard lock(heart_mutex_);
    if (done != done_) {
      done_ = done;
      last_progress_ = now;
    }
    if (!beats_ || now - last_progress_ < options_.stall_timeout) return {};
  }
  return propose(stalled(me(), options_.stall_timeout, activity));
}

std::optional<Verdict> Coordinator::tick() {
  const std::unique_lock lock(heart_mutex_, std::try_to_lock);
  if (!lock || !beats_) return {};
  const Time now = channel_.now();
  const Time gap = now - last_beat_;
  if (gap < interval()) return {};
  last_beat_ = now;
  if (has_overslept(gap)) return propose(overslept(me(), gap));
  if (const Reply told = channel_.put(key("beat", me()), fmt::format("{}", ++beat_)); told.is_gone()) return lost(told);
  if (auto watched = watch(gap); !watched) return std::move(watched).error();
  return {};
}

Result<void, Verdict> Coordinator::watch(Time gap) {
  std::vector<std::string> keys;
  for (const auto& [rank, seen] : seen_) keys.push_back(key("beat", rank));
  if (keys.empty()) return {};
  // What this rank missed because it came late itself is nobody's silence.
  if (gap > 2 * interval()) {
    for (auto& [rank, seen] : seen_) seen.at = std::min(last_beat_, seen.at + (gap - interval()));
  }
  const Reply reply = channel_.wait(keys, channel_.now());
  if (reply.is_gone()) return lading::fail(lost(reply));
  std::size_t next = 0;
  // One by one if an entry is absent: wait() then gives none of the others' beats either.
  for (auto& [rank, seen] : seen_) {
    const Reply one =
        reply.is_ready() ? Reply::ready({reply.values[next]}) : channel_.wait({keys[next]}, channel_.now());
    if (one.is_gone()) return lading::fail(lost(one));
    if (one.is_ready() && one.values.front() != seen.beat) seen = {one.values.front(), channel_.now()};
    ++next;
  }
  const Time now = channel_.now();
  RankSet silent;
  Time since{};
  for (const auto& [rank, seen] : seen_) {
    if (now - seen.at < silence_limit()) continue;
    silent.add(rank);
    since = std::max(since, now - seen.at);
  }
  if (silent.empty()) return {};
  return lading::fail(propose(no_sign_of_life(silent, since)));
}

// ---- failures

Verdict Coordinator::propose(const Verdict& failure) {
  const std::string entry = encode(failure);
  // A step that is agreed already is behind us: the next one is where everybody comes by. The loop ends at the latest
  // at the first step without a verdict: this failure becomes its verdict.
  for (std::uint64_t step = step_;; ++step) {
    const Reply reply = end_step(end_key(step), entry);
    if (!reply.is_ready()) return lost(reply);
    Verdict stands = read_end(reply);
    if (stands.failed()) return keep(stands);
    if (stands.kind == Verdict::Kind::kCommitted) return stands;
  }
}

// Of a rank that the others do not count: it fails, even if they are done.
Verdict Coordinator::insist(Verdict failure) {
  Verdict stands = propose(failure);
  if (stands.failed()) return stands;
  failure.set_id();
  return keep(failure);
}

// A rank that has spoken speaks for all below it. One that waits for a silent one is not silent itself. One that has
// got all it waited for may be about to speak. If rank 17 is missing, there is at/1 but no up/1: this names 17, not 1.
void Coordinator::find_silent(std::uint64_t top, RankSet& silent) {
  const std::string word = top == 0 ? end_key(step_) : step_key("up", top);
  if (top != me() && is_there(word)) return;
  const std::uint64_t before = silent.size();
  for (const std::uint64_t child : children_of(top, channel_.size())) find_silent(child, silent);
  if (top == me()) return;
  if (is_there(step_key("at", top))) {
    if (silent.size() > before) return;
    if (channel_.wait({word}, channel_.now() + interval()).is_ready()) return;
  }
  silent.add(top);
}

bool Coordinator::is_there(const std::string& entry) { return channel_.wait({entry}, channel_.now()).is_ready(); }

Verdict Coordinator::lost(const Reply& reply) {
  Verdict verdict = no_store();
  verdict.set_id();
  verdict.detail = reply.why;
  const std::lock_guard lock(ended_mutex_);
  if (ended_) return *ended_;
  is_lost_ = true;
  ended_ = verdict;
  return verdict;
}

Verdict Coordinator::keep(const Verdict& verdict) {
  const std::lock_guard lock(ended_mutex_);
  if (!ended_ && verdict.kind != Verdict::Kind::kAgreed) ended_ = verdict;
  return ended_ ? *ended_ : verdict;
}

std::optional<Verdict> Coordinator::ended() const {
  const std::lock_guard lock(ended_mutex_);
  return ended_;
}

// ---- the decisions

std::vector<std::uint64_t> Coordinator::awaited() const { return children_of(me(), channel_.size()); }

// Each rank watches its neighbours in the tree. It is connected: where one rank lives and one does not, two neighbours
// do so.
std::vector<std::uint64_t> Coordinator::watched() const {
  std::vector<std::uint64_t> ranks = children_of(me(), channel_.size());
  if (me() > 0) ranks.push_back(parent_of(me()));
  return ranks;
}

Time Coordinator::silence_limit() const { return options_.silence_limit(); }

bool Coordinator::has_overslept(Time gap) const { return gap > options_.deadline; }

bool Coordinator::stays_for_others() const { return channel_.is_host(); }

Reply Coordinator::end_step(const std::string& entry, const std::string& verdict) {
  return channel_.decide(entry, verdict);
}

}  // namespace lading::ranks
