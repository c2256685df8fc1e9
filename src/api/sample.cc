#include "lading/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_writer.h"
#include "io/write_file.h"
#include "lading/dtype.h"
#include "lading/shape.h"

namespace lading {
namespace {

namespace fs = std::filesystem;

struct SampleTensor {
  std::string name;
  DType dtype;
  Shape shape;
};

struct SampleFile {
  std::string name;
  std::string content;
};

std::vector<SampleTensor> embedding_tensors() {
  return {{"model.embed_tokens.weight", DType::kBF16, {512, 64}}, {"model.norm.weight", DType::kBF16, {64}}};
}

std::vector<SampleTensor> layer_tensors() {
  std::vector<SampleTensor> tensors;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    for (const char* projection : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      tensors.push_back({prefix + "self_attn." + projection + ".weight", DType::kBF16, {64, 64}});
    }
    for (const char* projection : {"gate_proj", "up_proj"}) {
      tensors.push_back({prefix + "mlp." + projection + ".weight", DType::kBF16, {160, 64}});
    }
    tensors.push_back({prefix + "mlp.down_proj.weight", DType::kBF16, {64, 160}});
    tensors.push_back({prefix + "mixer.A_log", DType::kF32, {16}});
    tensors.push_back({prefix + "input_max", DType::kF32, {}});
    tensors.push_back({prefix + "input_layernorm.weight", DType::kBF16, {64}});
  }
  return tensors;
}

// Values do not matter, only that they differ from place to place and never change.
void append_data(std::string& out, const SampleTensor& tensor, std::uint64_t seed) {
  const std::uint64_t elems = *tensor.shape.num_elems();
  for (std::uint64_t i = 0; i < elems; ++i) {
    const std::uint64_t mixed = (seed * 1'000'003 + i) * 0x9E37'79B9'7F4A'7C15;
    // A float in [1, 2), then the bytes of it that the dtype keeps.
    const auto word = static_cast<std::uint32_t>(0x3F80'0000 | (mixed >> 48) << 7);
    const unsigned first = tensor.dtype == DType::kBF16 ? 2 : 0;
    for (unsigned byte = first; byte < 4; ++byte) out += static_cast<char>(word >> (8 * byte) & 0xFF);
  }
}

SampleFile make_shard(std::string name, const std::vector<SampleTensor>& tensors, std::uint64_t seed) {
  JsonWriter json;
  std::string data;
  json.begin_object();
  json.key("__metadata__").begin_object().key("format").string("pt").end_object();
  for (const SampleTensor& tensor : tensors) {
    const std::uint64_t begin = data.size();
    append_data(data, tensor, seed++);
    json.key(tensor.name).begin_object();
    json.key("dtype").string(lading::name(tensor.dtype));
    json.key("shape").begin_array();
    for (const std::uint64_t dim : tensor.shape) json.number(dim);
    json.end_array();
    json.key("data_offsets").begin_array().number(begin).number(data.size()).end_array();
    json.end_object();
  }
  json.end_object();
  std::string header = json.take();
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string content;
  for (unsigned byte = 0; byte < 8; ++byte) content += static_cast<char>(header.size() >> (8 * byte) & 0xFF);
  return {std::move(name), content + header + data};
}

std::vector<SampleFile> sample_files() {
  const std::vector<std::pair<std::string, std::vector<SampleTensor>>> shards = {
      {"model-00001-of-00002.safetensors", embedding_tensors()},
      {"model-00002-of-00002.safetensors", layer_tensors()},
  };
  std::vector<SampleFile> files;
  std::vector<std::pair<std::string, std::string>> weight_map;
  std::uint64_t total = 0;
  std::uint64_t seed = 1;
  for (const auto& [name, tensors] : shards) {
    files.push_back(make_shard(name, tensors, seed));
    seed += tensors.size();
    for (const SampleTensor& tensor : tensors) {
      weight_map.emplace_back(tensor.name, name);
      total += *tensor.shape.size_bytes(tensor.dtype);
    }
  }
  std::sort(weight_map.begin(), weight_map.end());
  JsonWriter json;
  json.begin_object();
  json.key("metadata").begin_object().key("total_size").number(total).end_object();
  json.key("weight_map").begin_object();
  for (const auto& [tensor, shard] : weight_map) json.key(tensor).string(shard);
  json.end_object().end_object();
  files.push_back({"model.safetensors.index.json", json.take()});
  return files;
}

// Whether the file must still be written; one that holds something else is an error.
Result<bool> is_missing(const std::string& path, const std::string& content) {
  LADING_ASSIGN_OR_RETURN(const io::Standing standing, io::what_stands_at(path));
  if (standing == io::Standing::kNothing) return true;
  std::ifstream in(path, std::ios::binary);
  const std::string there((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in && there == content) return false;
  return fail(Error(Code::kWriteFailed, "a file of this name exists, and has other contents")
                  .in_file(path)
                  .try_this("Choose another directory."));
}

}  // namespace

Result<void, Errors> write_sample_checkpoint(const std::string& directory) {
  const std::vector<SampleFile> files = sample_files();
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return fail(Error(Code::kWriteFailed, error.message()).in_file(directory));
  Errors errors;
  std::vector<const SampleFile*> missing;
  for (const SampleFile& file : files) {
    const auto is_to_be_written = is_missing((fs::path(directory) / file.name).string(), file.content);
    if (!is_to_be_written) {
      errors.add(is_to_be_written.error());
    } else if (*is_to_be_written) {
      missing.push_back(&file);
    }
  }
  if (!errors.empty()) return fail(std::move(errors));
  for (const SampleFile* const file : missing) {
    auto written = io::write_file((fs::path(directory) / file->name).string(), file->content, {});
    if (!written) errors.add(std::move(written).error());
  }
  if (!errors.empty()) return fail(std::move(errors));
  return {};
}

}  // namespace lading
