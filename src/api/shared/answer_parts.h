// What several answers have in common (answers.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json_writer.h"
#include "lading/load.h"
#include "plan/plan.h"

namespace lading {

void begin_answer(JsonWriter& json, std::string_view kind, Exit exit_code);
std::string end_answer(JsonWriter& json, const Errors& warnings, const Errors& problems);

void write_dims(JsonWriter& json, std::string_view key, const Shape& shape);
void write_strings(JsonWriter& json, std::string_view key, const std::vector<std::string>& strings,
                   JsonWriter::Lines lines);
/// "destinations", and the "replica_sets" that they name.
void write_destinations(JsonWriter& json, const std::vector<DestinationInfo>& destinations, const plan::Plan& plan);

}  // namespace lading
