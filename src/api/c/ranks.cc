// The C ABI's part for ranks: a Coordinator on a store that the caller brings. Wiring, and JSON on both sides
// (docs/schema/ranks.md). Nothing throws out of here.
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/c/handle.h"
#include "api/c/problems.h"
#include "api/replica_sets.h"
#include "api/shared/answer_parts.h"
#include "base/json_fields.h"
#include "base/json_writer.h"
#include "lading/inspect.h"
#include "lading/lading_c.h"
#include "ranks/callback_channel.h"
#include "ranks/coordinator.h"
#include "ranks/records.h"
#include "ranks/replicas.h"

using lading::begin_answer;
using lading::Error;
using lading::Errors;
using lading::JsonFields;
using lading::JsonValue;
using lading::JsonWriter;
using lading::Result;
using lading::c_api::read_problem;
using lading::c_api::write_problem;
using lading::ranks::CallbackBackend;
using lading::ranks::CallbackChannel;
using lading::ranks::CallbackRank;
using lading::ranks::Coordinator;
using lading::ranks::Failure;
using lading::ranks::Field;
using lading::ranks::Options;
using lading::ranks::Problem;
using lading::ranks::Record;
using lading::ranks::Reply;
using lading::ranks::Share;
using lading::ranks::Time;
using lading::ranks::Verdict;

struct lading_notes {
  std::vector<std::string> values;
};

struct lading_ranks {
  lading_ranks(const CallbackRank& rank, CallbackBackend backend, Options options)
      : channel(rank, std::move(backend)), coordinator(channel, std::move(options)) {}

  CallbackChannel channel;
  Coordinator coordinator;
};

