#include <algorithm>
#include <map>

#include "base/error_json.h"
#include "base/json_writer.h"
#include "cli/inspect_output.h"
#include "lading/version.h"

namespace lading::cli {
namespace {

constexpr std::string_view kInspectSchema = "lading.inspect/1";

std::string_view word_of(HashState state) {
  switch (state) {
    case HashState::kNotChecked: return "not_checked";
    case HashState::kVerified: return "verified";
    case HashState::kUnknown: return "unknown";
  }
  return "unknown";
}

void write_shard(JsonWriter& json, const ShardInfo& shard) {
  json.begin_object();
  json.key("name").string(shard.name);
  json.key("path").string(shard.path);
  json.key("size_bytes").number(shard.size_bytes);
  json.key("tensors").number(shard.tensors);
  json.key("hash").string(word_of(shard.hash));
  json.key("metadata").begin_object();
  for (const auto& [key, value] : shard.metadata) json.key(key).string(value);
  json.end_object();
  json.end_object();
}

void write_tensor(JsonWriter& json, const Inspection& inspection, const TensorInfo& tensor) {
  json.begin_object();
  json.key("name").string(tensor.name);
  json.key("dtype").string(tensor.dtype_name);
  json.key("shape").begin_array();
  for (const std::uint64_t dim : tensor.shape) json.number(dim);
  json.end_array();
  json.key("shard").string(inspection.shards[tensor.shard].name);
  json.key("bytes").begin_array().number(tensor.bytes.begin).number(tensor.bytes.end).end_array();
  json.end_object();
}

}  // namespace

std::string inspection_json(const Inspection& inspection, TensorList list) {
  JsonWriter json;
  json.begin_object();
  json.key("schema").string(kInspectSchema);
  json.key("lading").string(version());
  json.key("ok").boolean(true);
  json.key("path").string(inspection.path);
  if (inspection.index_path) json.key("index").string(*inspection.index_path);
  json.key("tensor_count").number(inspection.tensors.size());
  json.key("tensor_bytes").number(inspection.tensor_bytes);
  json.key("shards").begin_array();
  for (const ShardInfo& shard : inspection.shards) write_shard(json, shard);
  json.end_array();

  std::map<std::string_view, std::pair<std::uint64_t, std::uint64_t>> dtypes;
  for (const TensorInfo& tensor : inspection.tensors) {
    auto& [count, bytes] = dtypes[tensor.dtype_name];
    count += 1;
    bytes += tensor.bytes.size_bytes();
  }
  json.key("dtypes").begin_array();
  for (const auto& [name, sums] : dtypes) {
    json.begin_object();
    json.key("dtype").string(name);
    json.key("tensors").number(sums.first);
    json.key("bytes").number(sums.second);
    json.end_object();
  }
  json.end_array();

  if (list == TensorList::kAll) {
    json.key("tensors").begin_array();
    for (const TensorInfo& tensor : inspection.tensors) write_tensor(json, inspection, tensor);
    json.end_array();
  }
  write_errors(json, "warnings", inspection.warnings);
  write_errors(json, "problems", {});
  json.end_object();
  return json.take();
}

}  // namespace lading::cli
