// Whether a checkpoint may make planning take as much memory as it would. Pure.
#pragma once

#include "checkpoint/catalog.h"
#include "lading/result.h"

namespace lading::planner {

/// A small file may not make a plan take gigabytes; one that has gigabytes itself may.
Errors check_amount(const checkpoint::Catalog& catalog);

}  // namespace lading::planner
