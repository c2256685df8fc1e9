// The keys of ties, compared before anything is written (R50).
#pragma once

#include <string>
#include <vector>

#include "model/skeleton.h"
#include "plan/plan.h"
#include "policy/policy.h"
#include "source/checkpoint_source.h"

namespace lading {

/// Of the names that left their tie class (may_untie), those whose keys do hold other values than the class's.
Result<std::vector<std::string>> different_from_class(const plan::Plan& plan, const model::Skeleton& skeleton,
                                                      const policy::Policy& policy,
                                                      const source::CheckpointSource& source);

/// An error for every tie class whose keys do not all hold the same.
Errors compare_ties(const plan::Plan& plan, const source::CheckpointSource& source);

}  // namespace lading
