// What verify makes of packed codes, against fractions of whole numbers (R48).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "exec/verify/quantized_reader.h"
#include "exec/verify/quantized_world_for_tests.h"
#include "support/sanitizers.h"

namespace lading::exec::quantized_world {
namespace {

using mapping::oracle::evaluate;
using mapping::oracle::kCodeStep;
using mapping::oracle::Labels;
using testing::HasSubstr;

constexpr std::array kStorages = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64};

double widened(std::span<const std::byte> bytes, DType dtype) {
  double value = 0;
  if (dtype == DType::kF64) {
    std::memcpy(&value, bytes.data(), sizeof value);
  } else {
    device::find_cast(dtype, DType::kF64)(bytes.data(), reinterpret_cast<std::byte*>(&value), 1);
  }
  return value;
}

// Every element of an expression over the world, in a window of few rows. The number of elements that are wrong.
std::size_t wrong_elements(const QuantizedWorld& world, const Expression& expression, DType storage) {
  const auto key = world.catalog().find("p", 0);
  Labels labels{{key->shape.begin(), key->shape.end()}, {}};
  labels.values.resize(*key->shape.num_elems());
  std::iota(labels.values.begin(), labels.values.end(), std::int64_t{0});
  const Labels wanted = evaluate(expression, {{"p", labels}});
  const Shape shape(wanted.dims);
  auto made = values_of_files({expression, shape, storage, world.catalog(), 64, 0}, world.read());
  EXPECT_TRUE(made) << made.error().text();
  if (!made) return wanted.values.size();
  std::size_t wrong = 0;
  for (std::uint64_t at = 0; at < wanted.values.size();) {
    const auto window = (*made)->at(at);
    EXPECT_TRUE(window) << window.error().text();
    if (!window) return wanted.values.size();
    for (; at < window->begin_elem + window->elems; ++at) {
      const std::uint64_t width = bits(storage) / 8;
      const double found = widened(window->bytes.subspan((at - window->begin_elem) * width, width), storage);
      const std::int64_t label = wanted.values[at];
      const double right = world.value(static_cast<std::uint64_t>(label % kCodeStep),
                                       static_cast<std::uint64_t>(label / kCodeStep), storage);
      if (found == right && std::signbit(found) == std::signbit(right)) continue;
      if (wrong++ == 0) ADD_FAILURE() << expression.text() << " element " << at << ": " << found << ", not " << right;
    }
  }
  return wrong;
}

std::size_t wrong_elements(const QuantizedWorld& world, DType storage) {
  return wrong_elements(world, world.expression(), storage);
}

Scheme scheme_of(CodeType code, DType key_dtype, Shape key_shape) {
  Scheme scheme;
  scheme.key_dtype = key_dtype;
  scheme.key_shape = std::move(key_shape);
  scheme.decoding.code = code;
  scheme.decoding.per_element = bits(key_dtype) / bits(code);
  return scheme;
}

// gpt-oss: blocks of 32 codes in 16 bytes, whose scales are bytes.
Scheme mxfp4() {
  Scheme scheme = scheme_of(CodeType::kF4, DType::kU8, {3, 2, 16});
  scheme.block = {1, 1, 16, 2};
  scheme.decoding.scale_dtype = scheme.scales_dtype = DType::kF8E8M0;
  scheme.scales_shape = {3, 2};
  return scheme;
}

// Two groups of 16 inputs, 12 outputs.
Scheme gptq() {
  Scheme scheme = scheme_of(CodeType::kU4, DType::kI32, {4, 12});
  scheme.block = {2, 1, 8};
  scheme.decoding.zero = 1;
  scheme.decoding.zeros_dim = 1;
  scheme.has_zeros = true;
  scheme.scales_dtype = DType::kF16;
  scheme.scales_shape = {2, 12};
  return scheme;
}

// Outputs are packed, and their order is another one than that of the scales.
Scheme awq() {
  Scheme scheme = scheme_of(CodeType::kU4, DType::kI32, {6, 3});
  scheme.block = {3, 1, 1};
  scheme.decoding.zeros_dim = 1;
  scheme.decoding.scale_order = {0, 2, 4, 6, 1, 3, 5, 7};
  scheme.has_zeros = true;
  scheme.scales_dtype = DType::kF16;
  scheme.scales_shape = {2, 24};
  return scheme;
}

Scheme nvfp4() {
  Scheme scheme = scheme_of(CodeType::kF4, DType::kU8, {3, 16});
  scheme.block = {1, 8, 2};
  scheme.scales_dtype = DType::kF8E4M3;
  scheme.scales_shape = {3, 2};
  scheme.has_tensor_scale = true;
  scheme.decoding.tensor_scale = TensorScale::kDivisor;
  return scheme;
}

// compressed-tensors with zero points, packed along the outputs, the last of which are alone in their element.
Scheme pack_quantized() {
  Scheme scheme = scheme_of(CodeType::kU4, DType::kI32, {11, 4});
  scheme.block = {1, 2, 8};
  scheme.has_zeros = true;
  scheme.scales_dtype = DType::kBF16;
  scheme.scales_shape = {11, 2};
  return scheme;
}

TEST(QuantizedValues, R48_TheSchemesThatAreInUse) {
  for (const auto& [name, scheme] : {std::pair("MXFP4", mxfp4()),
                                     {"GPTQ", gptq()},
                                     {"AWQ", awq()},
                                     {"NVFP4", nvfp4()},
                                     {"compressed-tensors", pack_quantized()}}) {
    for (const DType storage : kStorages) {
      EXPECT_EQ(wrong_elements(QuantizedWorld(scheme, 7), storage), 0U) << name << " to " << lading::name(storage);
    }
  }
}

TEST(QuantizedValues, R48_PartsGoWhereTheExpressionPutsThem) {
  const QuantizedWorld transposed(gptq(), 3);
  const Expression weight = Expression::reshape(Expression::permute(transposed.expression(), {1, 0, 2}), Shape{12, 32});
  EXPECT_EQ(wrong_elements(transposed, weight, DType::kBF16), 0U);
  const auto values =
      values_of_files({weight, Shape{12, 32}, DType::kBF16, transposed.catalog(), 64, 0}, transposed.read());
  ASSERT_TRUE(values);
  EXPECT_GE((*values)->memory_bytes(), 2U * 12 * 32) << "all codes of the key, not its elements";
  EXPECT_EQ(wrong_elements(transposed, Expression::slice(weight, 1, 3, 17), DType::kF32), 0U);
  const QuantizedWorld packed_outputs(awq(), 4);
  Expression in_order = Expression::permute(packed_outputs.expression(), {1, 2, 0});
  in_order = Expression::rearrange(Expression::reshape(in_order, Shape{24, 6}), 0, {3, 2, 4}, {0, 2, 1});
  EXPECT_EQ(wrong_elements(packed_outputs, in_order, DType::kF16), 0U);
  EXPECT_EQ(wrong_elements(packed_outputs, Expression::slice(in_order, 0, 5, 6), DType::kF16), 0U);
  const QuantizedWorld experts(mxfp4(), 5);
  EXPECT_EQ(wrong_elements(experts, Expression::concat(0, {experts.expression(), experts.expression()}), DType::kBF16),
            0U);
}

template <class T, std::size_t N>
T any_of(std::mt19937_64& random, const std::array<T, N>& choices) {
  return choices[random() % N];
}

// Of any code, dtypes, blocks and companions.
Scheme any_scheme(std::mt19937_64& random) {
  constexpr std::array kCodes = {CodeType::kF4, CodeType::kU2, CodeType::kU4, CodeType::kU8, CodeType::kI8};
  constexpr std::array kKeys = {DType::kU8, DType::kI8, DType::kI16, DType::kI32, DType::kU32, DType::kI64};
  constexpr std::array kScales = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E8M0, DType::kF8E4M3};
  Dims dims(1 + random() % 3);
  for (std::uint64_t& dim : dims) dim = 1 + random() % 5;
  Scheme scheme = scheme_of(any_of(random, kCodes), any_of(random, kKeys), Shape(dims));
  if (random() % 6 == 0) {
    scheme.decoding = {};
    scheme.key_dtype = DType::kF8E4M3;
  } else {
    dims.push_back(scheme.decoding.per_element);
  }
  Dims block;
  Dims grid;
  for (const std::uint64_t dim : dims) {
    block.push_back(1 + random() % (dim + 1));
    grid.push_back(up(dim, block.back()));
  }
  scheme.block = Shape(block);
  const std::uint64_t last = grid.back();
  if (scheme.decoding.code) {  // the codes of an element are no dim of the scales
    grid.pop_back();
    grid.back() *= last;
  }
  scheme.scales_shape = Shape(grid);
  scheme.scales_dtype = any_of(random, kScales);
  if (scheme.scales_dtype == DType::kF8E8M0 && random() % 2 == 0) scheme.decoding.scale_dtype = DType::kF8E8M0;
  if (last > 1 && random() % 2 == 0) {
    scheme.decoding.scale_order.resize(last);
    std::iota(scheme.decoding.scale_order.begin(), scheme.decoding.scale_order.end(), std::size_t{0});
    std::shuffle(scheme.decoding.scale_order.begin(), scheme.decoding.scale_order.end(), random);
  }
  if (scheme.decoding.code && *scheme.decoding.code != CodeType::kF4) {
    scheme.decoding.zero = random() % 2 == 0 ? 0 : random() % (random() % 2 == 0 ? 9 : 65536);
    scheme.has_zeros = random() % 2 == 0;
    if (scheme.has_zeros) scheme.decoding.zeros_dim = random() % grid.size();
  }
  scheme.has_tensor_scale = random() % 2 == 0;
  if (scheme.has_tensor_scale && random() % 2 == 0) scheme.decoding.tensor_scale = TensorScale::kDivisor;
  if (random() % 3 == 0) scheme.product = any_of(random, kStorages);
  return scheme;
}