namespace {

constexpr std::string_view kRequestSchema = "lading.request/1";

// ---- the caller's store

Reply reply_of(int state, lading_notes notes, std::size_t expected) {
  std::string why = lading::c_api::take_callback_error();
  if (state == 1) return Reply::absent();
  if (state == 0 && notes.values.size() == expected) return Reply::ready(std::move(notes.values));
  if (state == 0) why = "the store's wait function did not return one note for each key";
  return Reply::gone(std::move(why));
}

CallbackBackend backend_of(const lading_store& store) {
  CallbackBackend backend;
  backend.put = [store](const std::string& key, const std::string& value) {
    return reply_of(store.put(store.user, key.c_str(), value.data(), value.size()), {}, 0);
  };
  backend.decide = [store](const std::string& key, const std::string& value) {
    lading_notes notes;
    const int state = store.decide(store.user, key.c_str(), value.data(), value.size(), &notes);
    return reply_of(state, std::move(notes), 1);
  };
  backend.wait = [store](const std::vector<std::string>& keys, Time timeout) {
    std::vector<const char*> in_c;
    in_c.reserve(keys.size());
    for (const std::string& key : keys) in_c.push_back(key.c_str());
    lading_notes notes;
    const double seconds = std::chrono::duration<double>(timeout).count();
    const int state = store.wait(store.user, in_c.data(), in_c.size(), seconds, &notes);
    return reply_of(state, std::move(notes), keys.size());
  };
  return backend;
}

// ---- requests

// Seconds, as a number or with a fraction.
void read_seconds(JsonFields& fields, std::string_view key, Time& out) {
  const auto value = fields.find(key);
  if (!value) return;
  const double seconds = std::strtod(std::string(value->text()).c_str(), nullptr);
  if (value->kind() != lading::JsonKind::kNumber || !(seconds > 0) || seconds > 1e8) {
    fields.problem(*value, key, "not a number of seconds", "a number above 0");
    return;
  }
  out = std::chrono::duration_cast<Time>(std::chrono::duration<double>(seconds));
}

struct NewRequest {
  CallbackRank rank;
  Options options;
};

Result<NewRequest, Errors> parse_new(std::string_view json) {
  LADING_ASSIGN_OR_RETURN(const auto document, lading::JsonDocument::parse(lading::JsonBuffer::copy_of(json)));
  NewRequest out;
  Errors errors;
  JsonFields fields = lading::begin_document(document, kRequestSchema, errors);
  fields.uint64("rank", out.rank.rank);
  fields.uint64("size", out.rank.size);
  fields.optional_boolean("is_host", out.rank.is_host);
  fields.optional_string("prefix", out.options.prefix);
  fields.optional_string("process", out.options.process);
  read_seconds(fields, "deadline_s", out.options.deadline);
  read_seconds(fields, "step_timeout_s", out.options.step_timeout);
  read_seconds(fields, "stall_timeout_s", out.options.stall_timeout);
  fields.finish();
  if (errors.empty() && out.rank.rank >= out.rank.size) {
    errors.add(Error(lading::Code::kUsage, "the rank is not below the number of ranks")
                   .try_this("Correct \"rank\" or \"size\" in the request."));
  }
  if (!errors.empty()) return lading::fail(std::move(errors));
  out.rank.answer_timeout = out.options.silence_limit();
  return out;
}

struct StepRequest {
  std::string step;
  std::vector<Field> fields;
  std::optional<std::vector<Record>> records;
  std::optional<Failure> failure;
  lading::ranks::Patience patience = lading::ranks::Patience::kStepTimeout;
};

Failure read_failure(const JsonValue& value, const std::string& path, Errors& errors) {
  Failure failure;
  JsonFields fields(value, path, errors);
  auto exit_code = static_cast<std::uint64_t>(lading::Exit::kLoad);
  fields.optional_uint64("exit_code", exit_code);
  fields.optional_boolean("begun", failure.begun);
  std::uint64_t not_listed = 0;
  fields.optional_uint64("problems_not_listed", not_listed);
  fields.each("problems", [&](const JsonValue& element, const std::string& where) {
    failure.others.push_back(read_problem(element, where, errors));
  });
  fields.finish();
  failure.exit_code = exit_code > 0 && exit_code < 256 ? static_cast<lading::Exit>(exit_code) : lading::Exit::kInternal;
  failure.problems.count_not_listed(not_listed);
  if (failure.others.empty()) failure.problems.add(Error(lading::Code::kInternal, "the failure has no problem"));
  return failure;
}

Record read_record(const JsonValue& value, const std::string& path, Errors& errors) {
  Record record;
  JsonFields fields(value, path, errors);
  fields.string("name", record.name);
  if (const auto values = fields.require("fields")) {
    for (const lading::JsonMember field : *values) {
      record.fields.emplace_back(std::string(field.key), std::string(field.value.text()));
    }
  }
  fields.finish();
  return record;
}

Result<StepRequest, Errors> parse_step(std::string_view json) {
  LADING_ASSIGN_OR_RETURN(const auto document, lading::JsonDocument::parse(lading::JsonBuffer::copy_of(json)));
  StepRequest out;
  Errors errors;
  JsonFields fields = lading::begin_document(document, kRequestSchema, errors);
  fields.optional_string("step", out.step);
  bool is_while_alive = false;
  fields.optional_boolean("while_alive", is_while_alive);
  if (is_while_alive) out.patience = lading::ranks::Patience::kWhileAlive;
  fields.optional_each("fields", [&](const JsonValue& element, const std::string& path) {
    JsonFields field(element, path, errors);
    Field& added = out.fields.emplace_back();
    bool is_collected = false;
    field.string("name", added.name);
    field.string("value", added.value);
    field.optional_boolean("collect", is_collected);
    if (is_collected) added.mode = Field::Mode::kCollect;
    field.finish();
  });
  if (fields.find("records")) {
    out.records.emplace();
    fields.each("records", [&](const JsonValue& element, const std::string& path) {
      out.records->push_back(read_record(element, path, errors));
    });
  }
  if (const auto failure = fields.find("failure")) {
    out.failure = read_failure(*failure, fields.path_of("failure"), errors);
  }
  fields.finish();
  if (!errors.empty()) return lading::fail(std::move(errors));
  return out;
}

// ---- answers

void write_ranks(JsonWriter& json, const lading::ranks::RankSet& ranks) {
  json.begin_array(JsonWriter::Lines::kOne);
  for (const auto run : ranks.runs()) {
    for (std::uint64_t rank = run.begin; rank < run.end; ++rank) json.number(rank);
  }
  json.end_array();
}

// `size`: how many ranks there are; 0 if the verdict is of this process alone.
lading_handle* told(const Verdict& verdict, std::uint64_t size = 0) {
  JsonWriter json;
  const lading::Exit exit_code = verdict.exit_code != lading::Exit::kOk ? verdict.exit_code : lading::Exit::kInternal;
  begin_answer(json, "ranks", exit_code);
  json.key("stage").string("agreement");
  json.key("step").string(verdict.step);
  json.key("error_id").string(verdict.id);
  json.key("begun").boolean(verdict.begun);
  json.key("detail").string(verdict.detail);
  json.key("at_fault");
  write_ranks(json, verdict.at_fault);
  json.key("refused").boolean(verdict.is_refusal());
  if (size > 0) {
    json.key("speakers");
    write_ranks(json, verdict.speakers(size));
  }
  json.key("problems").begin_array();
  for (const Problem& problem : verdict.problems) write_problem(json, problem);
  json.end_array();
  json.key("problems_not_listed").number(verdict.problems_not_listed);
  json.end_object();
  return lading::c_api::make_handle(exit_code, json.take());
}

lading_handle* agreed(const Verdict& verdict) {
  JsonWriter json;
  begin_answer(json, "ranks", lading::Exit::kOk);
  json.key("fields").begin_object();
  for (const auto& [name, shares] : verdict.fields) {
    json.key(name).begin_array();
    for (const Share& share : shares.list) {
      json.begin_object(JsonWriter::Lines::kOne);
      json.key("value").string(share.value);
      json.key("ranks");
      write_ranks(json, share.ranks);
      json.end_object();
    }
    json.end_array();
  }
  json.end_object();
  json.end_object();
  return lading::c_api::make_handle(lading::Exit::kOk, json.take());
}

lading_handle* well() { return agreed({}); }

lading_handle* refused(const Errors& errors) {
  Verdict verdict;
  for (const Error& error : errors) verdict.problems.push_back({error, ""});
  verdict.problems_not_listed = errors.not_listed();
  verdict.exit_code = lading::exit_code(lading::Code::kUsage);
  return told(verdict);
}

lading_handle* misused(const char* message) {
  return refused(Error(lading::Code::kUsage, message).try_this("Correct the call (docs/reference/c-api.md)."));
}

template <class Make>
lading_handle* guarded(const Make& make) noexcept {
  try {
    try {
      return make();
    } catch (const std::bad_alloc&) {
      return refused(Error(lading::Code::kOutOfMemory, "not enough memory"));
    } catch (const std::exception& e) {
      return refused(Error(lading::Code::kInternal, e.what()));
    }
  } catch (...) {
    return nullptr;
  }
}

template <class Use>
lading_handle* with_step(lading_ranks* ranks, const char* request, const Use& use) noexcept {
  return guarded([&] {
    if (ranks == nullptr) return misused("the ranks are NULL");
    if (request == nullptr) return misused("the request is NULL");
    const auto parsed = parse_step(request);
    return parsed ? use(ranks->coordinator, *parsed) : refused(parsed.error());
  });
}

lading_handle* answer_of(const Result<void, Verdict>& result, Coordinator& coordinator) {
  return result ? well() : told(result.error(), coordinator.channel().size());
}

}  // namespace

