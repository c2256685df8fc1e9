#include "planner/value_checks.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

namespace lading::planner {
namespace {

struct FloatForm {
  int mantissa_bits = 0;
  double largest = 0;
  bool has_infinity = false;
};

// Nothing: not a float of one element per byte or more, with a sign.
std::optional<FloatForm> form_of(DType dtype) {
  const auto ieee = [](int exponent, int mantissa_bits) {
    return FloatForm{mantissa_bits, std::ldexp(2 - std::ldexp(1, -mantissa_bits), exponent), true};
  };
  switch (dtype) {
    case DType::kF64: return ieee(1023, 52);
    case DType::kF32:
    case DType::kC64: return ieee(127, 23);
    case DType::kBF16: return ieee(127, 7);
    case DType::kF16: return ieee(15, 10);
    case DType::kF8E5M2: return ieee(15, 2);
    case DType::kF8E5M2Fnuz: return FloatForm{2, 57344, false};
    case DType::kF8E4M3: return FloatForm{3, 448, false};
    case DType::kF8E4M3Fnuz: return FloatForm{3, 240, false};
    default: return std::nullopt;
  }
}

// To so many bits behind the leading one, ties to even. Never of a number that is not finite, or 0.
double rounded(double value, int mantissa_bits) {
  const double unit = std::ldexp(1, std::ilogb(value) - mantissa_bits);
  return std::nearbyint(value / unit) * unit;
}

bool is_whole_between(double value, double least, double beyond) {
  return std::trunc(value) == value && value >= least && value < beyond;
}

bool is_random(model::RecipeKind kind) {
  return kind == model::RecipeKind::kUniform || kind == model::RecipeKind::kNormal ||
         kind == model::RecipeKind::kTruncatedNormal;
}

// The numbers that say where the values lie. An infinite bound cuts nothing off.
std::vector<double> numbers_of(const model::Recipe& recipe) {
  std::vector<double> numbers;
  if (recipe.kind != model::RecipeKind::kUniform) numbers = {recipe.mean, recipe.std};
  if (recipe.kind == model::RecipeKind::kNormal) return numbers;
  for (const double bound : {recipe.low, recipe.high}) {
    if (!std::isinf(bound)) numbers.push_back(bound);
  }
  return numbers;
}

std::optional<double> bad_pad(const mapping::Expression& expression, DType dtype) {
  if (expression.op == mapping::Op::kPad && !can_hold(dtype, expression.fill)) return expression.fill;
  for (const mapping::Expression& part : expression.parts) {
    if (const auto bad = bad_pad(part, dtype)) return bad;
  }
  return std::nullopt;
}

Error cannot_hold(const Statement& s, std::string_view what, double value) {
  return Error(Code::kPlan, fmt::format("{} cannot hold {} {}", name(s.storage), what, value))
      .of_tensor(s.name)
      .wanted(fmt::format("a value of {}", name(s.storage)))
      .got(fmt::format("{}", value))
      .try_this("Correct the value, or give the tensor a dtype that can hold it.");
}

}  // namespace

bool can_hold(DType dtype, double value) {
  const auto form = form_of(dtype);
  if (form) {
    if (std::isnan(value) || value == 0) return true;
    if (std::isinf(value)) return form->has_infinity;
    return dtype == DType::kF64 || std::abs(rounded(value, form->mantissa_bits)) <= form->largest;
  }
  const int width = static_cast<int>(bits(dtype));
  switch (class_of(dtype)) {
    case DTypeClass::kBool: return value == 0 || value == 1;
    case DTypeClass::kUnsigned: return is_whole_between(value, 0, std::ldexp(1, width));
    case DTypeClass::kSigned: return is_whole_between(value, -std::ldexp(1, width - 1), std::ldexp(1, width - 1));
    case DTypeClass::kFloat:
    case DTypeClass::kComplex: break;
  }
  if (dtype != DType::kF8E8M0) return value == 0;  // packed elements are copied; only zeros are made
  if (std::isnan(value)) return true;
  // A block scale is a power of two.
  if (!std::isfinite(value) || value <= 0) return false;
  const double power = rounded(value, 0);
  return power >= std::ldexp(1, -127) && power <= std::ldexp(1, 127);
}

bool is_same_recipe(model::Recipe one, model::Recipe other) {
  if (std::isnan(one.value) && std::isnan(other.value)) one.value = other.value = 0;
  return one == other;
}

Provenance provenance_of(model::RecipeKind kind) {
  switch (kind) {
    case model::RecipeKind::kFill: return Provenance::kFill;
    case model::RecipeKind::kHost: return Provenance::kHost;
    case model::RecipeKind::kCall: return Provenance::kCall;
    default: return Provenance::kRandom;
  }
}

std::optional<Error> find_value_problem(const Statement& s) {
  if (s.provenance == Provenance::kFill) {
    if (!can_hold(s.storage, s.recipe.value)) return cannot_hold(s, "the fill", s.recipe.value).by_rule("R20");
    if (s.recipe.zero_row && !can_hold(s.storage, 0)) return cannot_hold(s, "the zero row's", 0).by_rule("R20");
  }
  if (s.provenance == Provenance::kFile) {
    std::optional<double> bad = bad_pad(s.expression, s.storage);
    for (const mapping::Expression& other : s.must_equal) {
      if (!bad) bad = bad_pad(other, s.storage);
    }
    if (bad) return cannot_hold(s, "the padding", *bad).by_rule("R20");
  }
  if (s.provenance == Provenance::kRandom && is_random(s.recipe.kind)) {
    if (class_of(s.storage) != DTypeClass::kFloat || !form_of(s.storage)) {
      return Error(Code::kPlan, fmt::format("random values cannot be stored as {}", name(s.storage)))
          .of_tensor(s.name)
          .by_rule("R19")
          .wanted("a floating dtype with a sign, of whole bytes")
          .try_this("Give the tensor a floating dtype, or another recipe.");
    }
    for (const double number : numbers_of(s.recipe)) {
      // They are drawn in F32 (R19), and cast.
      if (!can_hold(s.storage, number) || !can_hold(DType::kF32, number))
        return cannot_hold(s, "random values around", number).by_rule("R19");
    }
  }
  return std::nullopt;
}

}  // namespace lading::planner
