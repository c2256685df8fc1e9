#include "checker/check_values.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

namespace lading::checker {
namespace {

// Finite values of this size and above do not round to a finite one.
double overflow_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 65520;
    case DType::kBF16: return 0x1.FFp127;
    case DType::kF8E5M2:
    case DType::kF8E5M2Fnuz: return 61440;
    case DType::kF8E4M3: return std::nextafter(464, 465);  // half way, 464 still goes to the even 448
    case DType::kF8E4M3Fnuz: return 248;
    default: return 0x1.FFFFFFp127;  // F32, and the halves of C64
  }
}

bool has_infinity(DType dtype) {
  return dtype != DType::kF8E5M2Fnuz && dtype != DType::kF8E4M3 && dtype != DType::kF8E4M3Fnuz;
}

bool is_whole(double value) { return std::floor(value) == value; }

Result<void> check_constant(const Statement& s, double value, std::string_view rule) {
  if (dtype_has(s.storage, value)) return {};
  return fail(Error(Code::kPlanCheck, "the tensor's dtype cannot hold the constant")
                  .by_rule(rule)
                  .wanted(fmt::format("a value of {}", name(s.storage)))
                  .got(fmt::format("{}", value)));
}

Result<void> check_pads(const Statement& s, const mapping::Expression& expression) {
  if (expression.op == mapping::Op::kPad) LADING_TRY(check_constant(s, expression.fill, "R20"));
  for (const mapping::Expression& part : expression.parts) LADING_TRY(check_pads(s, part));
  return {};
}

}  // namespace

bool dtype_has(DType dtype, double value) {
  switch (dtype) {
    case DType::kBool: return value == 0 || value == 1;
    case DType::kU8: return is_whole(value) && value >= 0 && value <= 255;
    case DType::kI8: return is_whole(value) && value >= -128 && value <= 127;
    case DType::kU16: return is_whole(value) && value >= 0 && value <= 65535;
    case DType::kI16: return is_whole(value) && value >= -32768 && value <= 32767;
    case DType::kU32: return is_whole(value) && value >= 0 && value <= 4294967295.0;
    case DType::kI32: return is_whole(value) && value >= -2147483648.0 && value <= 2147483647.0;
    case DType::kU64: return is_whole(value) && value >= 0 && value < 0x1p64;
    case DType::kI64: return is_whole(value) && value >= -0x1p63 && value < 0x1p63;
    case DType::kF4:
    case DType::kF6E2M3:
    case DType::kF6E3M2: return value == 0;
    case DType::kF8E8M0: return std::isnan(value) || (value >= 0x1.8p-128 && value < 0x1.8p127);
    case DType::kF64: return true;
    default: break;
  }
  if (std::isnan(value)) return true;
  return std::isinf(value) ? has_infinity(dtype) : std::fabs(value) < overflow_of(dtype);
}

Result<void> check_values(const Statement& s) {
  const model::Recipe& recipe = s.recipe;
  for (const mapping::Expression& other : s.must_equal) LADING_TRY(check_pads(s, other));
  if (s.provenance == Provenance::kFile) return check_pads(s, s.expression);
  if (s.provenance == Provenance::kFill) {
    if (recipe.zero_row) LADING_TRY(check_constant(s, 0, "R20"));
    return check_constant(s, recipe.value, "R20");
  }
  if (s.provenance != Provenance::kRandom) return {};
  const bool signed_float =
      class_of(s.storage) == DTypeClass::kFloat && bits(s.storage) >= 8 && s.storage != DType::kF8E8M0;
  if (!signed_float) {
    return fail(Error(Code::kPlanCheck, "the tensor's dtype cannot hold random values").by_rule("R19"));
  }
  const auto check = [&](double number) -> Result<void> {
    LADING_TRY(check_constant(s, number, "R19"));
    if (std::fabs(number) < overflow_of(DType::kF32)) return {};
    return fail(Error(Code::kPlanCheck, "the random values cannot be drawn in F32").by_rule("R19"));
  };
  if (recipe.kind != model::RecipeKind::kUniform) {
    LADING_TRY(check(recipe.mean));
    LADING_TRY(check(recipe.std));
  }
  if (recipe.kind != model::RecipeKind::kNormal) {
    if (std::isfinite(recipe.low)) LADING_TRY(check(recipe.low));
    if (std::isfinite(recipe.high)) LADING_TRY(check(recipe.high));
  }
  return {};
}

}  // namespace lading::checker
