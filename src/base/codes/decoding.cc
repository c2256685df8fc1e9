#include "lading/decoding.h"

#include <algorithm>
#include <array>

namespace lading {
namespace {

struct CodeTypeRow {
  CodeType code;
  std::string_view name;
  unsigned bits;
};

// In the order of the enum.
constexpr std::array kCodeTypes = {
    CodeTypeRow{CodeType::kF4, "F4", 4}, CodeTypeRow{CodeType::kU2, "U2", 2}, CodeTypeRow{CodeType::kU4, "U4", 4},
    CodeTypeRow{CodeType::kU8, "U8", 8}, CodeTypeRow{CodeType::kI8, "I8", 8},
};

const CodeTypeRow& code_type_row(CodeType code) { return kCodeTypes[static_cast<std::size_t>(code)]; }

}  // namespace

std::string_view name(CodeType code) { return code_type_row(code).name; }

unsigned bits(CodeType code) { return code_type_row(code).bits; }

std::optional<CodeType> code_from_name(std::string_view name) {
  const auto found =
      std::find_if(kCodeTypes.begin(), kCodeTypes.end(), [&](const CodeTypeRow& one) { return one.name == name; });
  if (found == kCodeTypes.end()) return std::nullopt;
  return found->code;
}

}  // namespace lading
