// Parts of `lading.layout/1` that other documents have too.
#pragma once

#include <vector>

#include "base/json_writer.h"
#include "layout/layout.h"

namespace lading::layout {

/// [{"name": "dp", "size": 4}]
void write_mesh(JsonWriter& json, const Mesh& mesh);
void write_cuts(JsonWriter& json, const std::vector<Cut>& cuts, const Mesh& mesh);
void write_devices(JsonWriter& json, const DeviceMap& devices);

}  // namespace lading::layout
