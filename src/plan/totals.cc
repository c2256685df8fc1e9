#include "plan/totals.h"

#include <algorithm>
#include <tuple>

namespace lading::plan {

std::map<std::string, std::uint64_t> device_bytes(const RankPlan& rank) {
  std::map<std::string, std::uint64_t> bytes;
  std::map<std::tuple<std::string, std::string, std::string>, std::uint64_t> units;
  for (const Destination& destination : rank.destinations) {
    if (destination.unit.empty()) {
      bytes[destination.device] += destination.buffer_bytes;
    } else {
      auto& unit = units[{destination.device, destination.unit, destination.slot}];
      unit = std::max(unit, destination.buffer_bytes);
    }
  }
  for (const auto& [unit, unit_bytes] : units) bytes[std::get<0>(unit)] += unit_bytes;
  return bytes;
}

}  // namespace lading::plan
