#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/skeleton.h"
#include "support/docs_for_tests.h"

namespace lading::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<Skeleton, Errors> parse(std::string_view json) {
  auto document = JsonDocument::parse(JsonBuffer::copy_of(json));
  if (!document) return fail(std::move(document).error());
  return parse_skeleton(*document);
}

std::vector<std::string> messages(std::string_view json) {
  const auto skeleton = parse(json);
  std::vector<std::string> texts;
  if (!skeleton) {
    for (const Error& error : skeleton.error()) texts.push_back(error.message);
  }
  return texts;
}

std::string with_tensor(std::string_view members) {
  return R"({"schema": "lading.skeleton/1", "tensors": [{"name": "a", "kind": "parameter", "shape": [4, 2], "dtype": "F32")" +
         std::string(members) + "}]}";
}

// Everything that a skeleton can say.
Skeleton everything() {
  std::vector<Tensor> tensors;
  const auto add = [&](std::string name, Kind kind) -> Tensor& {
    Tensor tensor;
    tensor.name = std::move(name);
    tensor.kind = kind;
    tensor.shape = Shape{4, 2};
    tensors.push_back(std::move(tensor));
    return tensors.back();
  };
  Tensor& embed = add("embed \"x\"\n\u65e5.weight", Kind::kParameter);
  embed.requires_grad = true;
  embed.init = Recipe{.kind = RecipeKind::kNormal, .mean = -0.0, .std = 0.02, .zero_row = 3};
  add("head.weight", Kind::kParameter).requires_grad = true;
  Tensor& adapter = add("lora_A", Kind::kParameter);
  adapter.adapter = true;
  adapter.init = Recipe{.kind = RecipeKind::kUniform, .low = -1.0 / 3, .high = 5e-324};
  Tensor& cut = add("cut", Kind::kParameter);
  cut.init = Recipe{.kind = RecipeKind::kTruncatedNormal,
                    .low = -std::numeric_limits<double>::infinity(),
                    .high = 1.7976931348623157e308,
                    .mean = 1e-9,
                    .std = 123456789.123};
  Tensor& clip = add("clip", Kind::kBuffer);
  clip.shape = Shape{};
  clip.init = Recipe{.kind = RecipeKind::kFill, .value = -std::numeric_limits<double>::infinity()};
  Tensor& rope = add("rope", Kind::kNonPersistentBuffer);
  rope.dtype = DType::kBF16;
  rope.presence = Presence::kReal;
  rope.device = "cuda:3";
  rope.declared_dtype = DType::kF32;
  rope.derivation = Recipe{.kind = RecipeKind::kHost};
  rope.data = std::vector<std::byte>(32, std::byte{0xa5});
  Tensor& called = add("called", Kind::kAttribute);
  called.presence = Presence::kEmpty;
  called.device = "cpu";
  called.init = Recipe{.kind = RecipeKind::kCall, .inputs = {"clip", "rope"}};
  add("blob._extra_state", Kind::kExtraState).dtype = DType::kU8;
  auto skeleton = make_skeleton(std::move(tensors), {{"head.weight", "embed \"x\"\n\u65e5.weight"}},
                                {{"norm", PinStrength::kFloat16}, {"A_log", PinStrength::kFloat16AndBFloat16}});
  EXPECT_TRUE(skeleton);
  return std::move(skeleton).value();
}

TEST(SkeletonJson, RoundTrip) {
  const Skeleton skeleton = everything();
  const std::string json = skeleton_json(skeleton);
  const auto again = parse(json);
  ASSERT_TRUE(again) << again.error().front().text();
  EXPECT_EQ(*again, skeleton);
  EXPECT_TRUE(std::signbit(again->find("embed \"x\"\n\u65e5.weight")->init->mean)) << "-0.0";
  EXPECT_EQ(skeleton_json(*again), json);
}

TEST(SkeletonJson, AnEmptyOneRoundTrips) {
  const auto skeleton = parse(skeleton_json(Skeleton{}));
  ASSERT_TRUE(skeleton);
  EXPECT_EQ(*skeleton, Skeleton{});
}

TEST(SkeletonJson, R33_NanIsAValue) {
  const auto skeleton = parse(with_tensor(R"(, "init": {"kind": "fill", "value": "nan"})"));
  ASSERT_TRUE(skeleton);
  EXPECT_TRUE(std::isnan(skeleton->tensors[0].init->value));
  EXPECT_THAT(skeleton_json(*skeleton), HasSubstr("\"value\": \"nan\""));
}

TEST(SkeletonJson, DefaultsAreWhatTheDocumentSays) {
  const auto skeleton = parse(with_tensor(""));
  ASSERT_TRUE(skeleton);
  Tensor expected;
  expected.name = "a";
  expected.shape = Shape{4, 2};
  EXPECT_EQ(skeleton->tensors.at(0), expected);
}

