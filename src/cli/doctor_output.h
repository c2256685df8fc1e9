// What `lading doctor` prints: for people and as JSON.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "lading/doctor.h"

namespace lading::cli {

[[nodiscard]] std::string doctor_text(const std::string& path, const std::vector<Finding>& findings, Colour colour);
[[nodiscard]] std::string doctor_json(const std::string& path, const std::vector<Finding>& findings);
[[nodiscard]] std::string doctor_failure_json(const Error& problem);

}  // namespace lading::cli
