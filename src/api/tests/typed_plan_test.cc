// Skeleton, layout, mapping and policy as C++ types: the same plan as from their documents, and as strict.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lading/load.h"
#include "lading/plan.h"
#include "lading/verify.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

using mapping::Expression;
using mapping::Rule;
using ::testing::HasSubstr;

model::Tensor parameter(std::string name, Shape shape) {
  model::Tensor tensor;
  tensor.name = std::move(name);
  tensor.shape = std::move(shape);
  return tensor;
}

// gate and up, [4, 2] each, are one tensor of the model, cut by rows over two ranks; bias is as in the file.
class TypedPlan : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string data(4 * 2 * 4 * 2 + 8, '\0');
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 37);
    dir_.write("model.safetensors",
               test::safetensors_bytes(R"({"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                       R"("gate":{"dtype":"F32","shape":[4,2],"data_offsets":[8,40]},)"
                                       R"("up":{"dtype":"F32","shape":[4,2],"data_offsets":[40,72]}})",
                                       data));
    request_.checkpoint.path = dir_.path();
    request_.ranks = std::nullopt;
    skeleton_.tensors = {parameter("gate_up", {8, 2}), parameter("bias", {2})};  // not sorted
    mapping_.rules = {Rule::build_one("fuse", "gate_up",
                                      Expression::concat(0, {Expression::source("gate"), Expression::source("up")}))};
    layout_.mesh = layout::Mesh({{"dp", 2}});
    layout::Placement rows;
    rows.slots = {{.name = "", .cuts = {layout::Cut::shard({0}, 0)}}};
    layout_.rules = {{"gate_up", rows}};
    policy_.seed = 7;
  }

  void give_values() {
    request_.skeleton = skeleton_;
    request_.mapping = mapping_;
    request_.layout = layout_;
    request_.policy = policy_;
  }

  std::string refusal() {
    const auto plan = make_plan(request_);
    if (plan) return "accepted";
    std::string text;
    for (const Error& error : plan.error().problems) text += error.text() + "\n";
    return text;
  }

  test::TempDir dir_;
  PlanRequest request_;
  model::Skeleton skeleton_;
  mapping::Mapping mapping_;
  layout::Layout layout_;
  policy::Policy policy_;
};

TEST_F(TypedPlan, IsThePlanOfTheDocuments) {
  give_values();
  const auto typed = make_plan(request_);
  ASSERT_TRUE(typed) << typed.error().problems.front().text();
  const auto made = model::make_skeleton(skeleton_.tensors, {}, {});
  ASSERT_TRUE(made);
  request_.skeleton = Document::text(to_json(*made));
  request_.mapping = Document::text(to_json(mapping_));
  request_.layout = Document::text(to_json(layout_).value());
  request_.policy = Document::text(to_json(policy_));
  const auto documented = make_plan(request_);
  ASSERT_TRUE(documented) << documented.error().problems.front().text();
  EXPECT_EQ(typed->digest, documented->digest);
  EXPECT_EQ(plan_json(*typed), plan_json(*documented));
  EXPECT_EQ(typed->ranks.size(), 2U);
}

TEST_F(TypedPlan, FillsTheShardsOfEachRank) {
  give_values();
  LoadRequest load;
  load.plan = request_;
  const auto report = materialize(load);
  ASSERT_TRUE(report) << report.error().problems.front().text();
  const auto expected = [](std::size_t begin, std::size_t size) {
    std::string bytes;
    for (std::size_t i = begin; i < begin + size; ++i) bytes += static_cast<char>(i * 37);
    return bytes;
  };
  std::size_t seen = 0;
  for (const LoadedTensor& tensor : report->tensors) {
    const std::string held(reinterpret_cast<const char*>(tensor.memory.data()), tensor.memory.size());
    if (tensor.destination.name == "bias") {
      EXPECT_EQ(held, expected(0, 8));
    } else {
      EXPECT_EQ(held, expected(tensor.destination.rank == 0 ? 8 : 40, 32)) << "rank " << tensor.destination.rank;
    }
    ++seen;
  }
  EXPECT_EQ(seen, 4U);
}

TEST_F(TypedPlan, ValuesAreCheckedAsDocumentsAre) {
  give_values();
  auto skeleton = skeleton_;
  skeleton.tensors.push_back(skeleton.tensors.front());
  request_.skeleton = skeleton;
  auto policy = policy_;
  policy.dtype = DType::kI8;
  request_.policy = policy;
  auto mapping = mapping_;
  mapping.rules.push_back(mapping.rules.front());
  mapping.rules.push_back(Rule::rename_pattern("bad", "(", "x"));
  request_.mapping = mapping;
  auto layout = layout_;
  layout.mesh = layout::Mesh({{"dp", 0}});
  request_.layout = layout;
  const std::string told = refusal();
  for (const char* part : {"gate_up", "dtype", "another rule has the same", "rule \"bad\"", "dp"}) {
    EXPECT_THAT(told, HasSubstr(part));
  }
}

