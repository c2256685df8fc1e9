// What a load did, for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/command.h"
#include "lading/load.h"

namespace lading::cli {

/// `group_read_bytes`: read by all processes of the load, if there are several.
std::string load_text(const LoadReport& report, Colour colour, std::optional<std::uint64_t> group_read_bytes = {});

}  // namespace lading::cli
