// Quantized checkpoints (R48): any config.json, any shapes and dtypes of payloads and scales under the names that
// schemes use, any policy, mapping and layout of a small world. A plan that is accepted passes the checker, gives every
// tensor of ordinary floats its scales, and reads each scale that it needs.
//
// The input is a world, a byte each choice; what is left is the text of config.json.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "checker/checker.h"
#include "checkpoint/catalog.h"
#include "fuzz_input.h"
#include "mapping/template.h"
#include "model/skeleton.h"
#include "packed_keys.h"
#include "plan/plan.h"
#include "planner/planner.h"
#include "source/model_config.h"

using namespace lading;
using fuzz::Input;
using mapping::Expression;

namespace {

constexpr std::size_t kMaxPayloads = 3;
constexpr std::uint64_t kMost = ~std::uint64_t{0};
constexpr std::array<std::uint64_t, 20> kExtents = {
    0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 127, 128, 129, 384, 576, 1000, 1ULL << 20, 1ULL << 31, 1ULL << 62, kMost};
constexpr std::array<std::string_view, 8> kPayloadNames = {"weight",    "weight", "weight_packed", "qweight",
                                                           "up_blocks", "w",      "weight._data",  "kernel"};
constexpr std::array<std::string_view, 12> kScaleNames = {"weight_scale_inv",
                                                          "weight_scale",
                                                          "weight_scale_2",
                                                          "scales",
                                                          "up_scales",
                                                          "weight.absmax",
                                                          "SCB",
                                                          "weight_zero_point",
                                                          "input_scale",
                                                          "weight._scale",
                                                          "g_idx",
                                                          "weight.quant_state.bitsandbytes__nf4"};

DType any_dtype(Input& input) { return all_dtypes()[input.byte() % all_dtypes().size()]; }

DType any_payload(Input& input) {
  constexpr std::array kPayloads = {DType::kF8E4M3, DType::kF8E4M3, DType::kF8E5M2, DType::kF8E4M3Fnuz,
                                    DType::kF8E5M2Fnuz};
  return input.once_in(4) ? any_dtype(input) : input.any(kPayloads);
}

DType any_float(Input& input) {
  constexpr std::array kFloats = {DType::kBF16, DType::kBF16, DType::kF16, DType::kF32, DType::kF64};
  return input.once_in(8) ? any_dtype(input) : input.any(kFloats);
}

Shape any_shape(Input& input) {
  std::vector<std::uint64_t> dims(input.below(4));
  for (std::uint64_t& dim : dims) dim = input.once_in(4) ? input.any(kExtents) : 1 + input.below(12);
  return Shape(dims);
}

// Mostly the grid of these blocks, or nearly.
Shape any_grid(Input& input, const Shape& shape, const Shape& block) {
  if (input.once_in(6)) return any_shape(input);
  std::vector<std::uint64_t> dims;
  for (std::size_t d = 0; d < shape.rank(); ++d) {
    const std::uint64_t size = d < block.rank() && block[d] > 0 ? block[d] : 1;
    dims.push_back(shape[d] / size + (shape[d] % size == 0 ? 0 : 1));
  }
  switch (input.below(8)) {
    case 0: std::reverse(dims.begin(), dims.end()); break;
    case 1: std::erase(dims, 1); break;
    case 2: dims.push_back(1); break;
    case 3:
      if (!dims.empty()) dims.back() += 1;
      break;
    default: break;
  }
  return Shape(dims);
}

// What is planned, and what must be true of the plan.
struct World {
  checkpoint::Catalog catalog;
  std::vector<model::Tensor> tensors;
  layout::Layout layout;
  mapping::Mapping mapping;
  policy::Policy policy;
};

class WorldMaker {
 public:
  explicit WorldMaker(Input& input) : input_(input) {}