TEST_F(TypedPlan, CutsThatNoDocumentCouldSayAreRefused) {
  give_values();
  auto layout = layout_;
  layout.rules[0].placement.slots[0].cuts[0].axes = {3};
  request_.layout = layout;
  EXPECT_THAT(refusal(), HasSubstr("gate_up")) << "an axis that the mesh does not have";
  layout = layout_;
  layout.rules[0].placement.slots[0].cuts[0].dim = 9;
  request_.layout = layout;
  EXPECT_THAT(refusal(), HasSubstr("gate_up")) << "a dim that it has not";
  layout = layout_;
  layout.rules[0].placement.slots.clear();
  request_.layout = layout;
  EXPECT_THAT(refusal(), HasSubstr("slots"));
  layout = layout_;
  layout.devices.type = layout::DeviceType::kCuda;
  layout.devices.per_node = 0;
  request_.layout = layout;
  EXPECT_THAT(refusal(), HasSubstr("R34"));
}

TEST_F(TypedPlan, ALayoutThatNoDocumentCouldSayIsNotWritten) {
  EXPECT_TRUE(to_json(layout_));
  auto layout = layout_;
  layout.rules[0].placement.slots[0].cuts[0].axes = {3};
  EXPECT_THAT(to_json(layout).error().front().text(), HasSubstr("axis"));
  layout = layout_;
  layout.rules[0].placement.slots.clear();
  EXPECT_THAT(to_json(layout).error().front().text(), HasSubstr("slots"));
  layout = layout_;
  layout.mesh = layout::Mesh({{"dp", 0}});
  EXPECT_FALSE(to_json(layout));
}

TEST_F(TypedPlan, ExpressionsThatNoDocumentCouldSayAreRefused) {
  give_values();
  const auto told = [&](const Expression& expression) {
    mapping::Mapping mapping;
    mapping.rules = {Rule::build_one("odd", "gate_up", expression)};
    request_.mapping = mapping;
    return refusal();
  };
  Expression none;
  none.op = mapping::Op::kConcat;
  EXPECT_THAT(told(none), HasSubstr("at least one part"));
  Expression two = Expression::slice(Expression::source("gate"), 0, 0, 1);
  two.parts.push_back(Expression::source("up"));
  EXPECT_THAT(told(two), HasSubstr("2 parts instead of one"));
  Expression source = Expression::source("gate");
  source.parts.push_back(Expression::source("up"));
  EXPECT_THAT(told(source), HasSubstr("a source must not have parts"));
  Expression deep = Expression::source("gate");
  for (int i = 0; i < 200; ++i) deep = Expression::slice(std::move(deep), 0, 0, 4);
  EXPECT_THAT(told(deep), HasSubstr("levels of JSON deep"));
  EXPECT_THAT(told(Expression::permute(Expression::source("gate"), {0, 0})), HasSubstr("gate_up"));
  EXPECT_THAT(told(Expression::rearrange(Expression::source("gate"), 0, {0, 4}, {1, 0})), HasSubstr("gate_up"));
}

// A document has one NaN. A plan of another one would say what no ledger can.
TEST_F(TypedPlan, R33_EveryNanIsTheSameOne) {
  const auto bytes_of = [&](double nan) {
    model::Tensor made = parameter("made", {2});
    made.init = model::Recipe{.kind = model::RecipeKind::kFill, .value = nan};
    give_values();
    auto skeleton = skeleton_;
    skeleton.tensors.push_back(made);
    request_.skeleton = skeleton;
    auto policy = policy_;
    policy.allow_missing = {"made"};
    request_.policy = policy;
    mapping::Mapping mapping = mapping_;
    mapping.rules[0] = Rule::build_one("fuse", "gate_up", Expression::pad(Expression::source("gate"), 0, 8, nan));
    mapping.rules.push_back(Rule::ignore_key("up", "up"));
    request_.mapping = mapping;
    LoadRequest load;
    load.plan = request_;
    const auto report = materialize(load);
    EXPECT_TRUE(report) << report.error().problems.front().text();
    std::string bytes;
    for (const LoadedTensor& tensor : report->tensors) {
      bytes.append(reinterpret_cast<const char*>(tensor.memory.data()), tensor.memory.size());
    }
    VerifyRequest verified;
    verified.checkpoint = request_.checkpoint;
    verified.ledgers = {Document::text(ledger_json(*report))};
    const auto found = verify(verified);
    EXPECT_TRUE(found);
    EXPECT_TRUE(found->differences.empty()) << found->differences.front().text();
    return bytes;
  };
  EXPECT_EQ(bytes_of(std::nan("")), bytes_of(-std::nan("0x123")));
}

