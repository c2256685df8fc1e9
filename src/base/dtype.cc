#include "lading/dtype.h"

#include <algorithm>
#include <array>

namespace lading {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  unsigned bits;
  DTypeClass dtype_class;
};

// In the order of the enum, which all_dtypes() relies on and dtype_test.cc checks.
constexpr std::array kRows = {
    Row{DType::kBool, "BOOL", 8, DTypeClass::kBool},
    Row{DType::kF4, "F4", 4, DTypeClass::kFloat},
    Row{DType::kF6E2M3, "F6_E2M3", 6, DTypeClass::kFloat},
    Row{DType::kF6E3M2, "F6_E3M2", 6, DTypeClass::kFloat},
    Row{DType::kU8, "U8", 8, DTypeClass::kUnsigned},
    Row{DType::kI8, "I8", 8, DTypeClass::kSigned},
    Row{DType::kF8E5M2, "F8_E5M2", 8, DTypeClass::kFloat},
    Row{DType::kF8E4M3, "F8_E4M3", 8, DTypeClass::kFloat},
    Row{DType::kF8E8M0, "F8_E8M0", 8, DTypeClass::kFloat},
    Row{DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8, DTypeClass::kFloat},
    Row{DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8, DTypeClass::kFloat},
    Row{DType::kI16, "I16", 16, DTypeClass::kSigned},
    Row{DType::kU16, "U16", 16, DTypeClass::kUnsigned},
    Row{DType::kF16, "F16", 16, DTypeClass::kFloat},
    Row{DType::kBF16, "BF16", 16, DTypeClass::kFloat},
    Row{DType::kI32, "I32", 32, DTypeClass::kSigned},
    Row{DType::kU32, "U32", 32, DTypeClass::kUnsigned},
    Row{DType::kF32, "F32", 32, DTypeClass::kFloat},
    Row{DType::kC64, "C64", 64, DTypeClass::kComplex},
    Row{DType::kF64, "F64", 64, DTypeClass::kFloat},
    Row{DType::kI64, "I64", 64, DTypeClass::kSigned},
    Row{DType::kU64, "U64", 64, DTypeClass::kUnsigned},
};

constexpr auto kAll = [] {
  std::array<DType, kRows.size()> all{};
  std::transform(kRows.begin(), kRows.end(), all.begin(), [](const Row& row) { return row.dtype; });
  return all;
}();

const Row& row(DType dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::string_view name(DType dtype) { return row(dtype).name; }
unsigned bits(DType dtype) { return row(dtype).bits; }
DTypeClass class_of(DType dtype) { return row(dtype).dtype_class; }
std::span<const DType> all_dtypes() { return kAll; }

std::optional<DType> dtype_from_name(std::string_view name) {
  const auto found = std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.name == name; });
  if (found == kRows.end()) return std::nullopt;
  return found->dtype;
}

}  // namespace lading
