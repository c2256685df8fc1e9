#include "api/save/save_answers.h"

#include <span>

#include "api/convert/beside_files.h"
#include "api/save/planned_save.h"
#include "api/shared/answer_parts.h"

namespace lading {
namespace {

using Lines = JsonWriter::Lines;

void write_files(JsonWriter& json, const SavePlanReport& plan) {
  json.key("files").begin_array();
  for (const SavedFile& file : plan.files) {
    json.begin_object(Lines::kOne);
    json.key("name").string(file.name);
    json.key("size_bytes").number(file.size_bytes);
    json.key("keys").number(file.keys);
    json.end_object();
  }
  json.end_array();
}

void write_keys(JsonWriter& json, const SavePlanReport& plan) {
  json.key("keys").begin_array();
  for (const SavedKey& key : plan.keys) {
    json.begin_object(Lines::kOne);
    json.key("key").string(key.key);
    json.key("dtype").string(name(key.dtype));
    write_dims(json, "shape", key.shape);
    json.key("file").string(key.file);
    write_strings(json, "tensors", key.tensors, Lines::kOne);
    json.end_object();
  }
  json.end_array();
}

void write_file_shares(JsonWriter& json, const SavePlanReport& plan) {
  json.key("shares").begin_array();
  for (const FileShare& share : plan.shares) {
    json.begin_object(Lines::kOne);
    json.key("rank").number(share.rank);
    json.key("file").string(plan.files[share.file].name);
    json.key("bytes").number(share.bytes);
    json.key("runs").number(share.runs);
    json.key("span").begin_array(Lines::kOne).number(share.span.begin).number(share.span.end).end_array();
    json.end_object();
  }
  json.end_array();
}

void write_shares(JsonWriter& json, const SavePlanReport& plan) {
  json.key("writes").begin_array();
  for (const RankShare& rank : plan.ranks) {
    json.begin_object(Lines::kOne);
    json.key("rank").number(rank.rank);
    json.key("bytes").number(rank.bytes);
    json.key("writes").number(rank.writes);
    json.end_object();
  }
  json.end_array();
}

}  // namespace

std::string answer_of(const SavePlanReport& plan, const std::vector<DestinationInfo>& destinations,
                      double planning_seconds) {
  JsonWriter json;
  begin_answer(json, "save_plan", Exit::kOk);
  json.key("plan_digest").string(plan.digest);
  json.key("mesh").string(plan.mesh.text());
  json.key("rank_count").number(plan.mesh.ranks());
  json.key("file_count").number(std::uint64_t{plan.files.size()});
  json.key("key_count").number(std::uint64_t{plan.keys.size()});
  json.key("bytes").number(plan.bytes);
  json.key("data_bytes").number(plan.data_bytes);
  json.key("bytes_proved").number(plan.bytes_proved);
  json.key("planning_seconds").number(planning_seconds);
  json.key("index").string(plan.index);
  write_files(json, plan);
  write_shares(json, plan);
  write_file_shares(json, plan);
  write_keys(json, plan);
  write_strings(json, "left_out", plan.left_out, Lines::kMany);
  write_strings(json, "not_saved", plan.not_saved, Lines::kMany);
  write_strings(json, "dropped_keys", plan.dropped_keys, Lines::kMany);
  json.key("kept_keys").begin_array();
  for (const auto& [key, tensor] : plan.kept_keys) {
    json.begin_object(Lines::kOne);
    json.key("key").string(key);
    json.key("tensor").string(tensor);
    json.end_object();
  }
  json.end_array();
  json.key("destination_writes").begin_array(Lines::kOne);
  for (const std::uint64_t writes : writes_of(plan)) json.number(writes);
  json.end_array();
  const std::span<const std::string_view> beside = beside_names();
  write_strings(json, "beside_names", {beside.begin(), beside.end()}, Lines::kMany);
  write_destinations(json, destinations, PlannedSave::of(plan).plan.load);
  return end_answer(json, plan.warnings, {});
}

std::string answer_of(const PreparedSave& prepared) {
  JsonWriter json;
  begin_answer(json, "save_prepare", Exit::kOk);
  json.key("temporary").string(prepared.temporary);
  json.key("temporary_path").string(prepared.path);
  write_strings(json, "removed_leftovers", prepared.removed, Lines::kMany);
  return end_answer(json, {}, {});
}

std::string answer_of(const SaveShareReport& share) {
  JsonWriter json;
  begin_answer(json, "save_write", Exit::kOk);
  json.key("written_bytes").number(share.written_bytes);
  json.key("staging_bytes").number(share.staging_bytes);
  json.key("threads").number(std::uint64_t{share.threads});
  json.key("writing_seconds").number(share.writing_seconds);
  json.key("sync_seconds").number(share.sync_seconds);
  return end_answer(json, {}, {});
}

std::string answer_of(const FinishedSave& finished) {
  JsonWriter json;
  begin_answer(json, "save_finish", Exit::kOk);
  json.key("ledger").string(finished.ledger);
  json.key("digests").begin_object();
  for (const auto& [key, digest] : finished.digests) json.key(key).string(digest);
  json.end_object();
  return end_answer(json, {}, {});
}

std::string answer_of(const ConvertReport& report, const SavePlace& place) {
  JsonWriter json;
  begin_answer(json, "convert", Exit::kOk);
  json.key("path").string(report.path);
  json.key("directory").string(place.directory);
  json.key("replaced").boolean(report.replaced);
  json.key("file_count").number(std::uint64_t{report.plan.files.size()});
  json.key("key_count").number(std::uint64_t{report.plan.keys.size()});
  json.key("dequantized").number(report.dequantized);
  json.key("bytes").number(report.plan.bytes);
  json.key("data_bytes").number(report.plan.data_bytes);
  json.key("bytes_proved").number(report.plan.bytes_proved);
  json.key("read_bytes").number(report.read_bytes);
  json.key("written_bytes").number(report.written_bytes);
  json.key("part_count").number(report.plan.mesh.ranks());
  json.key("part_bytes").number(report.part_bytes);
  json.key("staging_bytes").number(report.staging_bytes);
  json.key("planning_seconds").number(report.planning_seconds);
  json.key("converting_seconds").number(report.converting_seconds);
  json.key("index").string(report.plan.index);
  json.key("ledger").string(report.finished.ledger);
  json.key("adapter").string(report.adapter_path);
  json.key("merged").begin_array();
  for (const MergedWeight& one : report.merged) {
    json.begin_object(Lines::kOne);
    json.key("key").string(one.key);
    json.key("a").string(one.a);
    json.key("b").string(one.b);
    json.key("scale").number(one.scale);
    json.end_object();
  }
  json.end_array();
  write_strings(json, "beside", report.beside, Lines::kMany);
  write_strings(json, "dropped", report.dropped, Lines::kMany);
  write_files(json, report.plan);
  write_keys(json, report.plan);
  return end_answer(json, report.warnings, {});
}

std::string answer_of_commit(const SavePlace& place, bool replaced) {
  JsonWriter json;
  begin_answer(json, "save_commit", Exit::kOk);
  json.key("path").string(place.directory);
  json.key("replaced").boolean(replaced);
  return end_answer(json, {}, {});
}

std::string answer_of_discard(bool removed) {
  JsonWriter json;
  begin_answer(json, "save_discard", Exit::kOk);
  json.key("removed").boolean(removed);
  return end_answer(json, {}, {});
}

}  // namespace lading
