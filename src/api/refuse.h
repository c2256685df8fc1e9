// What the functions of the API answer when they stop before anything is loaded.
#pragma once

#include <utility>

#include "lading/plan.h"

namespace lading {

inline Unexpected<PlanRefusal> refuse(PlanStage stage, Errors problems) {
  return {PlanRefusal{stage, std::move(problems)}};
}

}  // namespace lading
