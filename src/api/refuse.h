// What the functions of the API answer when they stop before anything is loaded.
#pragma once

#include <string>
#include <utility>

#include "lading/refusal.h"

namespace lading {

inline Unexpected<Refusal> refuse(Stage stage, Errors problems) { return {Refusal{stage, std::move(problems)}}; }

inline Error usage(std::string message) { return {Code::kUsage, std::move(message)}; }

}  // namespace lading
