// Which dtype two dtypes make, and which conversions there are. torch 2.13 is the reference: all 361
// ordered pairs were run there, and promote_test.cc holds that table.
#include <fmt/format.h>

#include "policy/policy.h"

namespace lading::policy {
namespace {

bool is_integer(DType dtype) {
  return class_of(dtype) == DTypeClass::kSigned || class_of(dtype) == DTypeClass::kUnsigned;
}

// torch has these three as storage, without arithmetic.
bool is_wide_unsigned(DType dtype) { return dtype == DType::kU16 || dtype == DType::kU32 || dtype == DType::kU64; }

int category(DType dtype) {
  if (class_of(dtype) == DTypeClass::kBool) return 0;
  if (is_integer(dtype)) return 1;
  return class_of(dtype) == DTypeClass::kFloat ? 2 : 3;
}

DType promote_integers(DType a, DType b) {
  if (bits(a) != bits(b)) return bits(a) > bits(b) ? a : b;
  return DType::kI16;  // U8 with I8: no other two of one width get here
}

DType promote_floats(DType a, DType b) {
  if (bits(a) != bits(b)) return bits(a) > bits(b) ? a : b;
  return DType::kF32;  // F16 with BF16: neither holds the other
}

Error refusal(DType a, DType b, std::string_view why) {
  return Error(Code::kDType, fmt::format("{} and {} have no common dtype: {}", name(a), name(b), why))
      .by_rule("R23")
      .try_this("Request a dtype that both can be cast to.");
}

}  // namespace

bool is_float8(DType dtype) { return class_of(dtype) == DTypeClass::kFloat && bits(dtype) == 8; }
bool is_packed(DType dtype) { return bits(dtype) < 8; }
bool is_ordinary_float(DType dtype) {
  return class_of(dtype) == DTypeClass::kFloat && !is_float8(dtype) && !is_packed(dtype);
}

Result<DType> promote_types(DType a, DType b) {
  if (a == b) return a;
  if (is_packed(a) || is_packed(b)) return fail(refusal(a, b, "packed elements can only be copied"));
  if (is_float8(a) || is_float8(b)) return fail(refusal(a, b, "float8 does not promote"));
  if (is_wide_unsigned(a) || is_wide_unsigned(b)) {
    const DType other = is_wide_unsigned(a) ? b : a;
    if (is_ordinary_float(other)) return other;
    return fail(refusal(a, b, "U16, U32 and U64 promote with floating dtypes only"));
  }
  if (category(a) != category(b)) {
    const DType higher = category(a) > category(b) ? a : b;
    const DType lower = category(a) > category(b) ? b : a;
    if (higher == DType::kC64 && lower == DType::kF64) return fail(refusal(a, b, "no file holds complex128"));
    return higher;
  }
  return category(a) == 1 ? promote_integers(a, b) : promote_floats(a, b);
}

bool cast_is_possible(DType from, DType to) {
  if (from == to) return true;
  if (is_integer(from) && is_integer(to)) {
    if (bits(to) <= bits(from)) return false;
    return class_of(from) == DTypeClass::kUnsigned || class_of(to) == DTypeClass::kSigned;
  }
  // E8M0 has neither sign nor zero: it is a block's scale, and a scale on its own is no value (R48).
  const auto converts = [](DType dtype) {
    return class_of(dtype) == DTypeClass::kFloat && !is_packed(dtype) && dtype != DType::kF8E8M0;
  };
  return converts(from) && converts(to);
}

bool is_wide_enough(DType from, DType to) {
  if (from == to) return true;
  if (is_integer(from) && is_integer(to)) return cast_is_possible(from, to);
  return is_ordinary_float(from) && is_ordinary_float(to) && promote_types(from, to).value() == to;
}

}  // namespace lading::policy