TEST_F(TypedPlan, WhatNoDocumentCouldSayIsRefusedAndNotLoaded) {
  const auto told = [&](const model::Tensor& tensor) {
    give_values();
    auto skeleton = skeleton_;
    skeleton.tensors.push_back(tensor);
    request_.skeleton = skeleton;
    return refusal();
  };
  EXPECT_THAT(told(parameter("bad\xff", {2})), HasSubstr("UTF-8"));
  EXPECT_THAT(told(parameter("deep", Shape(std::vector<std::uint64_t>(65, 1)))), HasSubstr("too many dims"));
  model::Tensor odd = parameter("odd", {2});
  odd.dtype = static_cast<DType>(99);
  EXPECT_THAT(told(odd), HasSubstr("not a known enumerator"));
  give_values();
  auto layout = layout_;
  layout.rules[0].placement.slots[0].cuts[0].kind = static_cast<layout::CutKind>(99);
  request_.layout = layout;
  EXPECT_THAT(refusal(), HasSubstr("not a known enumerator"));
  give_values();
  request_.layout = layout::ByStrategy{.strategy = static_cast<layout::Strategy>(99)};
  EXPECT_THAT(refusal(), HasSubstr("not a known enumerator"));
}

TEST_F(TypedPlan, AnExpressionAtTheLimitIsVerifiedFromItsLedger) {
  give_values();
  Expression deep = Expression::concat(0, {Expression::source("gate"), Expression::source("up")});
  std::size_t levels = 0;
  for (;; ++levels) {
    Expression deeper = Expression::slice(deep, 0, 0, 8);
    request_.mapping = mapping::Mapping{{Rule::build_one("fuse", "gate_up", deeper)}};
    if (!make_plan(request_)) break;
    deep = std::move(deeper);
  }
  EXPECT_GT(levels, 20U);
  request_.mapping = mapping::Mapping{{Rule::build_one("fuse", "gate_up", deep)}};
  LoadRequest load;
  load.plan = request_;
  const auto report = materialize(load);
  ASSERT_TRUE(report) << report.error().problems.front().text();
  VerifyRequest verified;
  verified.checkpoint = request_.checkpoint;
  verified.ledgers = {Document::text(ledger_json(*report))};
  const auto found = verify(verified);
  ASSERT_TRUE(found) << found.error().problems.front().text();
  EXPECT_TRUE(found->differences.empty());
}

TEST_F(TypedPlan, R17_OwnersMustHoldTheBytesThatTheyRead) {
  give_values();
  LoadRequest load;
  load.plan = request_;
  const auto plan = make_plan(request_);
  ASSERT_TRUE(plan);
  for (const std::uint64_t owner : {std::uint64_t{999}, std::uint64_t{1}}) {
    load.owners.assign(destinations_of(*plan).size(), owner);
    load.receive = [](const LoadReport&) -> Result<void> { return {}; };
    const auto report = materialize(load);
    ASSERT_FALSE(report);
    EXPECT_THAT(report.error().problems.front().text(), HasSubstr("does not hold its bytes"));
    EXPECT_FALSE(report.error().begun);
  }
}

TEST(EmptyReports, AreRefusedWhereAnErrorCanSaySo) {
  const PlanReport none;
  EXPECT_EQ(explain(none, "a").error().problems.front().code, Code::kUsage);
  EXPECT_EQ(diff(none, Document::text("{}")).error().problems.front().code, Code::kUsage);
  EXPECT_EQ(sampled_contents(none).error().code, Code::kUsage);
  EXPECT_EQ(owners_of(none, {"a"}).error().code, Code::kUsage);
  EXPECT_EQ(load_plan({}, none).error().problems.front().code, Code::kUsage);
  EXPECT_EQ((Refusal{Stage::kCheckpoint, {}}).exit_code(), Exit::kCheckpoint);
  model::Skeleton stale;
  stale.tensors = {parameter("a", {2})};
  stale.tensors[0].tie_class = 77;
  EXPECT_EQ(stale.frozen_subtrees(), (std::vector<std::string>{""}));
}

}  // namespace
}  // namespace lading
