// What differs between two plans, from their JSON: a plan that was written before may come from another version.
#pragma once

#include "base/json_reader.h"
#include "lading/plan_facts.h"
#include "lading/result.h"

namespace lading::plan {

/// Both `lading.plan/1`. Sentences, warnings and the digest are not compared: they follow from the rest.
Result<PlanDifference, Errors> diff_plans(const JsonDocument& before, const JsonDocument& after);

}  // namespace lading::plan
