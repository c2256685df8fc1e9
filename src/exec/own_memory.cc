#include "exec/own_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "device/device.h"
#include "exec/available_memory.h"

namespace lading::exec {
namespace {

constexpr std::uint64_t kAlignment = 64;
// The least that the ranks of a plan can load with; the executor takes more where the plan allows it.
constexpr std::uint64_t kLeastStagingBytes = std::uint64_t{2} << 20;

// A destination, and where it begins in its device's stretch.
struct Place {
  const plan::RankPlan* rank = nullptr;
  const plan::Destination* destination = nullptr;
  std::uint64_t begin = 0;
};

// What a device is asked for, and the destination that asks for most of it.
struct Demand {
  std::uint64_t bytes = 0;
  Place largest;
  std::uint64_t destinations = 0;
};

std::uint64_t least_staging_bytes(const plan::Plan& plan) {
  std::uint64_t most_bytes = 0;
  for (const plan::RankPlan& rank : plan.ranks) most_bytes = std::max(most_bytes, rank.staging_bytes);
  return std::min(most_bytes, kLeastStagingBytes);
}

// Lays the destinations out one behind the other on their devices; those of one flat parameter share a place.
class Places {
 public:
  explicit Places(const plan::Plan& plan) : plan_(plan) {}

  Result<void> lay_out() {
    for (const plan::RankPlan& rank : plan_.ranks) {
      for (const plan::Destination& d : rank.destinations) LADING_TRY(add(rank, d));
    }
    return {};
  }

  [[nodiscard]] const std::vector<Place>& all() const { return places_; }
  [[nodiscard]] const std::map<std::string, Demand>& demands() const { return demands_; }

  // Other devices say by themselves what they lack.
  [[nodiscard]] Result<void> check_host() const {
    const auto host = demands_.find("cpu");
    if (host == demands_.end()) return {};
    const Demand& demand = host->second;
    auto checked = check_memory("cpu", checked_add(demand.bytes, least_staging_bytes(plan_)).value_or(demand.bytes));
    if (checked) return {};
    Error error = std::move(checked).error();
    error.found += fmt::format(" for {} tensors, of which this one has {}", demand.destinations,
                               human_bytes(demand.largest.destination->buffer_bytes));
    return fail(std::move(error)
                    .of_tensor(name_of(*demand.largest.destination))
                    .on_rank(static_cast<int>(demand.largest.rank->rank)));
  }

 private:
  [[nodiscard]] const std::string& name_of(const plan::Destination& d) const {
    return plan_.statements[d.statement].name;
  }

  Result<void> add(const plan::RankPlan& rank, const plan::Destination& d) {
    Demand& demand = demands_[d.device];
    ++demand.destinations;
    Place place{&rank, &d, demand.bytes};
    if (!d.flat_parameter.empty()) {
      const auto [shared, is_new] = shared_.emplace(std::tuple(rank.rank, d.flat_parameter, d.slot), demand.bytes);
      place.begin = shared->second;
      if (!is_new) {
        places_.push_back(place);
        return {};
      }
    }
    const auto end = checked_add(demand.bytes, d.buffer_bytes);
    const auto aligned = end ? checked_add(*end, kAlignment - 1) : std::nullopt;
    if (!aligned) {
      return fail(Error(Code::kOutOfMemory, "the destinations are more than 2^64 bytes").of_tensor(name_of(d)));
    }
    demand.bytes = *aligned / kAlignment * kAlignment;
    if (demand.largest.destination == nullptr || d.buffer_bytes > demand.largest.destination->buffer_bytes) {
      demand.largest = place;
    }
    places_.push_back(place);
    return {};
  }

  const plan::Plan& plan_;
  std::map<std::string, Demand> demands_;  // by device
  std::map<std::tuple<std::uint64_t, std::string, std::string>, std::uint64_t> shared_;
  std::vector<Place> places_;
};

}  // namespace

Result<void> OwnMemory::allocate(const plan::Plan& plan) {
  Places places(plan);
  LADING_TRY(places.lay_out());
  LADING_TRY(places.check_host());
  for (const auto& [name, demand] : places.demands()) {
    LADING_ASSIGN_OR_RETURN(const auto device, device::open_device(name));
    LADING_ASSIGN_OR_RETURN(stretches_[name], device->allocate(demand.bytes));
  }
  for (const Place& place : places.all()) {
    const plan::Destination& d = *place.destination;
    destinations_.push_back(d.buffer_bytes == 0
                                ? std::span<std::byte>()
                                : std::span(stretches_.at(d.device).get() + place.begin, d.buffer_bytes));
  }
  return {};
}

}  // namespace lading::exec
