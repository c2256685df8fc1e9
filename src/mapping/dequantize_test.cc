// The leaf that changes values: a payload times its scales (R48).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/pieces.h"
#include "mapping/resolve_for_tests.h"

namespace lading::mapping {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string problems_of_leaf(std::string_view expression) {
  const auto mapping = parse_mapping(json(fmt::format(
      R"({{"schema": "lading.mapping/1", "rules": [{{"id": "x", "kind": "build", "to": "t.{{l}}", "expression": {}}}]}})",
      expression)));
  return mapping ? "none" : all_text(mapping.error());
}

std::string told_of(const Result<Pieces, Errors>& pieces) { return pieces ? "accepted" : all_text(pieces.error()); }

TEST(DequantizeMapping, RoundTripWithVariablesInBothKeys) {
  constexpr std::string_view kText = R"json({"schema": "lading.mapping/1", "rules": [
    {"id": "a", "kind": "build", "to": "layers.{l}.w", "expression":
      {"stack": {"dim": 0, "over": "e", "count": 2, "of":
        {"dequantize": {"of": "layers.{l}.{e}.weight", "scales": "layers.{l}.{e}.scale_inv", "block": [128, 64]}}}}},
    {"id": "b", "kind": "build", "to": "head", "expression":
      {"dequantize": {"of": "odd {{key}}", "scales": "odd {{scales}}", "block": [], "product": "BF16"}}}]})json";
  const auto mapping = parse_mapping(json(kText));
  ASSERT_TRUE(mapping) << all_text(mapping.error());
  const std::string written = mapping_json(*mapping);
  EXPECT_THAT(written, HasSubstr("layers.{l}.{e}.scale_inv"));
  const auto again = parse_mapping(json(written));
  ASSERT_TRUE(again) << all_text(again.error());
  EXPECT_EQ(mapping_json(*again), written);
  for (std::size_t r = 0; r < 2; ++r) EXPECT_EQ(*again->rules[r].expression, *mapping->rules[r].expression);
  EXPECT_EQ(again->rules[1].expression->product, DType::kBF16);
  EXPECT_EQ(again->rules[1].expression->scales.text(), "odd {{scales}}");
}

TEST(DequantizeMapping, R48_BadFormsAreRefusedWithWordsAndPlace) {
  for (
      const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
          {R"({"dequantize": {"of": "a", "scales": "b"}})", "block"},
          {R"({"dequantize": {"of": "a", "block": [1]}})", "scales"},
          {R"({"dequantize": {"scales": "b", "block": [1]}})", ".of: the field is missing"},
          {R"({"dequantize": {"of": "a", "scales": "b", "block": 128}})", "block"},
          {R"({"dequantize": {"of": "a", "scales": "b", "block": [-1]}})", "block"},
          {R"({"dequantize": {"of": "a", "scales": "b", "block": [9223372036854775808]}})", "block"},
          {R"({"dequantize": {"of": "a", "scales": "b", "block": ["1"]}})", "block"},
          {R"({"dequantize": {"of": "a", "scales": ["b"], "block": [1]}})", "not a key"},
          {R"({"dequantize": {"of": {"slice": {"dim": 0, "begin": 0, "end": 1, "of": "a"}}, "scales": "b", "block": [1]}})",
           "not a key"},
          {R"({"dequantize": {"of": "a", "scales": "b", "block": [1], "dim": 0}})", "dim"},
          {R"({"dequantize": {"of": "a", "scales": "b", "block": [1], "product": "F8_E4M3"}})",
           "F16, BF16, F32 or F64"},
          {R"({"dequantize": {"of": "a", "scales": "b", "block": [1], "product": "I32"}})", "F16, BF16, F32 or F64"},
          {R"({"dequantize": {"of": "a.{e}", "scales": "b", "block": [1]}})", "{e}"},
          {R"({"dequantize": {"of": "a.{l}", "scales": "b.{e}", "block": [1]}})", "{e}"},
          {R"({"dequantize": {"of": "a", "scales": "b.{", "block": [1]}})", "scales"},
          {R"({"dequantize": "a"})", "dequantize"}}) {
    EXPECT_THAT(problems_of_leaf(text), AllOf(HasSubstr("$.rules[0].expression"), HasSubstr(words))) << text;
  }
  EXPECT_EQ(problems_of_leaf(R"({"dequantize": {"of": "a.{l}", "scales": "b.{l}", "block": [1]}})"), "none");
}

