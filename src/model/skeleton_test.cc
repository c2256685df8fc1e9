#include "model/skeleton.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace lading::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Tensor parameter(std::string name, Shape shape = {2, 3}) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.shape = std::move(shape);
  return tensor;
}

Tensor of_kind(std::string name, Kind kind) {
  Tensor tensor = parameter(std::move(name));
  tensor.kind = kind;
  return tensor;
}

using Classes = std::vector<std::vector<std::string>>;

Errors problems(std::vector<Tensor> tensors, Classes ties = {}, std::vector<Pin> pins = {}) {
  auto skeleton = make_skeleton(std::move(tensors), std::move(ties), std::move(pins));
  return skeleton ? Errors() : std::move(skeleton).error();
}

std::string only_problem(Tensor tensor) {
  const Errors errors = problems({std::move(tensor)});
  if (errors.size() != 1) return "problems: " + std::to_string(errors.size());
  EXPECT_EQ(errors.front().code, Code::kSkeleton);
  return errors.front().message;
}

TEST(Skeleton, FindsByNameAfterSorting) {
  const auto skeleton = make_skeleton({parameter("b"), parameter("a.z"), parameter("a"), parameter("a.b")}, {}, {});
  ASSERT_TRUE(skeleton);
  std::vector<std::string> names;
  for (const Tensor& tensor : skeleton->tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("a", "a.b", "a.z", "b"));
  for (const std::string& name : names) {
    ASSERT_NE(skeleton->find(name), nullptr);
    EXPECT_EQ(skeleton->find(name)->name, name);
  }
  for (const char* name : {"", "a.", "a.c", "c", "A"}) EXPECT_EQ(skeleton->find(name), nullptr) << name;
}

TEST(Skeleton, AnEmptyOneIsASkeleton) {
  const auto skeleton = make_skeleton({}, {}, {});
  ASSERT_TRUE(skeleton);
  EXPECT_EQ(skeleton->find("a"), nullptr);
  EXPECT_THAT(skeleton->frozen_subtrees(), IsEmpty());
}

TEST(Skeleton, R9_ANameTwiceIsRefused) {
  const Errors errors = problems({parameter("a"), parameter("b"), parameter("a"), parameter("a")});
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors.front().tensor, "a");
  EXPECT_EQ(errors.front().rule, "R9");
}

TEST(Skeleton, AllProblemsAtOnce) {
  Tensor bad_row = parameter("row");
  bad_row.init = Recipe{.kind = RecipeKind::kNormal, .zero_row = 2};
  const Errors errors = problems({parameter("a"), parameter("a"), bad_row, parameter("b", {9})},
                                 {{"a", "b"}, {"a", "x"}, {"a"}}, {{.pattern = "norm..weight"}});
  EXPECT_EQ(errors.size(), 6U);  // twice, row, shape, unknown, one name, pin
}

TEST(Skeleton, R49_TiesOverlappingClassesAreJoined) {
  const auto skeleton =
      make_skeleton({parameter("a"), parameter("b"), parameter("c"), parameter("d"), parameter("e"), parameter("f")},
                    {{"e", "d"}, {"c", "b"}, {"b", "e", "e"}, {"f", "a"}}, {});
  ASSERT_TRUE(skeleton);
  EXPECT_THAT(skeleton->tie_classes, ElementsAre(ElementsAre("a", "f"), ElementsAre("b", "c", "d", "e")));
  EXPECT_EQ(skeleton->find("f")->tie_class, 0U);
  for (const char* name : {"b", "c", "d", "e"}) EXPECT_EQ(skeleton->find(name)->tie_class, 1U) << name;
}

TEST(Skeleton, TiesOfTheInputAreNotBelieved) {
  Tensor tensor = parameter("a");
  tensor.tie_class = 7;
  const auto skeleton = make_skeleton({tensor}, {}, {});
  ASSERT_TRUE(skeleton);
  EXPECT_EQ(skeleton->find("a")->tie_class, std::nullopt);
}

