// What the engine asks beside an Expression itself.
#pragma once

#include <functional>
#include <string_view>

#include "lading/expression.h"
#include "lading/result.h"
#include "lading/shape.h"

namespace lading::mapping {

/// Looks up a checkpoint tensor's shape; null if it is not there.
using ShapeOf = std::function<const Shape*(std::string_view key)>;

}  // namespace lading::mapping