TEST(DequantizeMapping, SaysItsKeysAndItself) {
  const Expression one = Expression::dequantize("p", "s\n", Shape{4, 3});
  EXPECT_THAT(one.keys(), ElementsAre("p", "s\n"));
  EXPECT_EQ(one.text(), R"(dequantize(p, s\n, [4, 3]))");
  const Expression two = Expression::dequantize("p", "s\n", Shape{4, 3}, DType::kBF16);
  EXPECT_EQ(two.text(), R"(dequantize(p, s\n, [4, 3], BF16))");
  EXPECT_NE(one, two);
  EXPECT_NE(one, Expression::dequantize("p", "t", Shape{4, 3}));
  EXPECT_NE(one, Expression::dequantize("p", "s\n", Shape{3, 4}));
  const Expression both = Expression::concat(0, {one, Expression::source("a"), one});
  EXPECT_THAT(both.keys(), ElementsAre("a", "p", "s\n"));
  EXPECT_EQ(both.text(), R"(concat(0, dequantize(p, s\n, [4, 3]), a, dequantize(p, s\n, [4, 3])))");
  const ExpressionTemplate literal = ExpressionTemplate::literal(Expression::dequantize("{p}", "{s}", Shape{4}));
  EXPECT_EQ(literal.scales.render({}), "{s}");
}

Decoding codes(CodeType code, std::uint64_t per_element) {
  Decoding decoding;
  decoding.code = code;
  decoding.per_element = per_element;
  return decoding;
}

// A leaf of codes, all members in turn.
std::string packed_leaf(std::string_view members) {
  return fmt::format(R"({{"dequantize": {{"of": "p.{{l}}", "scales": "s.{{l}}", "block": [1, 4, 8], {}}}}})", members);
}

TEST(DequantizeMapping, PackedCodesRoundTrip) {
  constexpr std::string_view kText = R"json({"schema": "lading.mapping/1", "rules": [
    {"id": "a", "kind": "build", "to": "mxfp4.{l}", "expression":
      {"dequantize": {"of": "m.{l}_blocks", "scales": "m.{l}_scales", "block": [1, 1, 1, 16, 2],
                      "code": "F4", "per_element": 2, "scale_dtype": "F8_E8M0"}}},
    {"id": "b", "kind": "build", "to": "gptq.{l}", "expression":
      {"stack": {"dim": 0, "over": "e", "count": 2, "of":
        {"dequantize": {"of": "{l}.{e}.qweight", "scales": "{l}.{e}.scales", "block": [16, 1, 8], "product": "F16",
                        "code": "U4", "per_element": 8, "zero": 1, "zeros": "{l}.{e}.qzeros", "zeros_dim": 1,
                        "groups": "{l}.{e}.g_idx", "groups_dim": 1}}}}},
    {"id": "c", "kind": "build", "to": "awq", "expression":
      {"dequantize": {"of": "q{{w}}", "scales": "s", "block": [128, 1, 1], "code": "U4", "per_element": 8,
                      "zeros": "z{{w}}", "zeros_dim": 1, "scale_order": [0, 2, 4, 6, 1, 3, 5, 7]}}},
    {"id": "d", "kind": "build", "to": "nvfp4.{l}", "expression":
      {"dequantize": {"of": "p", "scales": "s", "block": [1, 8, 2], "code": "F4", "per_element": 2,
                      "tensor_scale": "{l}.global_scale", "tensor_scale_is": "divisor"}}},
    {"id": "e", "kind": "build", "to": "int8", "expression":
      {"dequantize": {"of": "p", "scales": "s", "block": [1, 8, 1], "code": "I8", "per_element": 1,
                      "zeros": "z", "zeros_dim": 0, "tensor_scale": "g"}}}]})json";
  const auto mapping = parse_mapping(json(kText));
  ASSERT_TRUE(mapping) << all_text(mapping.error());
  const std::string written = mapping_json(*mapping);
  const auto again = parse_mapping(json(written));
  ASSERT_TRUE(again) << all_text(again.error());
  EXPECT_EQ(mapping_json(*again), written);
  for (std::size_t r = 0; r < 5; ++r) EXPECT_EQ(*again->rules[r].expression, *mapping->rules[r].expression) << r;
  Decoding mxfp4 = codes(CodeType::kF4, 2);
  mxfp4.scale_dtype = DType::kF8E8M0;
  EXPECT_EQ(again->rules[0].expression->decoding, mxfp4);
  const ExpressionTemplate& gptq = again->rules[1].expression->parts.front();
  Decoding wanted = codes(CodeType::kU4, 8);
  wanted.zero = wanted.zeros_dim = wanted.groups_dim = 1;
  EXPECT_EQ(gptq.decoding, wanted);
  EXPECT_EQ(gptq.groups->text(), "{l}.{e}.g_idx");
  EXPECT_EQ(gptq.zeros->text(), "{l}.{e}.qzeros");
  EXPECT_EQ(gptq.product, DType::kF16);
  EXPECT_THAT(again->rules[2].expression->decoding.scale_order, ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
  EXPECT_EQ(again->rules[2].expression->zeros->text(), "z{{w}}");
  EXPECT_EQ(again->rules[3].expression->decoding.tensor_scale, TensorScale::kDivisor);
  EXPECT_EQ(again->rules[3].expression->tensor_scale->text(), "{l}.global_scale");
  EXPECT_EQ(again->rules[4].expression->decoding.tensor_scale, TensorScale::kFactor);
  EXPECT_THAT(written, HasSubstr(R"("tensor_scale_is": "divisor")"));
  EXPECT_THAT(written, testing::Not(HasSubstr("factor"))) << "what goes without saying is not written";
}