TEST(Skeleton, R49_TiesThatCannotBe) {
  EXPECT_EQ(problems({parameter("a")}, {{"a"}}).size(), 1U);
  EXPECT_EQ(problems({parameter("a")}, {{"a", "a"}}).size(), 1U) << "one name, written twice";
  EXPECT_EQ(problems({parameter("a")}, {Classes::value_type{}}).size(), 1U);
  const Errors unknown = problems({parameter("a")}, {{"a", "b"}});
  ASSERT_EQ(unknown.size(), 1U);
  EXPECT_EQ(unknown.front().tensor, "b");
  const Errors shape = problems({parameter("a"), parameter("b", {3, 2})}, {{"a", "b"}});
  ASSERT_EQ(shape.size(), 1U);
  EXPECT_EQ(shape.front().expected, "[2, 3]");
  EXPECT_EQ(shape.front().found, "[3, 2]");
}

TEST(Skeleton, R31_TiesOfUnlikeDtypeAreRefused) {
  Tensor head = parameter("head");
  head.dtype = DType::kBF16;
  const Errors errors = problems({parameter("embed"), head}, {{"embed", "head"}});
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().rule, "R31");
}

TEST(Skeleton, R49_ANonPersistentBufferIsNotAParameter) {
  const Errors errors = problems({parameter("a"), of_kind("b", Kind::kNonPersistentBuffer)}, {{"a", "b"}});
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().tensor, "b");
  // Also where only the union of two classes says so.
  EXPECT_EQ(problems({parameter("a"), of_kind("b", Kind::kBuffer), of_kind("c", Kind::kNonPersistentBuffer)},
                     {{"a", "b"}, {"b", "c"}})
                .size(),
            1U);
  // LSTM's _flat_weights are attributes that are parameters.
  EXPECT_TRUE(make_skeleton({parameter("a"), of_kind("b", Kind::kAttribute)}, {{"a", "b"}}, {}));
  EXPECT_TRUE(make_skeleton({of_kind("a", Kind::kNonPersistentBuffer), of_kind("b", Kind::kNonPersistentBuffer)},
                            {{"a", "b"}}, {}));
}

TEST(Skeleton, NamesWithEmptyComponents) {
  for (const char* name : {"", ".", ".a", "a.", "a..b"}) {
    EXPECT_THAT(only_problem(parameter(name)), HasSubstr("empty component")) << name;
  }
}

TEST(Skeleton, ShapesThatNoMemoryHolds) {
  EXPECT_THAT(only_problem(parameter("a", {1ULL << 62, 4})), HasSubstr("does not fit into any memory"));
  Tensor packed = parameter("a", {3});
  packed.dtype = DType::kF4;
  EXPECT_THAT(only_problem(packed), HasSubstr("does not fit into any memory"));
  packed.shape = Shape{4};
  EXPECT_TRUE(make_skeleton({packed}, {}, {}));
}

TEST(Skeleton, R61_IntegersHaveNoGradient) {
  Tensor tensor = parameter("a");
  tensor.requires_grad = true;
  EXPECT_TRUE(make_skeleton({tensor}, {}, {}));
  tensor.dtype = DType::kI64;
  EXPECT_THAT(only_problem(tensor), HasSubstr("gradient"));
}

TEST(Skeleton, R34_DevicesNeedAnIndex) {
  Tensor tensor = parameter("a");
  tensor.presence = Presence::kReal;
  for (const char* device : {"cpu", "cuda:0", "cuda:15", "xpu:1"}) {
    tensor.device = device;
    EXPECT_TRUE(make_skeleton({tensor}, {}, {})) << device;
  }
  for (const char* device : {"", "cuda", "cuda:", "cuda:x", "cuda:-1", "CUDA:0", "meta", ":0", "cuda:0 "}) {
    tensor.device = device;
    EXPECT_EQ(problems({tensor}).size(), 1U) << device;
    EXPECT_EQ(problems({tensor}).front().rule, "R34") << device;
  }
  tensor.presence = Presence::kMeta;
  tensor.device = "cpu";
  EXPECT_THAT(only_problem(tensor), HasSubstr("on meta"));
}

TEST(Skeleton, R20_TheZeroRowIsARow) {
  Tensor tensor = parameter("a", {10, 4});
  tensor.init = Recipe{.kind = RecipeKind::kNormal, .zero_row = 9};
  EXPECT_TRUE(make_skeleton({tensor}, {}, {}));
  tensor.init->zero_row = 10;
  EXPECT_THAT(only_problem(tensor), HasSubstr("outside"));
  tensor.shape = Shape{};
  tensor.init->zero_row = 0;
  EXPECT_THAT(only_problem(tensor), HasSubstr("outside"));
  tensor.shape = Shape{10, 4};
  tensor.init->kind = RecipeKind::kHost;
  EXPECT_THAT(only_problem(tensor), HasSubstr("supplies its whole value"));
}

