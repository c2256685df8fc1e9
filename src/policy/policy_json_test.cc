#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policy/policy.h"
#include "support/docs_for_tests.h"

namespace lading::policy {
namespace {

using model::PinStrength;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Result<Policy, Errors> parse(std::string_view json) {
  auto document = JsonDocument::parse(JsonBuffer::copy_of(json));
  if (!document) return fail(std::move(document).error());
  return parse_policy(*document);
}

Result<Policy, Errors> parse_with(std::string_view members) {
  return parse(R"({"schema": "lading.policy/1")" + std::string(members) + "}");
}

std::vector<std::string> messages(std::string_view members) {
  const auto policy = parse_with(members);
  std::vector<std::string> texts;
  if (!policy) {
    for (const Error& error : policy.error()) texts.push_back(error.message);
  }
  return texts;
}

TEST(PolicyJson, NothingSaidIsTheDefault) {
  const auto policy = parse_with("");
  ASSERT_TRUE(policy);
  EXPECT_EQ(*policy, Policy());
  EXPECT_EQ(policy->dtype, std::nullopt);
  EXPECT_EQ(policy->cast, Cast::kPromote);
  EXPECT_EQ(policy->budget_bytes, 256ULL << 20);
}

TEST(PolicyJson, RoundTrip) {
  Policy policy;
  policy.dtype = DType::kBF16;
  policy.cast = Cast::kExact;
  policy.compute_dtype = DType::kF16;
  policy.compute_record = ComputeRecord::kIgnore;
  policy.unexpected = Strictness::kReport;
  policy.ties = Ties::kUntie;
  policy.may_untie = {"head.*"};
  policy.seed = 18446744073709551615ULL;
  policy.budget_bytes = kLeastBudgetBytes;
  policy.allow_missing = {"*.bias", "\"quoted\"\n"};
  policy.allow_unexpected = {"a"};
  policy.allow_mismatch = {"b"};
  policy.keep = {"c", NamePattern::exact("c*")};
  policy.external = {"d", "e"};
  policy.pins = {{"norm", PinStrength::kFloat16},
                 {NamePattern::exact("w*"), PinStrength::kFloat16},
                 {"A_log", PinStrength::kFloat16AndBFloat16}};
  policy.subtree_dtypes = {{"vision", DType::kF32}, {"audio.tower", DType::kF8E4M3}, {"experts", {}}};
  policy.constructed_dtypes = {{"gate", DType::kF32}, {"up", DType::kBF16}};
  policy.not_expected = {NamePattern::exact("lm_head.weight")};
  const auto again = parse(policy_json(policy));
  ASSERT_TRUE(again) << again.error().front().text();
  EXPECT_EQ(*again, policy);
  EXPECT_EQ(*parse(policy_json(Policy())), Policy());
  policy.cast = Cast::kDestination;
  EXPECT_EQ(*parse(policy_json(policy)), policy);
}

TEST(PolicyJson, TheExampleInTheDocumentIsRead) {
  const std::string json = model::between(model::doc_text("schema/policy.md"), "```json\n", "```");
  const auto policy = parse(json);
  ASSERT_TRUE(policy) << json << policy.error().front().text();
  EXPECT_EQ(policy->dtype, DType::kF32);
  EXPECT_EQ(policy->compute_dtype, DType::kBF16);
  EXPECT_THAT(policy->subtree_dtypes, ElementsAre(Pair("model.vision_tower", DType::kBF16)));
  EXPECT_THAT(policy->allow_missing, ElementsAre("*.lora_A.*", "*.lora_B.*"));
}

TEST(PolicyJson, TheDocumentNamesEveryField) {
  const std::string doc = model::doc_text("schema/policy.md");
  const std::string json = policy_json(Policy());
  std::size_t fields = 0;
  for (std::size_t at = json.find("\n  \""); at != std::string::npos; at = json.find("\n  \"", at + 1), ++fields) {
    const std::string field = json.substr(at + 4, json.find('"', at + 4) - at - 4);
    EXPECT_THAT(doc, HasSubstr("| `" + field + "` |"));
  }
  EXPECT_EQ(fields, 20U) << "and compute_dtype, which has no default";
  EXPECT_THAT(doc, HasSubstr("| `compute_dtype` |"));
}

TEST(PolicyJson, WrongFieldsSayWhere) {
  EXPECT_THAT(messages(R"(, "dtyp": "BF16")"), ElementsAre(HasSubstr("$.dtyp: unknown field")));
  EXPECT_THAT(messages(R"(, "dtype": "bfloat16")"), ElementsAre(HasSubstr("$.dtype: not a dtype")));
  EXPECT_THAT(messages(R"(, "dtype": null)"), ElementsAre(HasSubstr("$.dtype: not a dtype")));
  EXPECT_THAT(messages(R"(, "compute_dtype": "auto")"), ElementsAre(HasSubstr("$.compute_dtype")));
  EXPECT_THAT(messages(R"(, "cast": "narrow", "ties": 1, "unexpected": true)"),
              ElementsAre(HasSubstr("$.cast"), HasSubstr("$.unexpected"), HasSubstr("$.ties")));
  EXPECT_THAT(messages(R"(, "seed": -1, "budget_bytes": 1.5)"),
              ElementsAre(HasSubstr("$.seed"), HasSubstr("$.budget_bytes")));
  EXPECT_THAT(messages(R"(, "keep": "a", "external": [1])"),
              ElementsAre(HasSubstr("$.keep"), HasSubstr("$.external[0]")));
  EXPECT_THAT(messages(R"(, "subtree_dtypes": ["a"])"), ElementsAre(HasSubstr("$.subtree_dtypes: not an object")));
  EXPECT_THAT(messages(R"(, "constructed_dtypes": ["a"])"), ElementsAre(HasSubstr("$.constructed_dtypes: not an obj")));
  EXPECT_THAT(messages(R"(, "constructed_dtypes": {"a": "auto"})"), ElementsAre(HasSubstr("$.constructed_dtypes.a: ")));
  EXPECT_THAT(messages(R"(, "subtree_dtypes": {"a": "F99"})"),
              ElementsAre(HasSubstr("$.subtree_dtypes.a: not a dtype")));
  EXPECT_THAT(messages(R"(, "pins": [{"pattern": "a", "strength": "strict"}])"),
              ElementsAre(HasSubstr("$.pins[0].strength")));
}

TEST(PolicyJson, R23_R26_ImpossibleValuesSayWhere) {
  EXPECT_THAT(messages(R"(, "dtype": "I64")"), ElementsAre(HasSubstr("$.dtype: ")));
  EXPECT_THAT(messages(R"(, "dtype": "F4")"), ElementsAre(HasSubstr("$.dtype: ")));
  EXPECT_THAT(messages(R"(, "dtype": "F8_E8M0")"), ElementsAre(HasSubstr("$.dtype: ")));
  EXPECT_THAT(messages(R"(, "dtype": "F8_E4M3")"), ElementsAre());
  EXPECT_THAT(messages(R"(, "compute_dtype": "F8_E4M3")"), ElementsAre(HasSubstr("$.compute_dtype: ")));
  EXPECT_THAT(messages(R"(, "budget_bytes": 0, "keep": ["a", ""])"),
              ElementsAre(HasSubstr("$.budget_bytes: "), HasSubstr("$.keep[1]: ")));
  EXPECT_THAT(messages(R"(, "subtree_dtypes": {"": "F32", "a..b": "F32", "c": "BOOL"})"),
              ElementsAre(HasSubstr("$.subtree_dtypes."), HasSubstr("$.subtree_dtypes.a..b: "),
                          HasSubstr("$.subtree_dtypes.c: ")));
  EXPECT_THAT(messages(R"(, "pins": [{"pattern": "a.", "strength": "float16"}])"),
              ElementsAre(HasSubstr("$.pins[0].pattern: ")));
  EXPECT_THAT(messages(R"(, "pins": [{"name": "a.", "strength": "float16"}], "keep": [{"name": ""}])"),
              ElementsAre(HasSubstr("$.keep[0]: "), HasSubstr("$.pins[0].name: ")));
}

TEST(PolicyJson, R27_TheReduceDtypeIsNotOursAndSaysSo) {
  const auto policy = parse_with(R"(, "reduce_dtype": "F32")");
  ASSERT_FALSE(policy);
  ASSERT_EQ(policy.error().size(), 1U);
  EXPECT_THAT(policy.error().front().message, HasSubstr("$.reduce_dtype: a load does not depend on"));
  EXPECT_THAT(policy.error().front().expected, HasSubstr("MixedPrecisionPolicy"));
}

TEST(PolicyJson, R64_ABudgetThatNothingCanBeReadThroughIsRefused) {
  EXPECT_THAT(messages(R"(, "budget_bytes": 1)"), ElementsAre(HasSubstr("$.budget_bytes: ")));
  const auto policy = parse_with(R"(, "budget_bytes": 33554431)");
  ASSERT_FALSE(policy);
  EXPECT_EQ(policy.error().front().rule, "R64");
  EXPECT_THAT(policy.error().front().expected, HasSubstr("33554432"));
  EXPECT_EQ(policy.error().front().found, "33554431");
  EXPECT_THAT(messages(R"(, "budget_bytes": 33554432)"), ElementsAre());
}

TEST(PolicyJson, R26_WhetherTheRecordCounts) {
  EXPECT_EQ(parse_with("")->compute_record, ComputeRecord::kCheckpoint);
  EXPECT_EQ(parse_with(R"(, "compute_record": "ignore")")->compute_record, ComputeRecord::kIgnore);
  EXPECT_THAT(messages(R"(, "compute_record": "file")"), ElementsAre(HasSubstr("$.compute_record")));
}

TEST(PolicyJson, R22_ASubtreeCanBeAuto) {
  const auto policy = parse_with(R"(, "dtype": "F32", "subtree_dtypes": {"experts": "auto"})");
  ASSERT_TRUE(policy);
  EXPECT_EQ(requested_dtype(*policy, "experts.w"), std::nullopt);
  EXPECT_EQ(requested_dtype(*policy, "w"), DType::kF32);
}

TEST(PolicyJson, R32_ASubtreeTwiceIsRefused) {
  Policy policy;
  policy.subtree_dtypes = {{"a", DType::kF32}, {"a", DType::kBF16}};
  ASSERT_EQ(check_policy(policy).size(), 1U);
  EXPECT_EQ(check_policy(policy).front().code, Code::kPolicy);
}

TEST(PolicyJson, R43_EveryProblemIsToldAtOnce) {
  const auto policy = parse(R"({"schema": "lading.policy/1", "dtype": "F4", "cast": "nope", "pins": [{}]})");
  ASSERT_FALSE(policy);
  std::string text;
  for (const Error& error : policy.error()) text += error.text() + "\n";
  EXPECT_NE(text.find("$.cast"), std::string::npos) << text;
  EXPECT_NE(text.find("$.dtype"), std::string::npos) << text;
  EXPECT_EQ(text.find("empty component"), std::string::npos) << "what could not be read is told once\n" << text;
}

}  // namespace
}  // namespace lading::policy
