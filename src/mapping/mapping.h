// `lading.mapping/1`: docs/schema/mapping.md.
#pragma once

#include <string>

#include "base/json_reader.h"
#include "lading/mapping.h"
#include "lading/result.h"

namespace lading::mapping {

/// What is wrong with the rules in themselves: patterns, templates, ids that are empty or used twice.
Errors check_mapping(const Mapping& mapping);

/// `lading.mapping/1`; check_mapping() is part of it.
Result<Mapping, Errors> parse_mapping(const JsonDocument& document);
std::string mapping_json(const Mapping& mapping);

}  // namespace lading::mapping