TEST(QuantizedValues, R48_AnySchemeIsWhatFractionsSay) {
  std::mt19937_64 random(20);
  for (std::size_t round = 0; round < test::random_cases(600); ++round) {
    const QuantizedWorld world(any_scheme(random), random());
    const DType storage = any_of(random, kStorages);
    ASSERT_EQ(wrong_elements(world, storage), 0U) << "round " << round;
    std::vector<std::size_t> order(world.dims().size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    ASSERT_EQ(wrong_elements(world, Expression::permute(world.expression(), order), storage), 0U) << "round " << round;
  }
}

TEST(QuantizedValues, R48_RoundedToOddIsRoundedOnceLater) {
  std::mt19937_64 random(21);
  for (std::size_t round = 0; round < test::random_cases(200'000); ++round) {
    const auto number = [&](unsigned digits) {
      return std::ldexp(static_cast<double>(random() % (1ULL << digits) + 1), static_cast<int>(random() % 9) - 4);
    };
    const double a = (random() % 2 == 0 ? 1 : -1) * number(round % 2 == 0 ? 41 : 12);
    const double b = (random() % 2 == 0 ? 1 : -1) * number(round % 3 == 0 ? 24 : 5);
    const Fraction product = Fraction::of(a).times(Fraction::of(b));
    const Fraction quotient = Fraction::of(a).divided_by(Fraction::of(b));
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      ASSERT_EQ(nearest(Fraction::of(times_to_odd(a, b)), dtype), nearest(product, dtype)) << a << " * " << b;
      ASSERT_EQ(nearest(Fraction::of(divided_to_odd(a, b)), dtype), nearest(quotient, dtype)) << a << " / " << b;
    }
  }
  // (0x1030499 * 2^b ± 1) / b, a hair beside half a step of F32: F64 has no room for it.
  for (const auto& [a, b, up] :
       {std::tuple(2278346077459304.0, 4503599648010327.0, 1.0), {2278346073551153.0, 4503599640285097.0, 0.0}}) {
    ASSERT_EQ(a / b, std::ldexp(0x1030499, -25));
    const double right = std::ldexp(0x1030498 + 2 * up, -25);
    for (const double sign : {1.0, -1.0}) {
      EXPECT_EQ(static_cast<float>(divided_to_odd(a, sign * b)), sign * right);
      EXPECT_EQ(static_cast<float>(divided_to_odd(-a, sign * b)), -sign * right);
    }
  }
  EXPECT_EQ(times_to_odd(3, 0), 0.0);
  EXPECT_TRUE(std::isinf(divided_to_odd(3, 0)));
  EXPECT_TRUE(std::isnan(times_to_odd(std::nan(""), 2)));
}

// Of one element: (0 - zero) * scale * tensor scale, whose 64 bits are half a step of F32 and a little.
TEST(QuantizedValues, R48_AProductWithMoreBitsThanF64IsRoundedOnce) {
  const checkpoint::Catalog catalog = planner::world::World::catalog_of(
      {{"p", Shape{1}, DType::kU8}, {"s", Shape{1}, DType::kF32}, {"t", Shape{1}, DType::kF32}});
  Expression expression = Expression::dequantize("p", "s", Shape{1, 1});
  expression.tensor_scale = "t";
  expression.decoding.code = CodeType::kU8;
  expression.decoding.zero = 65461;
  const ReadBytes read = [&](std::uint32_t, std::uint64_t offset, std::span<std::byte> out) -> Result<void> {
    const float value = offset == catalog.find("s", 0)->bytes.begin ? 9016739.0F : 16772921.0F;
    if (out.size() == sizeof value) std::memcpy(out.data(), &value, sizeof value);
    return {};
  };
  const auto made = values_of_files({expression, Shape{1, 1}, DType::kF32, catalog, 64, 0}, read);
  ASSERT_TRUE(made) << made.error().text();
  const auto window = (*made)->at(0);
  ASSERT_TRUE(window);
  EXPECT_EQ(widened(window->bytes, DType::kF32), -std::ldexp(0x112C8A6, 39)) << "two roundings give 0x112C8A4";
}

// What a ledger may say of a checkpoint, and nobody would have loaded.
TEST(QuantizedValues, R48_OnlyWhatCanBeScaledIsScaled) {
  const auto refused = [](const Scheme& scheme, const std::function<void(QuantizedWorld&, Expression&)>& change,
                          DType storage = DType::kBF16) {
    QuantizedWorld world(scheme, 1);
    Expression expression = world.expression();
    change(world, expression);
    const auto made = values_of_files({expression, Shape(world.dims()), storage, world.catalog(), 64, 0}, world.read());
    return made ? "accepted" : made.error().text();
  };
  const auto key = [](QuantizedWorld& world, std::string_view name) -> checkpoint::CatalogTensor& {
    return *std::find_if(world.catalog().tensors.begin(), world.catalog().tensors.end(),
                         [&](const auto& tensor) { return tensor.name == name; });
  };
  const auto nothing = [](QuantizedWorld&, Expression&) {};
  for (const Scheme& scheme : {mxfp4(), gptq(), awq(), nvfp4(), pack_quantized()}) {
    EXPECT_EQ(refused(scheme, nothing), "accepted");
    EXPECT_THAT(refused(scheme, nothing, DType::kI32), HasSubstr("cannot be dequantized to I32"));
    EXPECT_THAT(refused(scheme, nothing, DType::kF8E4M3), HasSubstr("R48"));
  }
  const auto dtype = [&](const char* name, DType to) {
    return [&key, name, to](QuantizedWorld& world, Expression&) { key(world, name).dtype = to; };
  };
  EXPECT_THAT(refused(gptq(), dtype("p", DType::kI64)), HasSubstr("R48")) << "16 codes, and the ledger says 8";
  EXPECT_THAT(refused(gptq(), dtype("s", DType::kI16)), HasSubstr("R48"));
  EXPECT_THAT(refused(gptq(), dtype("s", DType::kF8E5M2)), HasSubstr("R48"));
  EXPECT_THAT(refused(gptq(), dtype("z", DType::kU32)), HasSubstr("R48"));
  EXPECT_THAT(refused(nvfp4(), dtype("t", DType::kI32)), HasSubstr("R48"));
  EXPECT_THAT(refused(mxfp4(), dtype("s", DType::kI8)), HasSubstr("R48")) << "only U8 stands for E8M0";
  EXPECT_THAT(refused(gptq(), [&](QuantizedWorld& w, Expression&) { key(w, "s").shape = {2, 11}; }), HasSubstr("R48"));
  EXPECT_THAT(refused(gptq(), [&](QuantizedWorld& w, Expression&) { key(w, "z").shape = {2, 1}; }), HasSubstr("R48"));
  EXPECT_THAT(refused(nvfp4(), [&](QuantizedWorld& w, Expression&) { key(w, "t").shape = {2}; }), HasSubstr("R48"));
  EXPECT_THAT(refused(gptq(), [](QuantizedWorld&, Expression& e) { e.decoding.zeros_dim = 2; }), HasSubstr("R48"));
  EXPECT_THAT(refused(gptq(), [](QuantizedWorld&, Expression& e) { e.zeros = "y"; }), HasSubstr("y"));
  // By itself, without what expand() sees.
  const QuantizedWorld world(gptq(), 1);
  const auto find = [&](std::string_view name) { return world.catalog().find(name, 0); };
  Quantized quantized{find("s"), find("z"), nullptr, Shape(world.dims()), gptq().block, gptq().decoding, {}};
  EXPECT_TRUE(check_scaling(*find("p"), quantized, DType::kF32));
  quantized.block = {2, 2, 8};
  EXPECT_FALSE(check_scaling(*find("p"), quantized, DType::kF32)) << "there are more scales than blocks";
  quantized.block = {2, 1, 0};
  EXPECT_FALSE(check_scaling(*find("p"), quantized, DType::kF32));
}

}  // namespace
}  // namespace lading::exec::quantized_world
