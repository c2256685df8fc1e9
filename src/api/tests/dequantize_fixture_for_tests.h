// For tests: loads of a checkpoint of quantized tensors, each memory and digest compared with the oracle.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/tests/dequantize_world_for_tests.h"
#include "lading/load.h"
#include "lading/verify.h"
#include "support/temp_dir.h"

namespace lading::test {

using layout::Cut;
using layout::CutKind;

constexpr std::array kPayloads = {DType::kF8E4M3, DType::kF8E5M2, DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz};
constexpr std::array kScales = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0};
constexpr std::array kResults = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64};

/// By name: the digests of all parts, each part once, added up lane by lane.
using Digests128 = std::map<std::string, std::pair<std::uint64_t, std::uint64_t>>;

inline layout::PlacementRule placed(const std::string& pattern, std::vector<Cut> cuts) {
  layout::PlacementRule rule{pattern, {}};
  rule.placement.slots.front().cuts = std::move(cuts);
  return rule;
}

inline Cut strided(std::vector<std::size_t> axes, std::size_t dim, std::uint64_t split_factor) {
  return {.kind = CutKind::kStridedShard, .axes = std::move(axes), .dim = dim, .split_factor = split_factor};
}
inline Cut flat(std::vector<std::size_t> axes, std::uint64_t pad_multiple = 0) {
  return {.kind = CutKind::kFlat, .axes = std::move(axes), .pad_multiple = pad_multiple};
}
inline Cut owner(std::vector<std::size_t> axes, std::vector<std::uint64_t> owners) {
  return {.kind = CutKind::kOwner, .axes = std::move(axes), .owners = std::move(owners)};
}

class DequantizeFixture : public ::testing::Test {
 protected:
  void write(const std::string& wrong_key = "") { dir_.write("ckpt/model.safetensors", checkpoint_.file(wrong_key)); }

  void add_model(ModelTensor tensor) { model_.emplace(tensor.name, std::move(tensor)); }

  [[nodiscard]] LoadRequest request(const layout::Layout& layout) const {
    LoadRequest request;
    request.plan.checkpoint.path = dir_.path("ckpt");
    model::Skeleton skeleton;
    mapping::Mapping mapping;
    for (const auto& [name, tensor] : model_) {
      model::Tensor made;
      made.name = name;
      made.shape = Shape(tensor.shape);
      made.dtype = tensor.dtype;
      skeleton.tensors.push_back(std::move(made));
      if (!by_config_) mapping.rules.push_back(mapping::Rule::build_one("build " + name, name, tensor.expression));
    }
    request.plan.skeleton = std::move(skeleton);
    if (!by_config_) request.plan.mapping = std::move(mapping);
    request.plan.layout = layout;
    request.plan.policy = policy_;
    request.plan.ranks.reset();
    request.poison = PoisonFirst::kYes;
    request.threads = 2;
    return request;
  }

  // Loads on all ranks, compares each byte of each memory with the oracle, and returns the digests.
  Digests128 load(const layout::Layout& layout, std::string* ledger = nullptr) {
    Digests128 digests;
    const auto report = materialize(request(layout));
    if (!report) {
      ADD_FAILURE() << layout.mesh.text() << ": " << report.error().problems.front().text();
      return digests;
    }
    std::size_t wrong = 0;
    std::map<std::pair<std::uint64_t, std::string>, bool> seen;
    for (const LoadedTensor& loaded : report->tensors) {
      const DestinationInfo& at = loaded.destination;
      const ModelTensor& tensor = model_.at(at.name);
      const auto& cuts = layout.placement_of(at.name).slots.front().cuts;
      const Held held = HeldElements(tensor.shape, layout.mesh, at.rank).after(cuts);
      seen[{at.rank, at.name}] = true;
      if (!is_right(loaded, tensor, held) && ++wrong <= 5) {
        ADD_FAILURE() << tensor.expression.text() << " of " << name(tensor.dtype) << " as " << at.name << " on rank "
                      << at.rank << " of " << layout.mesh.text() << ": " << first_difference(loaded, tensor, held);
      }
      if (at.replicas->front() != at.rank) continue;
      auto& [low, high] = digests[at.name];
      low += std::stoull(loaded.digest.substr(0, 16), nullptr, 16);
      high += std::stoull(loaded.digest.substr(16), nullptr, 16);
    }
    check_presence(layout, seen);
    if (ledger != nullptr) *ledger = ledger_json(*report);
    return digests;
  }

