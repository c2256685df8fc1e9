// What the functions of the API answer when they stop before anything is loaded.
#pragma once

#include <utility>

#include "lading/refusal.h"

namespace lading {

inline Unexpected<Refusal> refuse(Stage stage, Errors problems) { return {Refusal{stage, std::move(problems)}}; }

}  // namespace lading