TEST(SkeletonJson, TheExampleInTheDocumentIsRead) {
  const std::string json = between(doc_text("schema/skeleton.md"), "```json\n", "```");
  const auto skeleton = parse(json);
  ASSERT_TRUE(skeleton) << json << skeleton.error().front().text();
  EXPECT_EQ(skeleton->find("lm_head.weight")->tie_class, skeleton->find("model.embed_tokens.weight")->tie_class);
  EXPECT_EQ(skeleton->find("model.embed_tokens.weight")->init->zero_row, 0U);
  EXPECT_EQ(skeleton->find("model.rotary_emb.inv_freq")->derivation->kind, RecipeKind::kHost);
  EXPECT_TRUE(std::isinf(skeleton->find("model.vision.input_max")->init->value));
  EXPECT_THAT(skeleton->frozen_subtrees(), ElementsAre("model.vision"));
  EXPECT_EQ(skeleton->pins.size(), 1U);
}

TEST(SkeletonJson, TheDocumentNamesEveryField) {
  const std::string doc = doc_text("schema/skeleton.md");
  for (const char* field :
       {"schema",        "tensors", "ties",     "pins",     "name",   "kind",       "shape",          "dtype",
        "requires_grad", "adapter", "presence", "assigned", "device", "derivation", "declared_dtype", "init",
        "data",          "value",   "low",      "high",     "mean",   "std",        "zero_row",       "inputs",
        "pattern",       "strength"}) {
    EXPECT_THAT(doc, HasSubstr("| `" + std::string(field) + "` |")) << field;
  }
}

TEST(SkeletonJson, WrongFieldsSayWhere) {
  EXPECT_THAT(messages(R"({"schema": "lading.skeleton/2", "tensors": []})"), ElementsAre(HasSubstr("$.schema: ")));
  EXPECT_THAT(messages(R"({"schema": "lading.skeleton/1"})"),
              ElementsAre(HasSubstr("$.tensors: the field is missing")));
  EXPECT_THAT(messages(R"({"schema": "lading.skeleton/1", "tensors": {}})"),
              ElementsAre(HasSubstr("$.tensors: not an array")));
  EXPECT_THAT(messages(R"({"schema": "lading.skeleton/1", "tensors": [], "tie": []})"),
              ElementsAre(HasSubstr("$.tie: unknown field")));
  EXPECT_THAT(messages(with_tensor(R"(, "gradient": true)")),
              ElementsAre(HasSubstr("$.tensors[0].gradient: unknown field")));
  EXPECT_THAT(messages(with_tensor(R"(, "requires_grad": 1)")), ElementsAre(HasSubstr("$.tensors[0].requires_grad")));
  EXPECT_THAT(messages(with_tensor(R"(, "presence": "Meta")")), ElementsAre(HasSubstr("$.tensors[0].presence")));
  EXPECT_THAT(messages(with_tensor(R"(, "device": null)")), ElementsAre(HasSubstr("$.tensors[0].device")));
  EXPECT_THAT(
      messages(R"({"schema": "lading.skeleton/1", "tensors": [3, {}]})"),
      ElementsAre(HasSubstr("$.tensors[0]: not an object"), HasSubstr("$.tensors[1].name"),
                  HasSubstr("$.tensors[1].kind"), HasSubstr("$.tensors[1].shape"), HasSubstr("$.tensors[1].dtype")));
  EXPECT_THAT(
      messages(R"({"schema": "lading.skeleton/1", "tensors": [], "ties": [3, ["a", 4]], "pins": [{"pattern": "x"}]})"),
      ElementsAre(HasSubstr("$.ties[0]: not an array"), HasSubstr("$.ties[1][1]: not a string"),
                  HasSubstr("$.pins[0].strength: the field is missing")));
}

TEST(SkeletonJson, RecipesHaveTheFieldsOfTheirKind) {
  const auto recipe = [](std::string_view members) {
    return messages(with_tensor(R"(, "init": {)" + std::string(members) + "}"));
  };
  EXPECT_THAT(recipe(R"("kind": "normal", "mean": 0, "std": 2E-2)"), ElementsAre());
  EXPECT_THAT(recipe(R"("kind": "zeros")"), ElementsAre(HasSubstr("$.tensors[0].init.kind: ")));
  EXPECT_THAT(recipe(R"("kind": "fill")"), ElementsAre(HasSubstr("$.tensors[0].init.value: the field is missing")));
  EXPECT_THAT(recipe(R"("kind": "fill", "value": 1, "std": 1)"), ElementsAre(HasSubstr("init.std: unknown field")));
  EXPECT_THAT(recipe(R"("kind": "fill", "value": "1")"), ElementsAre(HasSubstr("init.value: not a number")));
  EXPECT_THAT(recipe(R"("kind": "fill", "value": "Infinity")"), ElementsAre(HasSubstr("init.value: not a number")));
  EXPECT_THAT(recipe(R"("kind": "fill", "value": true)"), ElementsAre(HasSubstr("init.value: not a number")));
  EXPECT_THAT(recipe(R"("kind": "fill", "value": 1e999)"), ElementsAre(HasSubstr("value")));
  EXPECT_THAT(recipe(R"("kind": "host", "zero_row": 0)"), ElementsAre(HasSubstr("init.zero_row: unknown field")));
  EXPECT_THAT(recipe(R"("kind": "fill", "value": 0, "zero_row": -1)"), ElementsAre(HasSubstr("init.zero_row: ")));
  EXPECT_THAT(recipe(R"("kind": "call", "inputs": "a")"), ElementsAre(HasSubstr("init.inputs: not an array")));
}

