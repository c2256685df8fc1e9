// What a load did, for people and for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/command.h"
#include "lading/load.h"

namespace lading::cli {

/// `group_read_bytes`: read by all processes of the load, if there are several.
std::string load_text(const LoadReport& report, Colour colour, std::optional<std::uint64_t> group_read_bytes = {});

/// docs/schema/load.md
std::string load_json(const LoadReport& report, std::optional<std::uint64_t> group_read_bytes = {});
std::string load_failure_json(const LoadFailure& failure);

}  // namespace lading::cli