TEST(Skeleton, R13_RecipesThatMakeNoSense) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](Recipe recipe) {
    Tensor tensor = parameter("a");
    tensor.init = std::move(recipe);
    return problems({tensor}).size();
  };
  EXPECT_EQ(refused({.kind = RecipeKind::kNormal, .std = 0}), 0U);
  EXPECT_EQ(refused({.kind = RecipeKind::kNormal, .std = -1}), 1U);
  EXPECT_EQ(refused({.kind = RecipeKind::kNormal, .std = nan}), 1U);
  EXPECT_EQ(refused({.kind = RecipeKind::kNormal, .mean = inf}), 1U);
  EXPECT_EQ(refused({.kind = RecipeKind::kUniform, .low = 1, .high = 1}), 0U);
  EXPECT_EQ(refused({.kind = RecipeKind::kUniform, .low = 2, .high = 1}), 1U);
  EXPECT_EQ(refused({.kind = RecipeKind::kUniform, .low = -inf, .high = 1}), 1U);
  EXPECT_EQ(refused({.kind = RecipeKind::kTruncatedNormal, .low = -2, .high = 2}), 0U);
  EXPECT_EQ(refused({.kind = RecipeKind::kTruncatedNormal, .low = 0, .high = inf}), 0U);
  EXPECT_EQ(refused({.kind = RecipeKind::kTruncatedNormal, .low = 2, .high = 2}), 1U);
  EXPECT_EQ(refused({.kind = RecipeKind::kTruncatedNormal, .low = nan, .high = 2}), 1U);
}

TEST(Skeleton, R13_RandomIntegersAreRefused) {
  Tensor tensor = parameter("a");
  tensor.dtype = DType::kI64;
  tensor.init = Recipe{.kind = RecipeKind::kUniform, .high = 1};
  EXPECT_THAT(only_problem(tensor), HasSubstr("not a floating dtype"));
  tensor.init = Recipe{.kind = RecipeKind::kFill, .value = 3};
  EXPECT_TRUE(make_skeleton({tensor}, {}, {}));
}

TEST(Skeleton, R33_InfinitiesAreLegalFills) {
  Tensor tensor = parameter("input_max", {});
  tensor.init = Recipe{.kind = RecipeKind::kFill, .value = std::numeric_limits<double>::infinity()};
  EXPECT_TRUE(make_skeleton({tensor}, {}, {}));
}

TEST(Skeleton, R29_DerivationsAreNotRandom) {
  Tensor tensor = of_kind("inv_freq", Kind::kNonPersistentBuffer);
  tensor.derivation = Recipe{.kind = RecipeKind::kHost};
  EXPECT_TRUE(make_skeleton({tensor}, {}, {}));
  tensor.derivation = Recipe{.kind = RecipeKind::kNormal};
  EXPECT_THAT(only_problem(tensor), HasSubstr("is random"));
}

TEST(Skeleton, R29_ADeclaredDtypeNeedsADerivationAndMemory) {
  Tensor tensor = of_kind("inv_freq", Kind::kNonPersistentBuffer);
  tensor.dtype = DType::kBF16;
  tensor.declared_dtype = DType::kF32;
  tensor.presence = Presence::kReal;
  tensor.device = "cpu";
  EXPECT_THAT(only_problem(tensor), HasSubstr("but no derivation"));
  tensor.derivation = Recipe{.kind = RecipeKind::kHost};
  EXPECT_TRUE(make_skeleton({tensor}, {}, {}));
  tensor.presence = Presence::kMeta;
  tensor.device = "";
  EXPECT_THAT(only_problem(tensor), HasSubstr("but no memory"));
}

TEST(Skeleton, R66_CallsNeedInputsThatAreThere) {
  Tensor head = parameter("head");
  head.init = Recipe{.kind = RecipeKind::kCall};
  EXPECT_THAT(only_problem(head), HasSubstr("without inputs"));
  head.init->inputs = {"t2d"};
  EXPECT_THAT(only_problem(head), HasSubstr("\"t2d\", which the skeleton does not have"));
  head.init->inputs = {"head"};
  EXPECT_THAT(only_problem(head), HasSubstr("from itself"));
  head.init->inputs = {"t2d"};
  EXPECT_TRUE(make_skeleton({head, of_kind("t2d", Kind::kBuffer)}, {}, {}));
}

}  // namespace
}  // namespace lading::model
