// What to do about an error whose place in the code says nothing more exact.
#pragma once

#include <cstdint>
#include <string_view>

#include "lading/error.h"

namespace lading {

/// A sentence, or "" for codes whose errors each need a remedy of their own. tools/lint reads this table, and asks
/// for a remedy wherever an error of such a code is made.
[[nodiscard]] std::string_view usual_remedy(Code code);

/// What to show: of a note, which is not wrong, only a remedy of its own.
enum class Remedies : std::uint8_t { kUsual, kOwn };

/// The error's own remedy, or else the usual one.
[[nodiscard]] std::string_view remedy_of(const Error& error, Remedies which = Remedies::kUsual);

}  // namespace lading
