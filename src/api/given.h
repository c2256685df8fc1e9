// Inputs of a plan that a program gives as values, or as documents. Values are checked as documents are.
#pragma once

#include "lading/document.h"

namespace lading {

Result<model::Skeleton, Errors> skeleton_given(const Given<model::Skeleton>& given);
Result<mapping::Mapping, Errors> mapping_given(const Given<mapping::Mapping>& given);
Result<policy::Policy, Errors> policy_given(const Given<policy::Policy>& given);

}  // namespace lading