  World make() {
    world_.catalog.files.push_back({"a.safetensors", 100, 100, 0, {}});
    world_.catalog.files.push_back({"b.safetensors", 100, 100, 0, {}});
    make_policy();
    const bool is_packed = input_.once_in(2);
    for (std::uint64_t i = 1 + input_.below(kMaxPayloads); i > 0; --i) {
      const std::string module = "m" + std::to_string(i);
      if (is_packed) {
        add_packed(module);
      } else {
        add_payload(module);
      }
    }
    if (input_.once_in(2)) add_key("norm", {8}, DType::kBF16), add_tensor("norm", {8}, DType::kBF16);
    make_layout();
    std::sort(world_.catalog.tensors.begin(), world_.catalog.tensors.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    make_config();
    return std::move(world_);
  }

 private:
  // No larger than a file can be; of several dims, so large that its rows can be looked at one by one.
  bool add_key(const std::string& name, const Shape& shape, DType dtype) {
    const auto bytes = shape.size_bytes(dtype);
    const auto is_called = [&](const auto& other) { return other.name == name; };
    const bool is_known = std::any_of(world_.catalog.tensors.begin(), world_.catalog.tensors.end(), is_called);
    if (!bytes || *bytes > (shape.rank() > 1 ? 1ULL << 24 : 1ULL << 60) || is_known) return false;
    const auto number = static_cast<std::uint32_t>(input_.below(2));
    checkpoint::CatalogFile& file = world_.catalog.files[number];
    checkpoint::CatalogTensor tensor;
    tensor.name = name;
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensor.file = number;
    tensor.bytes = {file.size_bytes, file.size_bytes + *bytes};
    file.size_bytes += *bytes;
    ++file.tensors;
    world_.catalog.tensors.push_back(std::move(tensor));
    return true;
  }

  void add_tensor(const std::string& name, const Shape& shape, DType dtype) {
    model::Tensor tensor;
    tensor.name = name;
    tensor.shape = shape;
    tensor.dtype = dtype;
    world_.tensors.push_back(std::move(tensor));
  }

  void add_payload(const std::string& module) {
    const std::string key = module + "." + std::string(input_.any(kPayloadNames));
    const Shape shape = any_shape(input_);
    const Shape block = input_.once_in(3) ? any_shape(input_) : Shape{4, 3};
    const DType dtype = any_payload(input_);
    if (!add_key(key, shape, dtype)) return;
    std::vector<std::string> scales;
    for (std::uint64_t i = input_.once_in(8) ? input_.below(3) : 1; i > 0; --i) {
      constexpr std::array kScales = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0};
      const std::string name = module + "." + std::string(input_.any(kScaleNames));
      const Shape grid = any_grid(input_, shape, block);
      const DType of = input_.once_in(6) ? any_dtype(input_) : input_.any(kScales);
      if (add_key(name, grid, of)) scales.push_back(name);
      if (input_.once_in(8)) add_tensor(name, grid, of);  // a module that computes with them
    }
    const DType wanted = input_.once_in(5) ? dtype : any_float(input_);
    const std::string target = input_.once_in(4) ? module + ".weight" : key;
    if (scales.empty() || !input_.once_in(2))
      return add_tensor(target, input_.once_in(8) ? any_shape(input_) : shape, wanted);
    build(module, Expression::dequantize(key, scales.front(), block, any_product()), shape, wanted);
  }

  // The keys of a packed weight as a scheme names them, mostly of shapes that fit.
  void add_packed(const std::string& module) {
    const fuzz::PackedKeys made = fuzz::make_packed_keys(input_, module);
    for (const fuzz::PackedKey& key : made.keys) {
      if (!add_key(key.name, key.shape, key.dtype)) continue;
      if (input_.once_in(24)) add_tensor(key.name, key.shape, key.dtype);  // a module that computes with it
    }
    if (!packed_) packed_ = made.said;
    if (!made.shape_key.empty() && !input_.once_in(8))
      packed_->shapes[made.shape_key] = {made.shape.begin(), made.shape.end()};
    const Shape& shape = input_.once_in(12) ? any_shape(input_) : made.shape;
    if (input_.once_in(3)) return build(module, Expression::source(made.name), shape, any_float(input_));
    add_tensor(made.name, shape, any_float(input_));
  }

