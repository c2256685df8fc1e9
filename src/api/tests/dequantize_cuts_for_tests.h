// For tests: quantized tensors under every cut, by themselves and as parts of fused ones. Which tensors: 8-bit floats
// in dequantize_test.cc, packed codes in dequantize_packed_test.cc.
#pragma once

#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "api/tests/dequantize_fixture_for_tests.h"
#include "api/tests/dequantize_packed_for_tests.h"

namespace lading::test {

// 2-D weights of up to 3 x 3 blocks, whole and ragged, each with a scheme of its own; tensors of the model under the
// names of the cuts that they get.
class DequantizeCutsFixture : public DequantizeFixture {
 protected:
  void SetUp() override {
    if (const char* const rounds = std::getenv("LADING_DEQUANTIZE_ROUNDS"))
      rounds_ = std::strtoull(rounds, nullptr, 10);
  }

  virtual void make_tensors(std::uint64_t seed) = 0;

  void add(PackedWeight weight, DType result) {
    checkpoint_.add(std::move(weight.tensor));
    weights_.emplace_back(std::move(weight.weight), result);
  }

  void expect_right_on_ranks(const std::string& wrong_key) {
    for (std::uint64_t round = 0; round < rounds_; ++round) {
      begin(100 + round);
      for (const char* kind : {"fsdp1", "flat", "flat3", "owner", "shard0", "shard1", "strided0", "strided1", "whole"})
        add_kind(kind);
      std::string ledger;
      const Digests128 wanted = load({}, &ledger);
      expect_verified(ledger, wrong_key);
      for (std::uint64_t ranks = 1; ranks <= 16; ++ranks) {
        layout::Layout layout;
        layout.mesh = layout::Mesh({{"x", ranks}});
        const Dims owners = ranks < 3 ? Dims{ranks - 1} : Dims{ranks / 2, ranks - 1};
        layout.rules = {placed("flat.*", {flat({0})}),
                        placed("flat3.*", {flat({0}, 3 * ranks)}),
                        placed("shard0.*", {Cut::shard({0}, 0)}),
                        placed("shard1.*", {Cut::shard({0}, 1)}),
                        placed("strided0.*", {strided({0}, 0, 2)}),
                        placed("strided1.*", {strided({0}, 1, 3)}),
                        placed("owner.*", {owner({0}, owners)})};
        place_in_flat_parameters(layout);
        EXPECT_EQ(load(layout, &ledger), wanted) << ranks << " ranks: a digest does not depend on the cut";
        if (ranks == 3 || ranks == 16) expect_verified(ledger, wrong_key);
      }
    }
  }

  void expect_right_on_two_axes(const std::string& wrong_key) {
    for (std::uint64_t round = 0; round < rounds_; ++round) {
      begin(200 + round);
      for (const char* kind : {"shard0shard1", "shard1shard0", "tpfsdp", "stridedfsdp", "turned", "tpflat", "stages"})
        add_kind(kind);
      std::string ledger;
      const Digests128 wanted = load({}, &ledger);
      for (std::uint64_t a = 2; a <= 8; ++a) {
        for (std::uint64_t b = 2; a * b <= 16; ++b) {
          layout::Layout layout;
          layout.mesh = layout::Mesh({{"a", a}, {"b", b}});
          layout.rules = {placed("shard0shard1.*", {Cut::shard({0}, 0), Cut::shard({1}, 1)}),
                          placed("shard1shard0.*", {Cut::shard({0}, 1), Cut::shard({1}, 0)}),
                          placed("tpfsdp.*", {Cut::shard({1}, 0), Cut::shard({0}, 0)}),
                          placed("stridedfsdp.*", {strided({1}, 0, 2), Cut::shard({0}, 0)}),
                          placed("turned.*", {Cut::shard({1, 0}, 0)}),
                          placed("tpflat.*", {Cut::shard({1}, 1), flat({0})}),
                          placed("stages.*", {owner({0}, {a - 1}), Cut::shard({1}, 1)})};
          EXPECT_EQ(load(layout, &ledger), wanted) << layout.mesh.text();
          if (a == 2 && b == 3) expect_verified(ledger, wrong_key);
        }
      }
    }
  }

