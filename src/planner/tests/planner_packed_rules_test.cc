// Weights that a checkpoint holds as packed codes (R48): what mappings, policies and the account of keys make of them.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "planner/quantized/packed_weights.h"
#include "planner/tests/packed_worlds_for_tests.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words
using mapping::Expression;

TEST(PlannerPacked, R48_AModelThatComputesWithThePartsKeepsThem) {
  for (const auto& [scheme, world] : all_schemes()) {
    World parts = world;
    parts.tensors.clear();
    for (const Key& of : world.keys) parts.tensors.push_back(param(of.name, of.shape, of.dtype));
    const auto plan = parts.plan();
    ASSERT_TRUE(plan) << scheme << ": " << all_text(plan.error());
    for (const Source& source : plan->sources) EXPECT_FALSE(source.scaling) << scheme << ": " << source.key;
    parts.policy.quantized = policy::Quantized::kKeep;
    EXPECT_EQ(verdict(parts), "accepted") << scheme;
  }
}

TEST(PlannerPacked, R48_KeepNeverDequantizes) {
  for (const auto& [scheme, world] : all_schemes()) {
    World kept = world;
    kept.policy.quantized = policy::Quantized::kKeep;
    EXPECT_NE(verdict(kept), "accepted") << scheme;
    kept.policy.unexpected = policy::Strictness::kReport;
    kept.policy.allow_missing = {"*"};
    kept.policy.allow_mismatch = {"*"};
    kept.policy.cast = policy::Cast::kExact;
    const auto plan = kept.plan();
    if (!plan) continue;
    EXPECT_NE(plan->find(world.tensors.front().name)->provenance, Provenance::kFile) << scheme;
  }
}

// Rules speak of the names that the checkpoint would have if it were not quantized.
TEST(PlannerPacked, R43_RulesOverWeightsThatNoFileHas) {
  for (const auto& [scheme, world] : all_schemes()) {
    const std::string name = world.tensors.front().name;
    World renamed = world;
    renamed.tensors.front().name = "y";
    renamed.mapping.rules = {mapping::Rule::rename("one", name, "y")};
    EXPECT_EQ(source_of(renamed, "y").substr(0, 4), "file") << scheme;
    renamed.tensors.front().name = "model." + name;
    renamed.mapping.rules = {mapping::Rule::rename_pattern("all", R"((.*))", R"(model.\1)")};
    EXPECT_EQ(source_of(renamed, "model." + name).substr(0, 4), "file") << scheme;
    World turned = world;
    turned.tensors.front().name = "y";
    std::vector<std::uint64_t> dims(world.tensors.front().shape.begin(), world.tensors.front().shape.end());
    std::reverse(dims.begin(), dims.end());
    turned.tensors.front().shape = Shape(dims);
    std::vector<std::size_t> order;
    for (std::size_t d = dims.size(); d-- > 0;) order.push_back(d);
    turned.build("y", Expression::permute(Expression::source(name), order));
    EXPECT_EQ(verdict(turned), "accepted") << scheme;
    turned.mesh({{"x", 3}}).place("y", {shard(0, 0)});
    EXPECT_EQ(verdict(turned), "accepted") << scheme;
  }
}

TEST(PlannerPacked, R43_AStackOverExperts) {
  for (auto& [scheme, world] : all_schemes()) {
    if (scheme == "mxfp4") continue;
    World experts = world;
    experts.keys.clear();
    for (const char* e : {"experts.0", "experts.1", "experts.2"}) {
      for (Key of : world.keys) {
        of.name.replace(0, 1, e);
        experts.keys.push_back(of);
      }
    }
    experts.tensors = {param("experts", {3, 16, 64}, DType::kBF16)};
    mapping::ExpressionTemplate each;
    each.key = *mapping::NameTemplate::parse("experts.{e}.weight");
    mapping::ExpressionTemplate all;
    all.form = mapping::Form::kStackOver;
    all.over = "e";
    all.parts = {each};
    experts.mapping.rules = {mapping::Rule::build("stack", "experts", all)};
    experts.mesh({{"x", 2}}).place("*", {shard(0, 1)});
    const auto plan = experts.plan();
    ASSERT_TRUE(plan) << scheme << ": " << all_text(plan.error());
    EXPECT_EQ(plan->find("experts")->expression.keys().size(), 3 * (leaf_of(*plan, "experts").keys().size()));
  }
}