  std::optional<DType> any_product() { return input_.once_in(4) ? std::optional(any_dtype(input_)) : std::nullopt; }

  // As a rule of the mapping, moved in some way.
  void build(const std::string& module, Expression expression, const Shape& shape, DType dtype) {
    std::vector<std::uint64_t> dims(shape.begin(), shape.end());
    switch (input_.below(6)) {
      case 0:
        expression = Expression::stack(0, {expression, expression});
        dims.insert(dims.begin(), 2);
        break;
      case 1: {
        std::vector<std::size_t> order(dims.size());
        for (std::size_t d = 0; d < dims.size(); ++d) order[d] = dims.size() - 1 - d;
        expression = Expression::permute(expression, order);
        std::reverse(dims.begin(), dims.end());
        break;
      }
      case 2: {
        if (dims.empty()) break;
        const std::uint64_t begin = std::min<std::uint64_t>(input_.below(4), dims[0]);
        const std::uint64_t end = std::max(begin, dims[0] - std::min<std::uint64_t>(input_.below(4), dims[0]));
        expression = Expression::slice(expression, 0, begin, end);
        dims[0] = end - begin;
        break;
      }
      case 3:
        if (dims.empty() || dims[0] > kMost / 4) break;
        expression = Expression::concat(0, {expression, expression});
        dims[0] *= 2;
        break;
      default: break;
    }
    const std::string name = module + ".built";
    world_.mapping.rules.push_back(mapping::Rule::build_one("build " + name, name, expression));
    add_tensor(name, Shape(dims), dtype);
  }

  void make_policy() {
    policy::Policy& policy = world_.policy;
    if (input_.once_in(2)) policy.dtype = any_float(input_);
    policy.cast = static_cast<policy::Cast>(input_.below(3));
    policy.quantized = static_cast<policy::Quantized>(input_.once_in(8) ? 1 : 0);
    policy.arithmetic = static_cast<policy::Arithmetic>(input_.below(2));
    if (input_.once_in(2)) policy.unexpected = policy::Strictness::kReport;
    if (input_.once_in(3)) policy.allow_unexpected = {"*"};
    if (input_.once_in(4)) policy.allow_missing = {"*"};
    if (input_.once_in(4)) policy.allow_mismatch = {"*"};
    if (input_.once_in(8)) policy.budget_bytes = policy::kLeastBudgetBytes;
  }

  void make_layout() {
    layout::Layout& layout = world_.layout;
    layout.mesh = layout::Mesh({{"a", 1 + input_.below(5)}, {"b", 1 + input_.below(3)}});
    layout::PlacementRule rule{"*", {}};
    std::vector<layout::Cut>& cuts = rule.placement.slots.front().cuts;
    for (std::size_t axis = 0; axis < 2; ++axis) {
      layout::Cut cut;
      cut.axes = {axis};
      cut.dim = input_.below(3);
      switch (input_.below(5)) {
        case 0: continue;
        case 1: cut.kind = layout::CutKind::kFlat; break;
        case 2:
          cut.kind = layout::CutKind::kStridedShard;
          cut.split_factor = 1 + input_.below(4);
          break;
        default: break;
      }
      cuts.push_back(cut);
    }
    layout.rules = {std::move(rule)};
  }

