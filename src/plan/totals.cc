#include "plan/totals.h"

#include <algorithm>
#include <tuple>

namespace lading::plan {

std::map<std::string, std::uint64_t> device_bytes(const RankPlan& rank) {
  std::map<std::string, std::uint64_t> bytes;
  std::map<std::tuple<std::string, std::string, std::string>, std::uint64_t> flat_parameters;
  for (const Destination& destination : rank.destinations) {
    if (destination.flat_parameter.empty()) {
      bytes[destination.device] += destination.buffer_bytes;
    } else {
      auto& shared = flat_parameters[{destination.device, destination.flat_parameter, destination.slot}];
      shared = std::max(shared, destination.buffer_bytes);
    }
  }
  for (const auto& [shared, shared_bytes] : flat_parameters) bytes[std::get<0>(shared)] += shared_bytes;
  return bytes;
}

}  // namespace lading::plan
