// How long it takes to plan and check one rank of a very large load: the shape of DeepSeek-V3 (published
// configuration; about 90,000 source tensors, 256 experts, stacked in the model), 1,024 ranks, experts
// over ep and ep_shard, everything else FSDP2 over all ranks. The files hold FP8 in blocks, the model is BF16.
// Prints one JSON object.
//
//   plan_large [RANK] [REPEATS]
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "checker/checker.h"
#include "planner/planner.h"

using namespace lading;

namespace {

constexpr std::uint64_t kHidden = 7168;
constexpr std::uint64_t kLayers = 61;
constexpr std::uint64_t kDenseLayers = 3;
constexpr std::uint64_t kExperts = 256;
constexpr std::uint64_t kExpertWidth = 2048;
constexpr std::uint64_t kBlock = 128;

class Builder {
 public:
  // A tensor that is the same in the checkpoint and in the model.
  void both(const std::string& name, DType dtype, const Shape& shape) {
    in_file(name, dtype, shape);
    in_model(name, dtype, shape);
  }
  // A weight that is FP8 in the files, beside the scales of its blocks.
  void quantized(const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    quantized_in_file(name, rows, columns);
    in_model(name + ".weight", DType::kBF16, {rows, columns});
  }
  void quantized_in_file(const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    in_file(name + ".weight", DType::kF8E4M3, {rows, columns});
    in_file(name + ".weight_scale_inv", DType::kF32, {(rows + kBlock - 1) / kBlock, (columns + kBlock - 1) / kBlock});
  }
  void in_file(const std::string& name, DType dtype, const Shape& shape) {
    const std::uint64_t bytes = *shape.size_bytes(dtype);
    if (at_ + bytes > 4'300'000'000) next_file();
    catalog.tensors.push_back(
        {name, dtype, {}, shape, static_cast<std::uint32_t>(catalog.files.size()), {at_, at_ + bytes}});
    at_ += bytes;
  }
  void in_model(const std::string& name, DType dtype, const Shape& shape) {
    model::Tensor tensor;
    tensor.name = name;
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensors.push_back(std::move(tensor));
  }
  void next_file() {
    catalog.files.push_back({fmt::format("model-{:05}.safetensors", catalog.files.size() + 1), at_, 0, 0, {}});
    at_ = 0;
  }

  checkpoint::Catalog catalog;
  std::vector<model::Tensor> tensors;

 private:
  std::uint64_t at_ = 0;
};

void add_attention(Builder& b, const std::string& layer) {
  b.both(layer + "input_layernorm.weight", DType::kBF16, {kHidden});
  b.both(layer + "post_attention_layernorm.weight", DType::kBF16, {kHidden});
  b.quantized(layer + "self_attn.q_a_proj", 1536, kHidden);
  b.both(layer + "self_attn.q_a_layernorm.weight", DType::kBF16, {1536});
  b.quantized(layer + "self_attn.q_b_proj", 24576, 1536);
  b.quantized(layer + "self_attn.kv_a_proj_with_mqa", 576, kHidden);
  b.both(layer + "self_attn.kv_a_layernorm.weight", DType::kBF16, {512});
  b.quantized(layer + "self_attn.kv_b_proj", 32768, 512);
  b.quantized(layer + "self_attn.o_proj", kHidden, 16384);
}

void add_mlp(Builder& b, const std::string& prefix, std::uint64_t width) {
  b.quantized(prefix + "gate_proj", width, kHidden);
  b.quantized(prefix + "up_proj", width, kHidden);
  b.quantized(prefix + "down_proj", kHidden, width);
}

void add_experts(Builder& b, const std::string& mlp) {
  for (std::uint64_t e = 0; e < kExperts; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", mlp, e);
    for (const char* projection : {"gate_proj", "up_proj"}) {
      b.quantized_in_file(expert + projection, kExpertWidth, kHidden);
    }
    b.quantized_in_file(expert + "down_proj", kHidden, kExpertWidth);
  }
  b.in_model(mlp + "experts.gate_up_proj", DType::kBF16, {kExperts, 2 * kExpertWidth, kHidden});
  b.in_model(mlp + "experts.down_proj", DType::kBF16, {kExperts, kHidden, kExpertWidth});
}

Builder deepseek_shape() {
  Builder b;
  b.both("model.embed_tokens.weight", DType::kBF16, {129280, kHidden});
  for (std::uint64_t i = 0; i < kLayers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    add_attention(b, layer);
    if (i < kDenseLayers) {
      add_mlp(b, layer + "mlp.", 18432);
      continue;
    }
    b.both(layer + "mlp.gate.weight", DType::kBF16, {kExperts, kHidden});
    b.both(layer + "mlp.gate.e_score_correction_bias", DType::kF32, {kExperts});
    add_mlp(b, layer + "mlp.shared_experts.", kExpertWidth);
    add_experts(b, layer + "mlp.");
  }
  b.both("model.norm.weight", DType::kBF16, {kHidden});
  b.both("lm_head.weight", DType::kBF16, {129280, kHidden});
  b.next_file();
  std::sort(b.catalog.tensors.begin(), b.catalog.tensors.end(),
            [](const auto& x, const auto& y) { return x.name < y.name; });
  b.catalog.quantization = checkpoint::Quantization{"fp8", "", {kBlock, kBlock}};
  return b;
}

constexpr char kMapping[] = R"({"schema": "lading.mapping/1", "rules": [
  {"id": "gate_up", "kind": "build", "to": "model.layers.{l}.mlp.experts.gate_up_proj", "expression": {"concat": {"dim": 1, "parts": [
    {"stack": {"dim": 0, "over": "e", "of": "model.layers.{l}.mlp.experts.{e}.gate_proj.weight"}},
    {"stack": {"dim": 0, "over": "e", "of": "model.layers.{l}.mlp.experts.{e}.up_proj.weight"}}]}}},
  {"id": "down", "kind": "build", "to": "model.layers.{l}.mlp.experts.down_proj", "expression":
    {"stack": {"dim": 0, "over": "e", "of": "model.layers.{l}.mlp.experts.{e}.down_proj.weight"}}}
]})";

