#include "planner/save/output_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/checked.h"
#include "base/json_reader.h"
#include "checkpoint/header.h"
#include "checkpoint/index.h"

namespace lading::planner {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kDataAlignment = 8;

// As serde_json and Python's json write a string without escaping what is not ASCII.
void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

std::string header_of(const OutputShard& shard) {
  std::string json = "{";
  const auto begin_member = [&](std::string_view key) {
    if (json.size() > 1) json += ',';
    append_json_string(json, key);
    json += ':';
  };
  if (!shard.metadata.empty()) {
    begin_member(kMetadataKey);
    json += '{';
    for (const auto& [key, value] : shard.metadata) {
      if (json.back() != '{') json += ',';
      append_json_string(json, key);
      json += ':';
      append_json_string(json, value);
    }
    json += '}';
  }
  std::uint64_t at = 0;
  for (const OutputKey& key : shard.keys) {
    begin_member(key.key);
    const std::uint64_t end = at + *key.shape.size_bytes(key.dtype);
    json += fmt::format(R"({{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name(key.dtype),
                        fmt::join(key.shape, ","), at, end);
    at = end;
  }
  json += '}';
  json.resize((json.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  std::string header;
  for (std::size_t i = 0; i < kLengthBytes; ++i) header += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  return header + json;
}

// As json.dumps(index, indent=2, sort_keys=True) + "\n".
std::string index_of(const std::vector<OutputShard>& shards, const IndexFacts& facts) {
  std::map<std::string_view, std::string_view> weight_map;
  std::uint64_t total_bytes = 0;
  for (const OutputShard& shard : shards) {
    for (const OutputKey& key : shard.keys) {
      weight_map.emplace(key.key, shard.name);
      total_bytes += *key.shape.size_bytes(key.dtype);
    }
  }
  std::map<std::string_view, std::uint64_t> metadata(facts.metadata.begin(), facts.metadata.end());
  metadata["total_size"] = total_bytes;
  std::string json = "{\n  \"metadata\": {";
  std::string_view separator = "\n    ";
  for (const auto& [name, number] : metadata) {
    json += std::exchange(separator, ",\n    ");
    append_json_string(json, name);
    json += fmt::format(": {}", number);
  }
  json += "\n  },\n  \"weight_map\": {";
  separator = "\n    ";
  for (const auto& [key, shard] : weight_map) {
    json += std::exchange(separator, ",\n    ");
    append_json_string(json, key);
    json += ": ";
    append_json_string(json, shard);
  }
  return json + "\n  }\n}\n";
}

// What the ordinary reader finds in a file that begins so.
Result<checkpoint::ShardHeader, Errors> read_back(const std::string& name, const std::string& header,
                                                  std::uint64_t data_bytes) {
  const std::uint64_t size_bytes = header.size() + data_bytes;
  const checkpoint::HeaderContext context{name, size_bytes};
  const auto found = checkpoint::find_header(std::string_view(header).substr(0, checkpoint::kFirstBytes), context);
  if (!found) return fail(Errors(found.error()));
  const std::string_view text = std::string_view(header).substr(found->text.begin, found->text.size_bytes());
  LADING_ASSIGN_OR_RETURN(checkpoint::Header parsed, found->parse(JsonBuffer::copy_of(text), context));
  return checkpoint::ShardHeader{name, size_bytes, std::move(parsed)};
}

void sort_as_safetensors(std::vector<OutputKey>& keys) {
  std::sort(keys.begin(), keys.end(), [](const OutputKey& a, const OutputKey& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.key < b.key;
  });
}

}  // namespace

std::vector<OutputShard> fill_shards(std::vector<OutputKey> keys, std::uint64_t max_shard_bytes,
                                     const saving::Metadata& metadata) {
  std::vector<OutputShard> shards;
  OutputShard filling;
  std::uint64_t filled_bytes = 0;
  for (OutputKey& key : keys) {
    const std::uint64_t bytes = *key.shape.size_bytes(key.dtype);
    if (bytes > max_shard_bytes) {
      shards.push_back({"", metadata, {std::move(key)}});
      continue;
    }
    if (filled_bytes + bytes > max_shard_bytes) {
      if (!filling.keys.empty()) shards.push_back(std::exchange(filling, {}));
      filled_bytes = 0;
    }
    filling.keys.push_back(std::move(key));
    filled_bytes += bytes;
  }
  if (!filling.keys.empty()) shards.push_back(std::move(filling));
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shards.size() == 1 ? "model.safetensors"
                                        : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    shards[i].metadata = metadata;
    sort_as_safetensors(shards[i].keys);
  }
  return shards;
}

std::vector<OutputShard> shards_by_name(std::vector<OutputKey> keys, const std::vector<saving::Key>& wanted,
                                        const saving::Metadata& metadata) {
  std::map<std::string_view, std::string_view> files;
  for (const saving::Key& key : wanted) files.emplace(key.key, key.file);
  std::map<std::string_view, OutputShard> shards;
  for (OutputKey& key : keys) {
    const std::string_view file = files.at(key.key);
    OutputShard& shard = shards[file];
    shard.name = file;
    shard.metadata = metadata;
    shard.keys.push_back(std::move(key));
  }
  std::vector<OutputShard> list;
  for (auto& [name, shard] : shards) sort_as_safetensors(list.emplace_back(std::move(shard)).keys);
  return list;
}

Result<OutputFiles, Errors> lay_out_files(std::vector<OutputShard> shards, const IndexFacts& index_facts) {
  Errors errors;
  OutputFiles out;
  std::vector<std::optional<checkpoint::ShardHeader>> read;
  std::sort(shards.begin(), shards.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (const OutputShard& shard : shards) {
    std::optional<std::uint64_t> data_bytes = 0;
    for (const OutputKey& key : shard.keys) {
      const auto bytes = key.shape.size_bytes(key.dtype);
      data_bytes = data_bytes && bytes ? checked_add(*data_bytes, *bytes) : std::nullopt;
    }
    if (!data_bytes) {
      errors.add(Error(Code::kPlan, "the file would be too large, or a packed element would be cut")
                     .in_file(shard.name)
                     .try_this("Save with a smaller max_shard_bytes, or correct the shapes of the keys."));
      continue;
    }
    out.headers.push_back(header_of(shard));
    auto header = read_back(shard.name, out.headers.back(), *data_bytes);
    if (!header) {
      errors.add(std::move(header).error());
      continue;
    }
    read.emplace_back(*std::move(header));
  }
  if (!errors.empty()) return fail(std::move(errors));
  if (shards.size() == 1 && index_facts.name.empty()) {
    out.catalog = checkpoint::catalog_of_file(*std::move(read.front())).catalog;
    return out;
  }
  out.index_name = index_facts.name.empty() ? "model.safetensors.index.json" : index_facts.name;
  out.index = index_of(shards, index_facts);
  LADING_ASSIGN_OR_RETURN(checkpoint::Index index,
                          checkpoint::parse_index(JsonBuffer::copy_of(out.index), out.index_name));
  LADING_ASSIGN_OR_RETURN(checkpoint::CatalogResult found,
                          checkpoint::catalog_of_index(std::move(index), std::move(read), out.index_name));
  out.catalog = std::move(found.catalog);
  return out;
}

}  // namespace lading::planner
