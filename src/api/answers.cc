#include "api/answers.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "api/planned.h"
#include "api/shared/answer_parts.h"
#include "base/error_json.h"
#include "base/json_writer.h"
#include "device/gpus.h"
#include "lading/version.h"

namespace lading {
namespace {

using Lines = JsonWriter::Lines;

// Of the whole model: a rank's destinations do not tell what other ranks initialise.
void write_not_from_file(JsonWriter& json, const plan::Plan& plan) {
  json.key("not_from_file").begin_array();
  for (const plan::Statement& s : plan.statements) {
    const plan::Statement* storage = s.provenance == Provenance::kAlias ? plan.find(s.alias_of) : &s;
    if (storage == nullptr || storage->provenance == Provenance::kFile) continue;
    json.begin_object(Lines::kOne);
    json.key("name").string(s.name);
    json.key("kind").string(model::word(s.kind));
    json.key("provenance").string(word(storage->provenance));
    json.key("rule").string(storage->rule);
    json.end_object();
  }
  json.end_array();
}

// Names on each rank, aliases included.
using TensorCounts = std::map<std::uint64_t, std::uint64_t>;

// What is known once it is planned.
void write_plan(JsonWriter& json, const PlanReport& plan, double planning_seconds, TensorCounts counts) {
  std::uint64_t bytes = 0;
  for (const RankTotals& rank : plan.ranks) bytes += rank.owned_bytes;
  json.key("path").string(plan.path);
  json.key("plan_digest").string(plan.digest);
  json.key("mesh").string(plan.mesh.axes().empty() ? "" : plan.mesh.text());
  json.key("rank_count").number(plan.rank_count);
  json.key("tensor_count").number(plan.tensors.size());
  json.key("bytes").number(bytes);
  json.key("bytes_proved").number(plan.bytes_proved);
  json.key("planning_seconds").number(planning_seconds);
  json.key("ranks").begin_array();
  for (const RankTotals& rank : plan.ranks) {
    json.begin_object(Lines::kOne);
    json.key("rank").number(rank.rank);
    json.key("read_bytes").number(rank.read_bytes);
    json.key("owned_bytes").number(rank.owned_bytes);
    json.key("staging_bytes").number(rank.staging_bytes);
    json.key("tensors").number(counts[rank.rank]);
    json.end_object();
  }
  json.end_array();
  json.key("ignored_keys").begin_array();
  for (const auto& [key, rule] : plan.ignored_keys) {
    json.begin_object(Lines::kOne).key("key").string(key).key("rule").string(rule).end_object();
  }
  json.end_array();
  write_strings(json, "unexpected_keys", plan.unexpected_keys, Lines::kMany);
}

std::string_view word_of(const std::optional<Stage>& stage) {
  if (!stage) return "loading";
  switch (*stage) {
    case Stage::kRequest: return "request";
    case Stage::kCheckpoint: return "checkpoint";
    case Stage::kDocuments: return "documents";
    case Stage::kPlanning: return "planning";
    case Stage::kProof: return "proof";
  }
  return "proof";
}

std::string_view word_of(ExchangeChoice::Verdict verdict) {
  switch (verdict) {
    case ExchangeChoice::Verdict::kNo: return "no";
    case ExchangeChoice::Verdict::kYes: return "yes";
    case ExchangeChoice::Verdict::kMeasure: return "measure";
  }
  return "no";
}

std::string_view word_of(HashState state) {
  switch (state) {
    case HashState::kNotChecked: return "not_checked";
    case HashState::kVerified: return "verified";
    case HashState::kUnknown: return "unknown";
  }
  return "unknown";
}

void write_shard(JsonWriter& json, const ShardInfo& shard) {
  json.begin_object(Lines::kOne);
  json.key("name").string(shard.name);
  json.key("path").string(shard.path);
  json.key("size_bytes").number(shard.size_bytes);
  json.key("tensors").number(shard.tensors);
  json.key("hash").string(word_of(shard.hash));
  json.key("metadata").begin_object();
  for (const auto& [key, value] : shard.metadata) json.key(key).string(value);
  json.end_object().end_object();
}

void write_dtypes(JsonWriter& json, const Inspection& inspection) {
  std::map<std::string_view, std::pair<std::uint64_t, std::uint64_t>> dtypes;
  for (const TensorInfo& tensor : inspection.tensors) {
    auto& [count, bytes] = dtypes[tensor.dtype_name];
    count += 1;
    bytes += tensor.bytes.size_bytes();
  }
  json.key("dtypes").begin_array();
  for (const auto& [name, sums] : dtypes) {
    json.begin_object(Lines::kOne);
    json.key("dtype").string(name);
    json.key("tensors").number(sums.first);
    json.key("bytes").number(sums.second);
    json.end_object();
  }
  json.end_array();
}

}  // namespace

std::string answer_of(const RefusalAnswer& refusal, const Errors& problems) {
  JsonWriter json;
  begin_answer(json, refusal.kind, refusal.exit_code);
  json.key("stage").string(word_of(refusal.stage));
  json.key("begun").boolean(refusal.begun);
  return end_answer(json, {}, problems);
}

std::string answer_of(const Inspection& inspection, ListTensors list) {
  JsonWriter json;
  begin_answer(json, "inspect", Exit::kOk);
  json.key("path").string(inspection.path);
  if (inspection.index_path) json.key("index").string(*inspection.index_path);
  json.key("tensor_count").number(inspection.tensors.size());
  json.key("tensor_bytes").number(inspection.tensor_bytes);
  json.key("shards").begin_array();
  for (const ShardInfo& shard : inspection.shards) write_shard(json, shard);
  json.end_array();
  write_dtypes(json, inspection);
  if (list == ListTensors::kYes && !inspection.packed_weights.empty()) {
    json.key("packed_weights").begin_array();
    for (const PackedWeightInfo& weight : inspection.packed_weights) {
      json.begin_object(Lines::kOne);
      json.key("name").string(weight.name);
      write_dims(json, "shape", weight.shape);
      json.key("scheme").string(weight.scheme);
      write_strings(json, "keys", weight.keys, Lines::kOne);
      json.end_object();
    }
    json.end_array();
  }
  if (list == ListTensors::kYes) {
    json.key("tensors").begin_array();
    for (const TensorInfo& tensor : inspection.tensors) {
      json.begin_object(Lines::kOne);
      json.key("name").string(tensor.name);
      json.key("dtype").string(tensor.dtype_name);
      write_dims(json, "shape", tensor.shape);
      json.key("shard").string(inspection.shards[tensor.shard].name);
      json.key("bytes").begin_array().number(tensor.bytes.begin).number(tensor.bytes.end).end_array();
      json.end_object();
    }
    json.end_array();
  }
  return end_answer(json, inspection.warnings, {});
}

std::string answer_of(const PlanAnswer& planned) {
  JsonWriter json;
  begin_answer(json, "plan", Exit::kOk);
  TensorCounts counts;
  for (const DestinationInfo& d : planned.destinations) counts[d.rank] += 1 + d.aliases.size();
  write_plan(json, planned.plan, planned.planning_seconds, std::move(counts));
  const plan::Plan& plan = Planned::of(planned.plan).plan;
  write_destinations(json, planned.destinations, plan);
  write_not_from_file(json, plan);
  write_strings(json, "missing_keys", plan.keys.missing, Lines::kMany);
  write_strings(json, "mismatched_keys", plan.keys.mismatched, Lines::kMany);
  write_strings(json, "initialized", plan.keys.initialized, Lines::kMany);
  json.key("dequantized").number(plan.keys.dequantized);
  return end_answer(json, planned.plan.warnings, {});
}

std::string answer_of(const LoadAnswer& load) {
  const LoadReport& report = load.report;
  JsonWriter json;
  begin_answer(json, "load", Exit::kOk);
  TensorCounts counts;
  for (const LoadedTensor& tensor : report.tensors) {
    counts[tensor.destination.rank] += 1 + tensor.destination.aliases.size();
  }
  write_plan(json, report.plan, report.planning_seconds, std::move(counts));
  json.key("loading_seconds").number(report.loading_seconds);
  json.key("opening_seconds").number(report.opening_seconds);
  json.key("closing_seconds").number(report.closing_seconds);
  json.key("read_bytes").number(report.read_bytes);
  if (load.group_read_bytes) json.key("group_read_bytes").number(*load.group_read_bytes);
  json.key("staging_bytes").number(report.staging_bytes);
  json.key("threads").number(std::uint64_t{report.threads});
  write_strings(json, "notes", report.notes, Lines::kMany);
  if (load.has_digests) {
    json.key("digests").begin_array();
    for (const LoadedTensor& tensor : report.tensors) json.string(tensor.digest);
    json.end_array();
  }
  return end_answer(json, report.plan.warnings, {});
}

std::string answer_of(const ExchangeChoice& choice, const Owners& owners) {
  JsonWriter json;
  begin_answer(json, "owners", Exit::kOk);
  json.key("exchange").string(word_of(choice.verdict));
  json.key("note").string(choice.note);
  write_strings(json, "nodes", choice.nodes, Lines::kOne);
  json.key("owners").begin_array(Lines::kOne);
  for (const auto& owner : owners) {
    if (owner) {
      json.number(*owner);
    } else {
      json.null();
    }
  }
  json.end_array();
  return end_answer(json, {}, {});
}

std::string answer_of_speed(double bytes_per_second) {
  JsonWriter json;
  begin_answer(json, "read_speed", Exit::kOk);
  json.key("bytes_per_second").number(bytes_per_second);
  return end_answer(json, {}, {});
}

std::string answer_of_contents(const std::string& contents) {
  JsonWriter json;
  begin_answer(json, "contents", Exit::kOk);
  json.key("contents").string(contents);
  return end_answer(json, {}, {});
}

std::string answer_of_digest(const std::string& digest) {
  JsonWriter json;
  begin_answer(json, "digest", Exit::kOk);
  json.key("digest").string(digest);
  return end_answer(json, {}, {});
}

std::string answer_of(const AvailableMemory& available) {
  JsonWriter json;
  begin_answer(json, "memory", Exit::kOk);
  json.key("available_bytes");
  available.bytes ? json.number(*available.bytes) : json.null();
  json.key("limit").string(available.limit);
  return end_answer(json, {}, {});
}

std::string answer_of(const Verification& verification) {
  JsonWriter json;
  begin_answer(json, "verify", verification.exit_code());
  json.key("tensors_verified").number(verification.tensors_verified);
  json.key("tensors_partly_verified").number(verification.tensors_partly_verified);
  json.key("records_verified").number(verification.records_verified);
  json.key("read_bytes").number(verification.read_bytes);
  json.key("not_verified").begin_array();
  for (const auto& [tensor, reason] : verification.not_verified) {
    json.begin_object(Lines::kOne).key("name").string(tensor).key("reason").string(reason).end_object();
  }
  json.end_array();
  return end_answer(json, {}, verification.differences);
}

std::string answer_of(const DTypesReport& report) {
  JsonWriter json;
  begin_answer(json, "dtypes", Exit::kOk);
  json.key("tensors").begin_array();
  for (const TensorDTypes& tensor : report.tensors) {
    json.begin_object(Lines::kOne);
    json.key("name").string(tensor.name);
    json.key("kind").string(model::word(tensor.kind));
    if (tensor.checkpoint) json.key("checkpoint_dtype").string(name(*tensor.checkpoint));
    json.key("storage_dtype").string(name(tensor.storage));
    json.key("compute_dtype").string(name(tensor.compute));
    json.key("storage_rule").string(tensor.storage_rule);
    json.key("compute_rule").string(tensor.compute_rule);
    json.key("reason").string(tensor.reason);
    json.key("follows_tower").boolean(tensor.follows_tower);
    if (tensor.cast) json.key("cast").string(name(*tensor.cast));
    json.end_object();
  }
  json.end_array();
  write_strings(json, "frozen_subtrees", report.frozen_subtrees, Lines::kMany);
  json.key("units").begin_array();
  for (const policy::UnitProposal& unit : report.units) {
    json.begin_object(Lines::kOne);
    write_strings(json, "modules", unit.modules, Lines::kOne);
    json.key("storage_dtype").string(name(unit.storage));
    json.key("compute_dtype").string(name(unit.compute));
    if (unit.output) json.key("output_dtype").string(name(*unit.output));
    json.key("wished").boolean(unit.wished);
    write_strings(json, "parameters", unit.parameters, Lines::kOne);
    json.end_object();
  }
  json.end_array();
  return end_answer(json, report.warnings, {});
}

std::string answer_of_help(const std::vector<HelpTopic>& topics, const std::string& text) {
  JsonWriter json;
  begin_answer(json, "help", Exit::kOk);
  json.key("text").string(text);
  json.key("topics").begin_array();
  for (const HelpTopic& topic : topics) {
    json.begin_object();
    json.key("name").string(topic.name);
    json.key("kind").string(word(topic.kind));
    json.key("group").string(topic.group);
    json.key("meaning").string(topic.meaning);
    json.key("parts").begin_array();
    for (const HelpPart& part : topic.parts) {
      json.begin_object(Lines::kOne);
      json.key("label").string(part.label);
      json.key("text").string(part.text);
      json.end_object();
    }
    json.end_array();
    json.key("page").string(topic.page);
    json.end_object();
  }
  json.end_array();
  return end_answer(json, {}, {});
}

std::string answer_of(const device::GpuSurvey& survey) {
  JsonWriter json;
  begin_answer(json, "gpus", Exit::kOk);
  json.key("driver").string(survey.driver);
  json.key("why_none").string(survey.why_none);
  json.key("gpus").begin_array();
  for (const device::GpuInfo& gpu : survey.gpus) {
    json.begin_object(Lines::kOne);
    json.key("index").number(std::uint64_t{gpu.index});
    json.key("name").string(gpu.name);
    json.key("sm").number(std::uint64_t{gpu.sm});
    json.key("total_bytes").number(gpu.total_bytes);
    json.key("free_bytes").number(gpu.free_bytes);
    json.end_object();
  }
  json.end_array();
  return end_answer(json, {}, {});
}

}  // namespace lading
