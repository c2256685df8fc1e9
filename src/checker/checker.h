// The checker: proves a finished plan right, or says what is wrong with it. Shares no code with the planner,
// with layout's region_of or with mapping's expand: it works element runs out its own way.
//
// For every rank in the plan:
//  R1   every statement has one source, and every rank that should have the tensor has one destination for it
//  R11  each byte of each buffer has exactly one writer, padding included (R56)
//  R41  each transfer takes the elements that expression and placement demand: the right key, the right place
//  R45  every source range lies inside its tensor, and that inside its file
//  R23  the dtypes that are cast can be cast, in one step
//  R20  constants are values of the dtype that they are written in
//  R48  a quantized element is decoded as its statement says, with the scale and the zero point of its block, and the
//       rank reads both
//  R49  members of a tie class share one destination on each rank and slot, and one placement (R52)
//  R50  every owned element is compared once with each key that must be equal
//  R64  the stated memory is what the buffers need
//  R66  what is computed has its inputs on the same rank
#pragma once

#include <string>
#include <vector>

#include "checker/plan_types.h"
#include "lading/result.h"

namespace lading::checker {

struct Unread {
  std::string key;
  std::uint64_t bytes = 0;  ///< of it that no rank in the plan reads
};

struct CheckReport {
  std::uint64_t bytes_proved = 0;
  std::vector<Unread> unread;  ///< of the plan's sources, over the ranks that it has
};

Result<CheckReport, Errors> check_plan(const Plan& plan);

}  // namespace lading::checker