  Verification verify_ledger(const std::string& ledger) {
    VerifyRequest request;
    request.checkpoint.path = dir_.path("ckpt");
    request.ledgers = {Document::text(ledger)};
    request.threads = 1;
    auto found = verify(request);
    if (found) return *std::move(found);
    ADD_FAILURE() << found.error().problems.front().text();
    return {};
  }

  // Memory and file agree, and with a wrong scale in the file the tensors that are made of it do not.
  void expect_verified(const std::string& ledger, const std::string& wrong_key) {
    const Verification good = verify_ledger(ledger);
    EXPECT_TRUE(good.differences.empty()) << good.differences.front().text();
    EXPECT_EQ(good.tensors_verified, model_.size());
    write(wrong_key);
    const Verification bad = verify_ledger(ledger);
    std::set<std::string> differ;
    for (const Error& error : bad.differences) {
      EXPECT_EQ(error.code, Code::kValuesDiffer) << error.text();
      differ.insert(error.tensor.value_or(""));
    }
    std::set<std::string> wanted;
    for (const auto& [name, tensor] : model_) {
      const auto keys = tensor.expression.keys();
      if (std::find(keys.begin(), keys.end(), wrong_key) != keys.end()) wanted.insert(name);
    }
    EXPECT_EQ(differ, wanted);
    write();
  }

  TempDir dir_;
  Checkpoint checkpoint_;
  std::map<std::string, ModelTensor> model_;
  policy::Policy policy_;
  bool by_config_ = false;

 private:
  static bool is_right(const LoadedTensor& loaded, const ModelTensor& tensor, const Held& held) {
    return first_difference(loaded, tensor, held).empty();
  }

  static std::string first_difference(const LoadedTensor& loaded, const ModelTensor& tensor, const Held& held) {
    const std::uint64_t width = bits(tensor.dtype) / 8;
    if (!held.present) return "it should not be there";
    if (loaded.memory.size() != held.memory_elems * width)
      return "a memory of " + std::to_string(loaded.memory.size()) + " bytes";
    const char* const memory = reinterpret_cast<const char*>(loaded.memory.data());
    for (std::uint64_t i = 0; i < held.elems.size(); ++i) {
      const std::uint64_t wanted = code_at(tensor.bytes.data(), held.elems[i], tensor.dtype);
      const std::uint64_t found = code_at(memory, held.begin + i, tensor.dtype);
      if (wanted != found) {
        return "element " + std::to_string(held.elems[i]) + " is code " + std::to_string(found) + ", not " +
               std::to_string(wanted);
      }
    }
    for (std::uint64_t i = held.elems.size(); held.pads_with_zeros && i < held.memory_elems; ++i) {
      if (code_at(memory, i, tensor.dtype) != 0) return "the padding is not zero";
    }
    return {};
  }

  void check_presence(const layout::Layout& layout, const std::map<std::pair<std::uint64_t, std::string>, bool>& seen) {
    for (const auto& [name, tensor] : model_) {
      const auto& cuts = layout.placement_of(name).slots.front().cuts;
      for (std::uint64_t rank = 0; rank < layout.mesh.ranks(); ++rank) {
        const Held held = HeldElements(tensor.shape, layout.mesh, rank).after(cuts);
        EXPECT_EQ(seen.contains({rank, name}), held.present)
            << name << " on rank " << rank << " of " << layout.mesh.text();
      }
    }
  }
};

}  // namespace lading::test