void lading_add_note(lading_notes* notes, const void* value, uint64_t size_bytes) {
  try {
    if (notes != nullptr) notes->values.emplace_back(static_cast<const char*>(value), size_bytes);
  } catch (...) {
    notes->values.clear();  // too few: the store counts as gone
  }
}

lading_handle* lading_ranks_new(const char* request, const lading_store* store, lading_ranks** ranks) {
  return guarded([&] {
    if (ranks == nullptr || store == nullptr || request == nullptr) return misused("an argument is NULL");
    *ranks = nullptr;
    if (store->put == nullptr || store->decide == nullptr || store->wait == nullptr) {
      return misused("the store lacks a function");
    }
    auto parsed = parse_new(request);
    if (!parsed) return refused(parsed.error());
    auto made = std::make_unique<lading_ranks>(parsed->rank, backend_of(*store), parsed->options);
    lading_handle* answer = well();
    *ranks = made.release();
    return answer;
  });
}

lading_handle* lading_ranks_begin(lading_ranks* ranks, const char* request) {
  return with_step(ranks, request, [](Coordinator& coordinator, const StepRequest& parsed) {
    return answer_of(coordinator.begin(parsed.fields), coordinator);
  });
}

lading_handle* lading_ranks_agree(lading_ranks* ranks, const char* request) {
  return with_step(ranks, request, [](Coordinator& coordinator, const StepRequest& parsed) {
    const auto step =
        coordinator.agree(parsed.step, parsed.fields, parsed.failure ? &*parsed.failure : nullptr, parsed.patience);
    const std::uint64_t size = coordinator.channel().size();
    if (!step) return told(step.error(), size);
    if (parsed.records) {
      if (auto same = agree_records(coordinator, parsed.step, *parsed.records); !same) return told(same.error(), size);
    }
    return agreed(*step);
  });
}

lading_handle* lading_ranks_agree_replicas(lading_ranks* ranks, const lading_handle* load, int begun) {
  return guarded([&] {
    const lading::LoadReport* const report = lading::c_api::load_report_of(load);
    if (ranks == nullptr) return misused("there are no ranks: they are NULL");
    if (report == nullptr) return misused("the handle is not a load that succeeded");
    const auto state = begun != 0 ? lading::ranks::ModelState::kWritten : lading::ranks::ModelState::kAsItWas;
    const auto same = agree_replicas(ranks->coordinator, replica_sets(*report), {}, state);
    return same ? well() : told(same.error());
  });
}

int lading_ranks_poll(lading_ranks* ranks, int64_t done) {
  try {
    if (ranks == nullptr) return 1;
    const auto polled =
        ranks->coordinator.poll(done >= 0 ? std::optional(static_cast<std::uint64_t>(done)) : std::nullopt);
    if (polled) return 0;
    return static_cast<int>(polled.error().exit_code != lading::Exit::kOk ? polled.error().exit_code
                                                                          : lading::Exit::kInternal);
  } catch (...) {
    return 1;
  }
}

lading_handle* lading_ranks_fail(lading_ranks* ranks, const char* request) {
  return with_step(ranks, request, [](Coordinator& coordinator, const StepRequest& parsed) {
    if (!parsed.failure) return misused("the request has no failure");
    const Verdict verdict = coordinator.fail(*parsed.failure);
    return verdict.failed() ? told(verdict, coordinator.channel().size()) : well();
  });
}

lading_handle* lading_ranks_commit(lading_ranks* ranks) {
  return guarded([&] {
    if (ranks == nullptr) return misused("the ranks are NULL");
    return answer_of(ranks->coordinator.commit(), ranks->coordinator);
  });
}

void lading_ranks_free(lading_ranks* ranks) {
  try {
    if (ranks != nullptr) ranks->coordinator.leave();
  } catch (...) {  // the others notice by themselves
  }
  delete ranks;
}