TEST(DequantizeMapping, R48_BadDecodingsAreRefusedWithWordsAndPlace) {
  for (
      const auto& [members, words] : std::vector<std::pair<std::string, std::string>>{
          {R"("code": "F3", "per_element": 2)", ".code: not one of the allowed words"},
          {R"("code": 4, "per_element": 2)", ".code: not one of the allowed words"},
          {R"("code": "F4")", ".per_element: the field is missing"},
          {R"("code": "F4", "per_element": 0)", ".per_element: not a number of codes"},
          {R"("code": "F4", "per_element": 17)", ".per_element: not a number of codes"},
          {R"("code": "F4", "per_element": "2")", ".per_element: not a whole number"},
          {R"("per_element": 2)", R"(.per_element: it says nothing without "code")"},
          {R"("per_element": 1)", R"(.per_element: it says nothing without "code")"},
          {R"("scale_dtype": "F8_E4M3")", ".scale_dtype: not one of the allowed words"},
          {R"("zero": 8)", ".zero: only integers"},
          {R"("zero": 0)", ".zero: only integers"},
          {R"("zeros": "z")", ".zeros: only integers"},
          {R"("code": "F4", "per_element": 2, "zero": 8)", ".zero: only integers"},
          {R"("code": "F4", "per_element": 2, "zeros": "z")", ".zeros: only integers"},
          {R"("code": "U4", "per_element": 8, "zero": 65536)", ".zero: the value is too large"},
          {R"("code": "U4", "per_element": 8, "zero": -1)", ".zero: not a whole number"},
          {R"("code": "U4", "per_element": 8, "zeros": 5)", ".zeros: not a key"},
          {R"("code": "U4", "per_element": 8, "zeros": "")", ".zeros: the key is empty"},
          {R"("code": "U4", "per_element": 8, "zeros": "z.{")", ".zeros"},
          {R"("code": "U4", "per_element": 8, "zeros": "z.{e}")", "{e}"},
          {R"("code": "U4", "per_element": 8, "zeros_dim": 1)", R"(.zeros_dim: it says nothing without "zeros")"},
          {R"("code": "U4", "per_element": 8, "zeros_dim": 0)", R"(.zeros_dim: it says nothing without "zeros")"},
          {R"("code": "U4", "per_element": 8, "zeros": "z", "zeros_dim": "0")", ".zeros_dim: not a whole number"},
          {R"("tensor_scale": ["t"])", ".tensor_scale: not a key"},
          {R"("tensor_scale": "")", ".tensor_scale: the key is empty"},
          {R"("tensor_scale": "t.{e}")", "{e}"},
          {R"("tensor_scale": "t", "tensor_scale_is": "quotient")", ".tensor_scale_is: not one of the allowed words"},
          {R"("tensor_scale_is": "divisor")", R"(.tensor_scale_is: it says nothing without "tensor_scale")"},
          {R"("tensor_scale_is": "factor")", R"(.tensor_scale_is: it says nothing without "tensor_scale")"},
          {R"("code": "U4", "per_element": 8, "groups": 1)", ".groups: not a key"},
          {R"("code": "U4", "per_element": 8, "groups": "")", ".groups: the key is empty"},
          {R"("code": "U4", "per_element": 8, "groups": "g", "groups_dim": -1)", ".groups_dim: not a whole number"},
          {R"("code": "U4", "per_element": 8, "groups": "g", "scale_order": [1, 0])", ".groups: scales in an order"},
          {R"("groups": "g")", ".groups: only codes"},
          {R"("groups_dim": 0)", R"(.groups_dim: it says nothing without "groups")"},
          {R"("scale_order": 8)", ".scale_order"},
          {R"("scale_order": [])", ".scale_order"},
          {R"("scale_order": [0, "1"])", ".scale_order"},
          {R"("scale_order": [0, 0])", ".scale_order: not an order"},
          {R"("scale_order": [1, 2])", ".scale_order: not an order"},
          {R"("scale_order": [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32])",
           ".scale_order: not an order"},
          {R"("order": [0])", ".order: unknown field"}}) {
    EXPECT_THAT(problems_of_leaf(packed_leaf(members)), AllOf(HasSubstr("$.rules[0].expression"), HasSubstr(words)))
        << members;
  }
  for (const char* good : {R"("scale_dtype": "F8_E8M0")", R"("tensor_scale": "t.{l}", "tensor_scale_is": "factor")",
                           R"("code": "U2", "per_element": 16, "zero": 65535, "zeros": "z.{l}")",
                           R"("code": "F4", "per_element": 2, "groups": "g.{l}", "groups_dim": 0)",
                           R"("scale_order": [1, 0])", R"("code": "U8", "per_element": 1, "zero": 0)"}) {
    EXPECT_EQ(problems_of_leaf(packed_leaf(good)), "none") << good;
  }
}

TEST(DequantizeMapping, R48_AllThatIsWrongWithADecodingIsTold) {
  const std::string told = problems_of_leaf(packed_leaf(
      R"("code": "F5", "per_element": 99, "zero": 70000, "tensor_scale_is": "x", "zeros_dim": 3, "scale_order": [3])"));
  for (const char* member : {"code", "per_element", "zero", "zeros_dim", "tensor_scale_is", "scale_order"}) {
    EXPECT_THAT(told, HasSubstr(fmt::format(".dequantize.{}:", member)));
  }
  EXPECT_THAT(problems_of_leaf(R"({"unpack": {"of": "a"}})"), AllOf(HasSubstr("dequantize"), HasSubstr("code")));
}

// A program can say what no document can.
TEST(DequantizeMapping, R48_DecodingsOfProgramsAreChecked) {
  const auto told = [](const std::function<void(Expression&)>& change) {
    Expression leaf = Expression::dequantize("p", "s", Shape{1, 2}, {}, codes(CodeType::kU4, 8));
    change(leaf);
    return find_bad_form(ExpressionTemplate::literal(leaf)).value_or("none");
  };
  EXPECT_EQ(told([](Expression&) {}), "none");
  EXPECT_THAT(told([](Expression& e) { e.decoding.per_element = 0; }), HasSubstr("per_element"));
  EXPECT_THAT(told([](Expression& e) { e.decoding.code.reset(); }), HasSubstr("per_element"));
  EXPECT_THAT(told([](Expression& e) { e.decoding.code = static_cast<CodeType>(5); }), HasSubstr("code"));
  EXPECT_THAT(told([](Expression& e) { e.decoding.zero = 1 << 16; }), HasSubstr("zero"));
  EXPECT_THAT(told([](Expression& e) { e.decoding.zeros_dim = 1; }), HasSubstr("zeros_dim"));
  EXPECT_THAT(told([](Expression& e) { e.decoding.groups_dim = 1; }), HasSubstr("groups_dim"));
  EXPECT_THAT(told([](Expression& e) { e.decoding.tensor_scale = TensorScale::kDivisor; }),
              HasSubstr("tensor_scale_is"));
  EXPECT_THAT(told([](Expression& e) {
                e.tensor_scale = "t";
                e.decoding.tensor_scale = static_cast<TensorScale>(2);
              }),
              HasSubstr("tensor_scale_is"));
  EXPECT_THAT(told([](Expression& e) { e.decoding.scale_dtype = DType::kF32; }), HasSubstr("scale_dtype"));
  EXPECT_THAT(told([](Expression& e) { e.decoding.scale_order = {0, 2}; }), HasSubstr("scale_order"));
}

TEST(DequantizeMapping, PackedCodesSayTheirKeysAndThemselves) {
  Expression one =
      Expression::dequantize("x.weight_packed", "x.weight_scale", Shape{1, 4, 8}, {}, codes(CodeType::kU4, 8));
  EXPECT_EQ(one.text(), "dequantize(x.weight_packed, x.weight_scale)");
  const Expression before = one;
  one.zeros = "x.weight_zero_point";
  one.tensor_scale = "x.weight_global_scale";
  one.groups = "x.weight_g_idx";
  EXPECT_NE(one, before);
  EXPECT_THAT(one.keys(), ElementsAre("x.weight_g_idx", "x.weight_global_scale", "x.weight_packed", "x.weight_scale",
                                      "x.weight_zero_point"));
  const ExpressionTemplate literal = ExpressionTemplate::literal(one);
  EXPECT_EQ(literal.zeros->render({}), one.zeros);
  EXPECT_EQ(literal.tensor_scale->render({}), one.tensor_scale);
  EXPECT_EQ(literal.groups->render({}), one.groups);
  const auto lowered = lower({literal, {}}, [](std::string_view) { return nullptr; });
  ASSERT_TRUE(lowered);
  EXPECT_EQ(*lowered, one);
}

TEST(DequantizeMapping, R48_ARuleReadsPayloadAndScales) {
  World world;
  world.model = {{"w.0", {2, 5, 7}}, {"w.1", {2, 5, 7}}};
  for (const char* key : {"0.0", "0.1", "1.0", "1.1"}) {
    world.checkpoint[std::string("p.") + key] = {5, 7};
    world.checkpoint[std::string("s.") + key] = {2, 3};
  }
  const Rule rule = Rule::build(
      "x", "w.{l}",
      expression_of(
          R"({"stack": {"dim": 0, "over": "e", "of": {"dequantize": {"of": "p.{l}.{e}", "scales": "s.{l}.{e}", "block": [4, 3]}}}})"));
  const auto resolved = world.resolve({rule});
  ASSERT_TRUE(resolved) << all_text(resolved.error());
  const Expression& made = resolved->expressions.at("w.1");
  EXPECT_EQ(made.text(), "stack(0, dequantize(p.1.0, s.1.0, [4, 3]), dequantize(p.1.1, s.1.1, [4, 3]))");
  const auto pieces = expand(made, world.shape_of());
  ASSERT_TRUE(pieces) << all_text(pieces.error());
  ASSERT_EQ(pieces->scalings.size(), 2U);
  EXPECT_EQ(pieces->scalings.at(PieceSourceId(1)), (PieceScaling{"s.1.1", Shape{4, 3}, {}, "", "", {}, Shape{5, 7}}));
  ASSERT_EQ(pieces->sources.size(), 2U) << "scales are no sources of elements";
  world.checkpoint.erase("s.1.1");
  const auto missing = world.resolve({rule});
  ASSERT_FALSE(missing);
  EXPECT_THAT(all_text(missing.error()), HasSubstr("s.1.1"));
}

TEST(DequantizeMapping, R48_ARuleReadsZeroPointsAndTheTensorScale) {
  World world;
  world.model = {{"w.0", {3, 7}}, {"w.1", {3, 7}}};
  for (const char* key : {"p.0", "p.1"}) world.checkpoint[key] = {3, 7};
  for (const char* key : {"s.0", "s.1", "z.0", "z.1"}) world.checkpoint[key] = {3, 1};
  for (const char* key : {"t.0", "t.1"}) world.checkpoint[key] = {1};
  const Rule rule = Rule::build("x", "w.{l}", expression_of(R"({"reshape": {"shape": [3, 7], "of":
      {"dequantize": {"of": "p.{l}", "scales": "s.{l}", "block": [1, 7, 1], "code": "I8", "per_element": 1,
                      "zeros": "z.{l}", "tensor_scale": "t.{l}"}}}})"));
  const auto resolved = world.resolve({rule});
  ASSERT_TRUE(resolved) << all_text(resolved.error());
  EXPECT_THAT(resolved->expressions.at("w.1").keys(), ElementsAre("p.1", "s.1", "t.1", "z.1"));
  for (const char* key : {"z.1", "t.0"}) {
    World without = world;
    without.checkpoint.erase(key);
    const auto missing = without.resolve({rule});
    ASSERT_FALSE(missing) << key;
    EXPECT_THAT(all_text(missing.error()), HasSubstr(key));
  }
}

