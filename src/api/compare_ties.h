// The keys of ties, compared before anything is written (R50).
#pragma once

#include <string>
#include <vector>

#include "model/skeleton.h"
#include "plan/plan.h"
#include "policy/policy.h"
#include "source/checkpoint_source.h"

namespace lading {

/// Names that left their tie class (may_untie), by what their keys hold.
struct Leaving {
  std::vector<std::string> different;  ///< other values than the class's
  bool others_stay = false;            ///< another one holds the same values, or none of a file
};
Result<Leaving> compare_leaving(const plan::Plan& plan, const model::Skeleton& skeleton, const policy::Policy& policy,
                                const source::CheckpointSource& source);

/// An error for every tie class whose keys do not all hold the same.
Errors compare_ties(const plan::Plan& plan, const source::CheckpointSource& source);

}  // namespace lading
