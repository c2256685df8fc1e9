#include "api/convert/config_text.h"

#include <gtest/gtest.h>

#include <string>

namespace lading {
namespace {

std::string changed(const std::string& text, const ConfigChange& change) {
  const auto result = changed_config(text, change);
  EXPECT_TRUE(result) << text;
  return result ? *result : "";
}

TEST(ConfigText, QuantizationIsTakenOutWhereverItStands) {
  const ConfigChange change{.drops_quantization = true};
  const std::string quantization = R"("quantization_config": {"a": "}\"", "b": [{}, 1]})";
  EXPECT_EQ(changed("{" + quantization + "}", change), "{}");
  EXPECT_EQ(changed("{" + quantization + R"(, "x": 1})", change), R"({"x": 1})");
  EXPECT_EQ(changed(R"({"x": 1, )" + quantization + "\n}", change), "{\"x\": 1\n}");
  EXPECT_EQ(changed(R"({"x": 1, )" + quantization + R"(, "y": "\\"})", change), R"({"x": 1, "y": "\\"})");
  EXPECT_EQ(changed(R"({"x": 1, )" + quantization + R"(, "compression_config": null})", change), R"({"x": 1})");
  EXPECT_EQ(changed(R"({"text_config": {"x": -Infinity, )" + quantization + R"(}, "y": 2})", change),
            R"({"text_config": {"x": -Infinity}, "y": 2})");
  EXPECT_EQ(changed(R"({"other": {)" + quantization + "}}", change), R"({"other": {)" + quantization + "}}")
      << "not a part of the model";
  EXPECT_EQ(changed(R"({"x": 1})", change), R"({"x": 1})");
}

TEST(ConfigText, TheDtypeIsSetInTheModelAndItsParts) {
  const ConfigChange change{.dtype = DType::kBF16};
  EXPECT_EQ(changed(R"({"torch_dtype": "float32", "x": 1})", change), R"({"torch_dtype": "bfloat16", "x": 1})");
  EXPECT_EQ(changed(R"({"dtype" : null})", change), R"({"dtype" : "bfloat16"})");
  EXPECT_EQ(changed(R"({"dtype":"float16","vision_config":{"dtype":"float16"},"y":{"dtype":"int8"}})", change),
            R"({"dtype":"bfloat16","vision_config":{"dtype":"bfloat16"},"y":{"dtype":"int8"}})");
  EXPECT_EQ(changed("{\n  \"x\": 1\n}", change), "{\n  \"torch_dtype\": \"bfloat16\",\n  \"x\": 1\n}");
  EXPECT_EQ(changed("{}", change), "{\n  \"torch_dtype\": \"bfloat16\"\n}");
  EXPECT_EQ(changed(R"({"quantization_config": {}, "dtype": "float32"})", {true, DType::kF16}),
            R"({"dtype": "float16"})");
  EXPECT_EQ(changed(R"({"quantization_config": {}})", {true, DType::kF16}), "{\n  \"torch_dtype\": \"float16\"\n}");
}

TEST(ConfigText, Facts) {
  EXPECT_EQ(config_facts(R"({"torch_dtype": "torch.float16"})")->dtype, DType::kF16);
  EXPECT_EQ(config_facts(R"({"dtype": "bfloat16", "text_config": {"dtype": "float32"}})")->dtype, DType::kBF16);
  EXPECT_EQ(config_facts(R"({"text_config": {"dtype": "float32"}})")->dtype, DType::kF32);
  EXPECT_EQ(config_facts(R"({"dtype": "auto"})")->dtype, std::nullopt);
  EXPECT_FALSE(config_facts("{}")->names_code);
  EXPECT_TRUE(config_facts(R"({"auto_map": {}})")->names_code);
  EXPECT_FALSE(config_facts("[]"));
  EXPECT_FALSE(config_facts("{"));
}

}  // namespace
}  // namespace lading