TEST(PlannerPacked, R43_ARenamedModuleThatComputesWithThePartsKeepsThem) {
  for (const auto& [scheme, world] : all_schemes()) {
    World parts = world;
    parts.tensors.clear();
    for (const Key& of : world.keys) parts.tensors.push_back(param("model." + of.name, of.shape, of.dtype));
    parts.mapping.rules = {mapping::Rule::rename_pattern("all", R"((.*))", R"(model.\1)")};
    const auto plan = parts.plan();
    ASSERT_TRUE(plan) << scheme << ": " << all_text(plan.error());
    for (const Source& source : plan->sources) EXPECT_FALSE(source.scaling) << scheme << ": " << source.key;
  }
}

TEST(PlannerPacked, R50_TiedWeightsThatAreBothPacked) {
  World world = gptq_world();
  const std::vector<Key> keys = world.keys;
  for (Key of : keys) {
    of.name.replace(0, 1, "z");
    world.keys.push_back(of);
  }
  world.tensors.push_back(param("z.weight", {16, 64}, DType::kF16));
  world.ties = {{"x.weight", "z.weight"}};
  world.mesh({{"x", 3}}).place("*", {shard(0, 0)});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << all_text(plan.error());
  EXPECT_EQ(plan->ranks.front().scale_reads.size(), 2U);
}

TEST(PlannerPacked, R39_EveryKeyIsAccountedFor) {
  for (const auto& [scheme, world] : all_schemes()) {
    World more = world;
    more.keys.push_back({"x.bias", {16}});
    EXPECT_EQ(verdict(more), "R39 x.bias") << scheme;
    World nothing = world;
    nothing.tensors = {param("other", {2})};
    nothing.keys.push_back({"other", {2}});
    EXPECT_NE(verdict(nothing), "accepted") << scheme;
    nothing.policy.unexpected = policy::Strictness::kReport;
    const auto plan = nothing.plan();
    ASSERT_TRUE(plan) << scheme << ": " << all_text(plan.error());
    std::set<std::string> wanted;
    for (const Key& of : world.keys) wanted.insert(of.name);
    EXPECT_EQ(std::set<std::string>(plan->unexpected_keys.begin(), plan->unexpected_keys.end()), wanted) << scheme;
  }
}

// Which of the two is right nobody knows.
TEST(PlannerPacked, R39_AWeightThatIsThereTwiceIsRefused) {
  for (const auto& [scheme, world] : all_schemes()) {
    World twice = world;
    const Tensor& tensor = world.tensors.front();
    const bool has_name =
        std::any_of(world.keys.begin(), world.keys.end(), [&](const Key& of) { return of.name == tensor.name; });
    if (has_name) continue;
    twice.keys.push_back({tensor.name, tensor.shape, tensor.dtype});
    EXPECT_NE(verdict(twice), "accepted") << scheme;
  }
}

// Loops step over whole bytes of the source: of the transpose of codes of four bits, each byte's first codes are one
// transfer, and its second codes another.
TEST(PlannerPacked, R48_TransfersOfTransposedCodes) {
  World world = modelopt_world();
  key(world, "x.weight").shape = {2, 4};
  key(world, "x.weight_scale").shape = {2, 1};
  world.tensors = {param("y", {8, 2}, DType::kBF16)};
  world.build("y", Expression::permute(Expression::source("x.weight"), {1, 0}));
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << all_text(plan.error());
  std::vector<std::string> places(16);  // of y: which code of which byte
  std::set<int> first_codes;
  for (const Transfer& transfer : find(*plan, 0, "y")->transfers) {
    first_codes.insert(transfer.first_code);
    const std::uint64_t begin = plan->sources[transfer.source].bytes.begin;
    for (std::uint64_t i = 0; i < transfer.elems(); ++i) {
      std::uint64_t code = (transfer.source_begin_bytes - begin) * 2 + transfer.first_code + i % transfer.run_elems;
      std::uint64_t target = transfer.target_begin_bytes / 2 + i % transfer.run_elems;
      std::uint64_t rest = i / transfer.run_elems;
      for (std::size_t l = transfer.loops.size(); l-- > 0; rest /= transfer.loops[l].count) {
        code += rest % transfer.loops[l].count * transfer.loops[l].source_stride_bytes * 2;
        target += rest % transfer.loops[l].count * transfer.loops[l].target_stride_bytes / 2;
      }
      places.at(target) += std::to_string(code);
    }
  }
  EXPECT_EQ(first_codes, (std::set<int>{0, 1}));
  for (std::uint64_t i = 0; i < 16; ++i) EXPECT_EQ(places[i], std::to_string(i % 2 * 8 + i / 2)) << i;
}

}  // namespace
}  // namespace lading::planner