constexpr char kLayout[] =
    R"({"schema": "lading.layout/1", "mesh": [{"name": "ep_shard", "size": 16}, {"name": "ep", "size": 64}],
  "devices": {"type": "cuda", "per_node": 8},
  "rules": [
    {"pattern": "*.mlp.experts.*", "cuts": [{"shard": 0, "axes": ["ep"]}, {"shard": 1, "axes": ["ep_shard"]}]},
    {"pattern": "*", "cuts": [{"shard": 0, "axes": ["ep_shard", "ep"]}]}]})";

template <class T>
T value_of(Result<T, Errors> result) {
  if (result) return *std::move(result);
  for (const Error& error : result.error()) std::fprintf(stderr, "%s\n", error.text().c_str());
  std::exit(1);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t rank = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 511;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 7;
  Builder builder = deepseek_shape();
  const checkpoint::Catalog catalog = std::move(builder.catalog);
  const model::Skeleton skeleton = value_of(model::make_skeleton(std::move(builder.tensors), {}, {}));
  const mapping::Mapping mapping =
      value_of(mapping::parse_mapping(value_of(JsonDocument::parse(JsonBuffer::copy_of(kMapping)))));
  const layout::Layout layout =
      value_of(layout::parse_layout(value_of(JsonDocument::parse(JsonBuffer::copy_of(kLayout)))));
  const policy::Policy policy;

  std::vector<double> plan_s;
  std::vector<double> check_s;
  std::uint64_t transfers = 0;
  std::uint64_t owned_bytes = 0;
  std::uint64_t read_bytes = 0;
  for (int i = 0; i < repeats; ++i) {
    auto begin = std::chrono::steady_clock::now();
    const plan::Plan plan = value_of(planner::make_plan({catalog, skeleton, layout, mapping, policy}, {rank}));
    plan_s.push_back(seconds_since(begin));
    begin = std::chrono::steady_clock::now();
    value_of(checker::check_plan(plan));
    check_s.push_back(seconds_since(begin));
    transfers = 0;
    for (const auto& destination : plan.ranks.front().destinations) transfers += destination.transfers.size();
    owned_bytes = plan.ranks.front().owned_bytes;
    read_bytes = plan.ranks.front().read_bytes;
  }
  std::sort(plan_s.begin(), plan_s.end());
  std::sort(check_s.begin(), check_s.end());
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "%s\n",
      fmt::format("{{\"source_tensors\": {}, \"model_tensors\": {}, \"ranks\": {}, \"rank\": {}, \"transfers\": {}, "
                  "\"owned_bytes\": {}, \"read_bytes\": {}, \"plan_s\": {:.3f}, \"check_s\": {:.3f}, \"repeats\": {}, "
                  "\"peak_rss_mb\": {}}}",
                  catalog.tensors.size(), skeleton.tensors.size(), layout.mesh.ranks(), rank, transfers, owned_bytes,
                  read_bytes, plan_s[plan_s.size() / 2], check_s[check_s.size() / 2], repeats, usage.ru_maxrss / 1024)
          .c_str());
  return 0;
}
