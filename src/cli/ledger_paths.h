// The ledgers of one load, as a user names them: a file, or a directory with one for each process.
#pragma once

#include <string>
#include <vector>

#include "lading/plan.h"
#include "lading/result.h"

namespace lading::cli {

/// What is wrong with a file is said when it is read. Refuses a directory without ledgers.
[[nodiscard]] Result<std::vector<Document>, Errors> ledgers_at(const std::string& path);

}  // namespace lading::cli
