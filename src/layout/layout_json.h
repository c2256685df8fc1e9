// The pieces of `lading.layout/1` that stand alone, for other documents that have them too.
#pragma once

#include <string>
#include <vector>

#include "base/json_fields.h"
#include "layout/layout.h"

namespace lading::layout {

struct MeshReading {
  Mesh mesh;         ///< the names can be looked up even if it is not good
  bool good = true;  ///< false: sizes mean nothing, and what depends on them is not checked
};

/// "mesh": [{"name": "dp", "size": 4}]
MeshReading read_mesh(JsonFields& fields, Errors& errors);

/// A list of cuts. What is wrong with them in themselves is a problem too, with its path.
std::vector<Cut> read_cuts(const JsonValue& value, const std::string& path, const MeshReading& mesh, Errors& errors);

}  // namespace lading::layout
