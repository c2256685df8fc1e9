// A layout by words, for tests.
#pragma once

#include <string_view>

#include "lading/layout.h"

namespace lading::test {

inline layout::ByStrategy by_strategy(std::string_view strategy, std::string_view mesh = "",
                                      std::string_view device = "cpu") {
  layout::ByStrategy made;
  made.strategy = layout::parse_strategy(strategy).value();
  if (!mesh.empty()) made.mesh = layout::parse_mesh(mesh).value();
  made.device = layout::parse_device_choice(device).value();
  return made;
}

}  // namespace lading::test