// A rule for tensors that the model lacks: its keys are what the problem is about, and not left over as well.
TEST(DequantizeMapping, R43_AllKeysOfARuleThatMatchesNothingAreDisputed) {
  const Rule rule = Rule::build("x", "typo.{l}", expression_of(R"({"dequantize": {"of": "p.{l}", "scales": "s.{l}",
      "block": [1, 1], "code": "I8", "per_element": 1, "zeros": "z.{l}", "tensor_scale": "t.{l}"}})"));
  const Shape shape = {2};
  const Resolution out = resolve_partly({{rule}}, {{"w.0", &shape}}, {"odd", "p.0", "s.0", "t.0", "z.0"},
                                        [&](std::string_view) { return &shape; });
  EXPECT_EQ(out.problems.size(), 1U) << all_text(out.problems);
  ASSERT_EQ(out.resolved.unread.size(), 1U);
  EXPECT_EQ(out.resolved.unread.begin()->first, "odd");
}

TEST(DequantizeMapping, R48_ThereIsAScaleForEachBlock) {
  World world;
  world.checkpoint = {{"p", {5, 7}},    {"scalar", {}},     {"empty", {0, 7}}, {"none", {0, 3}},      {"one", {1, 1}},
                      {"grid", {2, 3}}, {"turned", {3, 2}}, {"line", {6}},     {"ones", {1, 2, 1, 3}}};
  const auto expanded = [&](const char* scales, Shape block, const char* of = "p") {
    return told_of(expand(Expression::dequantize(of, scales, std::move(block)), world.shape_of()));
  };
  EXPECT_EQ(expanded("grid", {4, 3}), "accepted");
  EXPECT_EQ(expanded("grid", {3, 3}), "accepted");
  EXPECT_EQ(expanded("ones", {4, 3}), "accepted") << "dims of one element say nothing";
  EXPECT_EQ(expanded("scalar", {5, 7}), "accepted");
  EXPECT_EQ(expanded("one", {128, 128}), "accepted");
  EXPECT_EQ(expanded("one", {}, "scalar"), "accepted");
  EXPECT_EQ(expanded("none", {4, 3}, "empty"), "accepted");
  EXPECT_THAT(expanded("turned", {4, 3}), AllOf(HasSubstr("[2, 3]"), HasSubstr("[3, 2]"), HasSubstr("R48")));
  EXPECT_THAT(expanded("line", {4, 3}), AllOf(HasSubstr("[2, 3]"), HasSubstr("[6]"), HasSubstr("R48")));
  EXPECT_THAT(expanded("grid", {5, 3}), HasSubstr("not one for each block"));
  EXPECT_THAT(expanded("grid", {4}), HasSubstr("another number of dims"));
  EXPECT_THAT(expanded("grid", {4, 3, 1}), HasSubstr("another number of dims"));
  EXPECT_THAT(expanded("grid", {4, 0}), HasSubstr("block"));
  EXPECT_THAT(expanded("grid", {}), HasSubstr("another number of dims"));
  EXPECT_THAT(expanded("missing", {4, 3}), AllOf(HasSubstr("no key \"missing\""), HasSubstr("R48")));
  EXPECT_THAT(expanded("grid", {4, 3}, "missing"), HasSubstr("no key \"missing\""));
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 63;
  EXPECT_THAT(expanded("one", {kHuge, kHuge}), HasSubstr("R48"));
  EXPECT_THAT(expanded("one", {~std::uint64_t{0}, 7}), HasSubstr("R48"));
}

