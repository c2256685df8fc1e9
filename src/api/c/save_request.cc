#include <array>
#include <string_view>
#include <utility>

#include "api/c/request.h"
#include "api/c/request_reader.h"
#include "base/name_pattern.h"

namespace lading::c_api {
namespace {

using saving::FileDTypes;

constexpr std::array<std::pair<std::string_view, saving::UnmappedKeys>, 3> kUnmapped = {
    {{"refuse", saving::UnmappedKeys::kRefuse},
     {"keep", saving::UnmappedKeys::kKeep},
     {"drop", saving::UnmappedKeys::kDrop}}};

constexpr std::array<std::pair<std::string_view, ExistingDirectory>, 2> kExisting = {
    {{"refuse", ExistingDirectory::kRefuse}, {"replace", ExistingDirectory::kReplace}}};

constexpr std::array<std::pair<std::string_view, SavedFrom>, 2> kSavedFrom = {
    {{"devices", SavedFrom::kDevices}, {"host_copy", SavedFrom::kHostCopy}}};

void read_dtype_choice(JsonFields& fields, saving::Options& out) {
  const auto value = fields.find("dtype");
  if (!value) return;
  const std::string_view word = value->is_string() ? value->text() : std::string_view();
  const auto dtype = dtype_from_name(word);
  if (word == "auto") {
    out.dtypes = FileDTypes::kAuto;
  } else if (word == "base") {
    out.dtypes = FileDTypes::kBase;
  } else if (word == "memory") {
    out.dtypes = FileDTypes::kMemory;
  } else if (dtype && class_of(*dtype) == DTypeClass::kFloat) {
    out.dtypes = FileDTypes::kGiven;
    out.dtype = dtype;
  } else {
    fields.problem(*value, "dtype", "not a choice of dtypes", "auto, base, memory, or a floating dtype such as BF16");
  }
}

void read_keys(JsonFields& fields, saving::Options& out, Errors& errors) {
  if (!fields.find("keys")) return;
  out.keys.emplace();
  fields.each("keys", [&](const JsonValue& element, const std::string& path) {
    saving::Key& key = out.keys->emplace_back();
    JsonFields entry(element, path, errors);
    entry.string("key", key.key);
    entry.shape("shape", key.shape);
    entry.optional_dtype("dtype", key.dtype);
    entry.optional_string("file", key.file);
    entry.finish();
  });
}

void read_metadata(JsonFields& fields, saving::Options& out) {
  const auto value = fields.find("metadata");
  if (!value) return;
  out.metadata.emplace();
  bool is_good = value->is_object();
  for (const JsonMember member : *value) {
    is_good = is_good && member.value.is_string();
    if (is_good) out.metadata->emplace_back(member.key, member.value.text());
  }
  if (!is_good) fields.problem(*value, "metadata", "not texts by name", "an object of strings");
}

void read_index_metadata(JsonFields& fields, saving::Options& out) {
  const auto value = fields.find("index_metadata");
  if (!value) return;
  bool is_good = value->is_object();
  for (const JsonMember member : *value) {
    const auto number = member.value.as_uint64();
    is_good = is_good && number.has_value();
    if (is_good) out.index_metadata.emplace_back(member.key, *number);
  }
  if (!is_good) fields.problem(*value, "index_metadata", "not numbers by name", "an object of whole numbers");
}

}  // namespace

Result<SavePlanRequest, Errors> parse_save_plan_request(std::string_view json) {
  LADING_ASSIGN_OR_RETURN(const JsonDocument document, parse_request(json));
  RequestReader reader(json, document);
  SavePlanRequest request;
  JsonFields& fields = reader.fields();
  CheckpointRef base;
  fields.optional_string("checkpoint", base.path);
  RequestReader::beside_checkpoint(fields, base);
  if (!base.path.empty()) request.save.base = std::move(base);
  reader.document("skeleton", request.save.skeleton);
  reader.document("mapping", request.save.mapping);
  reader.layout(request.save.layout);
  reader.ranks(request.save.ranks);
  saving::Options& options = request.save.options;
  read_dtype_choice(fields, options);
  if (const auto most = fields.find("max_shard_bytes")) {
    options.max_shard_bytes = most->as_uint64();
    if (!options.max_shard_bytes) fields.problem(*most, "max_shard_bytes", "not a whole number", "a whole number");
  }
  fields.optional_each("leave_out", [&](const JsonValue& element, const std::string& path) {
    options.leave_out.push_back(read_name_pattern(element, path, reader.errors()));
  });
  fields.optional_word("unmapped", kUnmapped, options.unmapped);
  read_keys(fields, options, reader.errors());
  read_metadata(fields, options);
  read_index_metadata(fields, options);
  reader.threads(request.threads);
  return reader.finish(std::move(request));
}

Result<SaveStepRequest, Errors> parse_save_step_request(std::string_view json) {
  LADING_ASSIGN_OR_RETURN(const JsonDocument document, parse_request(json));
  RequestReader reader(json, document);
  SaveStepRequest request;
  JsonFields& fields = reader.fields();
  fields.string("directory", request.place.directory);
  fields.optional_string("temporary", request.temporary);
  fields.optional_word("exist", kExisting, request.place.existing);
  fields.optional_word("from", kSavedFrom, request.from);
  bool sync = true;
  fields.optional_boolean("sync", sync);
  request.place.durable = sync ? Durable::kYes : Durable::kNo;
  if (fields.find("threads")) reader.threads(request.threads.emplace());
  return reader.finish(std::move(request));
}

}  // namespace lading::c_api