  void make_config() {
    if (packed_ && !input_.once_in(8)) {
      world_.catalog.quantization = packed_;
      return;
    }
    if (input_.once_in(4)) return;
    if (input_.once_in(2)) {
      auto found = source::parse_model_config(JsonBuffer::copy_of(input_.rest()));
      if (found) world_.catalog.quantization = *std::move(found);
      return;
    }
    checkpoint::Quantization said;
    constexpr std::array<std::string_view, 5> kMethods = {"fp8", "compressed-tensors", "gptq", "bitsandbytes", ""};
    said.method = input_.any(kMethods);
    said.block = input_.once_in(3) ? std::vector<std::uint64_t>() : std::vector<std::uint64_t>{4, 3};
    if (input_.once_in(4)) {
      const Shape block = any_shape(input_);
      said.block.assign(block.begin(), block.end());
      std::erase(said.block, 0);
    }
    if (input_.once_in(4)) said.not_converted = {input_.once_in(2) ? "norm" : "m1", std::string(input_.rest())};
    world_.catalog.quantization = std::move(said);
  }

  Input& input_;
  World world_;
  std::optional<checkpoint::Quantization> packed_;  // what the first packed weight needs said
};

bool is_eight_bit_float(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kF8E4M3Fnuz ||
         dtype == DType::kF8E5M2Fnuz;
}

std::set<std::string> keys_beside_payloads(const plan::Plan& plan) {
  std::set<std::string> keys;
  for (const plan::Source& source : plan.sources) {
    if (!source.scaling) continue;
    for (const plan::SourceId beside :
         {source.scaling->scales, source.scaling->zeros, source.scaling->tensor_scale, source.scaling->groups}) {
      if (!beside.is_none()) keys.insert(plan.sources[beside].key);
    }
  }
  return keys;
}

void check_promises(const World& world, const plan::Plan& plan) {
  const std::set<std::string> beside = keys_beside_payloads(plan);
  for (const plan::Source& source : plan.sources) {
    if (!source.scaling) continue;
    LADING_CHECK(source.code() || is_eight_bit_float(source.dtype));
    LADING_CHECK(plan.sources.has(source.scaling->scales));
  }
  // What the file has scales for is loaded with them, or the model has the scales itself.
  for (const plan::Statement& s : plan.statements) {
    if (s.provenance != Provenance::kFile || is_eight_bit_float(s.storage) || bits(s.storage) < 16) continue;
    for (const std::string& key : s.expression.keys()) {
      const auto source = std::find_if(plan.sources.begin(), plan.sources.end(),
                                       [&](const plan::Source& one) { return one.key == key; });
      if (source == plan.sources.end() || source->scaling) continue;
      const bool is_cast = class_of(source->dtype) != DTypeClass::kFloat && class_of(s.storage) == DTypeClass::kFloat;
      LADING_CHECK(!is_cast || beside.contains(key));  // codes are no numbers
      if (!is_eight_bit_float(source->dtype)) continue;
      const std::string module = key.substr(0, key.find('.'));
      for (const char* name : {".weight_scale_inv", ".weight_scale"}) {
        const std::string scales = module + name;
        if (key != module + ".weight" || world.catalog.find(scales) == nullptr) continue;
        LADING_CHECK(plan.find(scales) != nullptr);
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const World world = WorldMaker(input).make();
  const auto skeleton = model::make_skeleton(world.tensors, {}, {});
  if (!skeleton) return 0;
  const planner::PlanInputs inputs{world.catalog, *skeleton, world.layout, world.mapping, world.policy};
  std::vector<std::uint64_t> ranks(world.layout.mesh.ranks());
  for (std::uint64_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] = rank;
  const auto plan = planner::make_plan(inputs, ranks);
  if (!plan) {
    LADING_CHECK(!plan.error().empty());
    for (const Error& error : plan.error()) LADING_CHECK(!error.text().empty());
    return 0;
  }
  const auto checked = checker::check_plan(*plan);
  LADING_CHECK(checked.has_value());
  check_promises(world, *plan);
  if (size % 4 != 0) return 0;  // the rest is slow, and rarely finds anything
  LADING_CHECK(plan::digest(*plan) == plan::digest(*planner::make_plan(inputs, {0})));
  LADING_CHECK(JsonDocument::parse(JsonBuffer::copy_of(plan::plan_json(*plan))).has_value());
  return 0;
}