TEST(SkeletonJson, R6_DataIsTheWholeValue) {
  const std::string host = R"(, "derivation": {"kind": "host"}, "data": )";
  const std::string right = R"("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")";
  const auto skeleton = parse(with_tensor(host + right));
  ASSERT_TRUE(skeleton);
  ASSERT_EQ(skeleton->tensors[0].data->size(), 32U);
  EXPECT_EQ(skeleton->tensors[0].data->at(31), std::byte{31});
  EXPECT_THAT(messages(with_tensor(host + R"("AAECAw==")")),
              ElementsAre(HasSubstr("$.tensors[0]: the data of the tensor has the wrong size")));
  EXPECT_THAT(messages(with_tensor(R"(, "data": )" + right)), ElementsAre(HasSubstr("nor its init")));
  EXPECT_THAT(messages(with_tensor(R"(, "init": {"kind": "fill", "value": 0}, "data": )" + right)),
              ElementsAre(HasSubstr("nor its init")));
  const std::string fill = R"(, "derivation": {"kind": "fill", "value": 0}, "init": {"kind": "host"}, "data": )";
  EXPECT_THAT(messages(with_tensor(fill + right)), ElementsAre(HasSubstr("nor its init")));
  EXPECT_THAT(messages(with_tensor(host + R"("AAECAw=")")), ElementsAre(HasSubstr("$.tensors[0].data: not base64")));
  EXPECT_THAT(messages(with_tensor(host + "[1]")), ElementsAre(HasSubstr("$.tensors[0].data: not base64")));
}

TEST(SkeletonJson, R50_TiedNamesHaveOneValue) {
  const auto tied = [](std::string_view of_b) {
    return R"({"schema": "lading.skeleton/1", "ties": [["a", "b"]], "tensors": [
      {"name": "a", "kind": "buffer", "shape": [1], "dtype": "F32", "derivation": {"kind": "host"}, "data": "AACAPw=="},
      {"name": "b", "kind": "buffer", "shape": [1], "dtype": "F32", "derivation": {"kind": "host"})" +
           std::string(of_b) + "}]}";
  };
  EXPECT_TRUE(parse(tied("")));
  EXPECT_TRUE(parse(tied(R"(, "data": "AACAPw==")")));
  EXPECT_THAT(messages(tied(R"(, "data": "AAAAQA==")")), ElementsAre(HasSubstr("which has other data")));
}

TEST(SkeletonJson, ImpossibleValuesSayWhere) {
  EXPECT_THAT(messages(with_tensor(R"(, "init": {"kind": "normal", "mean": 0, "std": -1})")),
              ElementsAre(HasSubstr("$.tensors[0]: the init is invalid")));
  const std::string json = R"({"schema": "lading.skeleton/1", "tensors": [
    {"name": "b", "kind": "parameter", "shape": [2], "dtype": "F32"},
    {"name": "a", "kind": "parameter", "shape": [3], "dtype": "F32"},
    {"name": "b", "kind": "parameter", "shape": [2], "dtype": "F32"}],
    "ties": [["a", "b"], ["a", "c"]],
    "pins": [{"pattern": "", "strength": "float16"}]})";
  EXPECT_THAT(messages(json), ElementsAre(HasSubstr("$.tensors[2]: the name is listed twice"),
                                          HasSubstr("$.ties[0]: the tensor is tied to"),
                                          HasSubstr("$.ties[1]: a tie names a tensor that the skeleton does not have"),
                                          HasSubstr("$.pins[0]: the pin")));
  const auto skeleton = parse(json);
  ASSERT_FALSE(skeleton);
  ASSERT_TRUE(skeleton.error().front().bytes);
  EXPECT_EQ(json.substr(skeleton.error().front().bytes->begin, 13), R"({"name": "b",)");
  EXPECT_GT(skeleton.error().front().bytes->begin, json.find("\"a\""));
}

}  // namespace
}  // namespace lading::model