// The examples of docs/schema/mapping.md.
TEST(DequantizeMapping, SchemesThatAreInUseHaveTheShapesOfWeights) {
  World world;
  world.checkpoint = {{"m_blocks", {32, 2880, 90, 16}}, {"m_scales", {32, 2880, 90}}, {"g.qweight", {1376, 4096}},
                      {"g.scales", {86, 4096}},         {"g.qzeros", {86, 512}},      {"a.qweight", {11008, 512}},
                      {"a.scales", {86, 4096}},         {"a.qzeros", {86, 512}}};
  const auto shape_of = [&](std::string_view expression) {
    Errors errors;
    const auto parsed = json(expression);
    const Expression made = read_plain_expression(parsed.root(), "$", errors);
    EXPECT_TRUE(errors.empty()) << all_text(errors);
    const auto pieces = expand(made, world.shape_of());
    EXPECT_TRUE(pieces) << all_text(pieces.error());
    return pieces ? pieces->shape : Shape{};
  };
  EXPECT_EQ(shape_of(R"({"reshape": {"shape": [32, 2880, 2880], "of":
      {"dequantize": {"of": "m_blocks", "scales": "m_scales", "block": [1, 1, 1, 16, 2],
                      "code": "F4", "per_element": 2, "scale_dtype": "F8_E8M0"}}}})"),
            (Shape{32, 2880, 2880}));
  EXPECT_EQ(shape_of(R"({"reshape": {"shape": [4096, 11008], "of": {"permute": {"order": [1, 0, 2], "of":
      {"dequantize": {"of": "g.qweight", "scales": "g.scales", "block": [16, 1, 8],
                      "code": "U4", "per_element": 8, "zero": 1, "zeros": "g.qzeros", "zeros_dim": 1}}}}}})"),
            (Shape{4096, 11008}));
  EXPECT_EQ(shape_of(R"({"permute": {"order": [1, 0], "of": {"reshape": {"shape": [11008, 4096], "of":
      {"rearrange": {"dim": 2, "factors": [2, 4], "order": [1, 0], "of":
        {"dequantize": {"of": "a.qweight", "scales": "a.scales", "block": [128, 1, 1],
                        "code": "U4", "per_element": 8, "zeros": "a.qzeros", "zeros_dim": 1,
                        "scale_order": [0, 2, 4, 6, 1, 3, 5, 7]}}}}}}}})"),
            (Shape{4096, 11008}));
}

// Parts keep their scalings wherever they are moved, and only those that are left over count.
TEST(DequantizeMapping, R48_ScalingsFollowTheirSources) {
  World world;
  world.checkpoint = {{"p", {5, 7}}, {"q", {5, 7}}, {"a", {5, 7}}, {"s", {2, 3}}, {"t", {1}}};
  const auto p = Expression::dequantize("p", "s", {4, 3});
  const auto q = Expression::dequantize("q", "t", {5, 7});
  const auto moved = Expression::permute(
      Expression::stack(1, {Expression::source("a"), Expression::slice(Expression::concat(0, {p, q}), 0, 0, 5), q}),
      {2, 0, 1});
  const auto pieces = expand(moved, world.shape_of());
  ASSERT_TRUE(pieces) << all_text(pieces.error());
  for (const PieceSourceId i : pieces->sources.ids()) {
    const std::string& key = pieces->sources[i];
    const auto found = pieces->scalings.find(i);
    if (key == "a") {
      EXPECT_EQ(found, pieces->scalings.end());
      continue;
    }
    ASSERT_NE(found, pieces->scalings.end()) << key;
    EXPECT_EQ(found->second.scales, key == "p" ? "s" : "t");
  }
}

}  // namespace
}  // namespace lading::mapping
