// Proves a save plan right, or says what is wrong with it. Shares no code with planner/save.
//
// The load that the save is read from is proved first (checker.h), for all ranks. Then:
//  R69  each byte of each file's data has exactly one writer
//  R69  each write takes from memory what the proved load would put there from the same bytes of the file
//  R69  each file begins with a header that says what the proved load reads: key, dtype, shape and place
//  R69  the index names the file of every key
//  R24  a write casts once, between dtypes that can be cast
#pragma once

#include <cstdint>

#include "lading/result.h"
#include "plan/save/save_plan.h"

namespace lading::checker {

struct SaveCheckReport {
  std::uint64_t bytes_proved = 0;  ///< of the files
};

Result<SaveCheckReport, Errors> check_save(const plan::SavePlan& save);

}  // namespace lading::checker