 private:
  void begin(std::uint64_t seed) {
    checkpoint_ = {};
    model_.clear();
    weights_.clear();
    make_tensors(seed);
    write();
  }

  void add_kind(const std::string& kind) {
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const auto& [weight, result] = weights_[i];
      add_model(checkpoint_.model_tensor(kind + ".t" + std::to_string(i), result, weight));
    }
  }

  // FSDP1: all tensors of a dtype one behind the other, with gaps, in one buffer for each dtype.
  void place_in_flat_parameters(layout::Layout& layout) const {
    for (const DType dtype : kResults) {
      std::vector<std::pair<std::string, Cut>> members;
      std::uint64_t end = 0;
      for (std::size_t i = 0; i < weights_.size(); ++i) {
        if (weights_[i].second != dtype) continue;
        Cut cut{.kind = CutKind::kFlatGroup, .axes = {0}};
        cut.flat_parameter = "unit " + std::string(name(dtype));
        cut.group_offset_elems = end;
        end += count_of(checkpoint_.tensors()[i].shape) + i % 3;
        members.emplace_back("fsdp1.t" + std::to_string(i), cut);
      }
      for (auto& [name, cut] : members) {
        cut.group_elems = end;
        layout.rules.push_back(placed(name, {cut}));
      }
    }
  }

  std::uint64_t rounds_ = 1;
  std::vector<std::pair<mapping::Expression, DType>> weights_;  // of the checkpoint's tensors
};

// Tensors of the model that are made of several quantized ones, or of parts of them.
class DequantizeFusedFixture : public DequantizeFixture {
 protected:
  // Weights of `cols_` columns, and others.
  virtual void add(const std::string& name, const Dims& shape, const Dims& block) = 0;

  void add(const std::string& name, PackedWeight weight) {
    checkpoint_.add(std::move(weight.tensor));
    leaves_.emplace(name, std::move(weight.weight));
  }

  void expect_right(const std::string& wrong_key, const std::string& other_wrong_key) {
    make_tensors();
    for (const char* kind : {"flat", "owner", "shard0", "shard1", "strided0", "tp", "tpflat"}) add_kind(kind, 1);
    add_kind("shard2", 3);
    std::string ledger;
    const Digests128 wanted = load({}, &ledger);
    expect_verified(ledger, wrong_key);
    for (std::uint64_t a = 1; a <= 4; ++a) {
      for (std::uint64_t b = 1; a * b <= 12; ++b) {
        layout::Layout layout;
        layout.mesh = layout::Mesh({{"a", a}, {"b", b}});
        layout.rules = {placed("flat.*", {flat({0, 1})}),
                        placed("owner.*", {owner({1}, {b - 1}), Cut::shard({0}, 0)}),
                        placed("shard0.*", {Cut::shard({0, 1}, 0)}),
                        placed("shard1.*", {Cut::shard({0, 1}, 1)}),
                        placed("shard2.*", {Cut::shard({0, 1}, 2)}),
                        placed("strided0.*", {strided({0, 1}, 0, 3)}),
                        placed("tp.*", {Cut::shard({1}, 1), Cut::shard({0}, 0)}),
                        placed("tpflat.*", {Cut::shard({1}, 0), flat({0})})};
        EXPECT_EQ(load(layout, &ledger), wanted) << layout.mesh.text();
        if (a == 3 && b == 2) expect_verified(ledger, other_wrong_key);
      }
    }
  }

  std::mt19937_64 random_{3};
  std::uint64_t cols_ = 7;

