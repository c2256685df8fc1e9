// The one form of what the checker refuses. Internal to the room.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "lading/error.h"

namespace lading::checker {

inline Error problem(std::string message, std::string_view rule) {
  return Error(Code::kPlanCheck, std::move(message)).by_rule(rule);
}

}  // namespace lading::checker