 private:
  void make_tensors() {
    add("gate", {11, cols_}, {4, 3});
    add("up", {10, cols_}, {4, 3});
    add("down", {cols_, 11}, {cols_, 11});
    for (const char* expert : {"e0", "e1", "e2"}) add(expert, {9, 8}, {4, 3});
    for (const char* expert : {"f0", "f1", "f2"}) add(expert, {9, 8}, {1, 8});
    add("stacked", {3, 9, 8}, {1, 4, 3});
    add("per_expert", {3, 9, 8}, {1, 9, 8});
    add("rows", {3, 9, 8}, {2, 5, 8});
    FileTensor plain;
    plain.key = "plain";
    plain.dtype = DType::kBF16;
    plain.shape = {5, cols_};
    for (std::uint64_t i = 0; i < 5 * cols_; ++i) append_code(plain.bytes, 0x3F00 + 19 * i, plain.dtype);
    mapping::Expression leaf = Checkpoint::leaf(plain);
    add("plain", {std::move(plain), std::move(leaf)});
    write();
  }

  [[nodiscard]] mapping::Expression leaf(const std::string& name) const { return leaves_.at(name); }

  [[nodiscard]] std::vector<std::pair<std::string, mapping::Expression>> expressions() const {
    const auto turned = [&](const std::string& name) { return mapping::Expression::permute(leaf(name), {1, 0}); };
    const mapping::Expression w1 = mapping::Expression::stack(0, {leaf("e0"), leaf("e1"), leaf("e2")});
    const mapping::Expression w3 = mapping::Expression::stack(0, {leaf("f0"), leaf("f1"), leaf("f2")});
    const mapping::Expression half = mapping::Expression::slice(leaf("gate"), 0, 3, 10);
    return {{"concat0", mapping::Expression::concat(0, {leaf("gate"), leaf("up")})},
            {"concat1", mapping::Expression::concat(1, {turned("gate"), turned("up")})},
            {"experts", mapping::Expression::concat(1, {w1, w3})},
            {"experts_turned", mapping::Expression::permute(mapping::Expression::concat(1, {w3, w1}), {0, 2, 1})},
            {"last_stack", mapping::Expression::stack(2, {leaf("e2"), leaf("f1")})},
            {"sliced", mapping::Expression::slice(half, 1, 2, 6)},
            {"slices",
             mapping::Expression::concat(0, {mapping::Expression::slice(leaf("up"), 0, 2, 3), half, leaf("plain")})},
            {"rope", mapping::Expression::rearrange(leaf("e0"), 0, {3, 3}, {1, 0})},
            {"reshaped", mapping::Expression::reshape(leaf("down"), Shape{11, cols_})},
            {"padded", mapping::Expression::pad(leaf("gate"), 0, 16, 0.5)},
            {"mixed", mapping::Expression::concat(0, {leaf("plain"), leaf("gate"), leaf("plain")})},
            {"twice", mapping::Expression::stack(0, {leaf("up"), leaf("up")})},
            {"stacked", leaf("stacked")},
            {"per_expert", mapping::Expression::permute(leaf("per_expert"), {1, 0, 2})},
            {"rows", mapping::Expression::concat(2, {leaf("rows"), leaf("stacked")})},
            {"one", mapping::Expression::reshape(mapping::Expression::slice(leaf("stacked"), 0, 1, 2), Shape{9, 8})}};
  }

  // What is made of a plain key too keeps that one's dtype.
  void add_kind(const std::string& kind, std::size_t least_rank) {
    std::size_t i = kind.size();
    for (const auto& [name, expression] : expressions()) {
      const bool has_plain = name == "mixed" || name == "slices";
      const DType result = has_plain ? DType::kBF16 : kResults[i++ % kResults.size()];
      auto tensor = checkpoint_.model_tensor(kind + "." + name, result, expression);
      if (tensor.shape.size() >= least_rank) add_model(std::move(tensor));
    }
  }

  std::map<std::string, mapping::Expression> leaves_;
};

}  // namespace lading::test
