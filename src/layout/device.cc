#include <fmt/format.h>

#include <charconv>

#include "base/text.h"
#include "layout/layout.h"

namespace lading::layout {
namespace {

// torch keeps device indices in a signed byte; torch.device("cuda:128") quietly means another device.
constexpr std::uint64_t kMaxIndex = 127;

Error refused(std::string message, std::string_view found) {
  return Error(Code::kLayout, std::move(message)).by_rule("R34").wanted("\"cpu\" or \"cuda:0\"").got(quote(found));
}

}  // namespace

std::string_view word(DeviceType type) { return type == DeviceType::kCpu ? "cpu" : "cuda"; }

std::string Device::text() const {
  return type == DeviceType::kCpu ? std::string(word(type)) : fmt::format("{}:{}", word(type), index);
}

Result<Device> parse_device(std::string_view text) {
  if (text == "cpu") return Device{};
  if (text == "cuda") {
    return fail(refused("the device has no index, so that every rank would use the first one", text)
                    .try_this("Give each rank its own device, such as \"cuda:0\"."));
  }
  if (text == "meta") return fail(refused("the meta device has no memory to load into", text));
  constexpr std::string_view kCuda = "cuda:";
  if (text.substr(0, kCuda.size()) != kCuda) return fail(refused("the device is unknown", text));

  const std::string_view digits = text.substr(kCuda.size());
  std::uint64_t index = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, failure] = std::from_chars(digits.data(), end, index);
  const bool is_number = failure == std::errc() && stop == end && (digits.size() == 1 || digits.front() != '0');
  if (!is_number || index > kMaxIndex) {
    return fail(refused("the index of the device is not valid", text)
                    .wanted(fmt::format("a whole number from 0 to {}", kMaxIndex)));
  }
  return Device{DeviceType::kCuda, index};
}

Device DeviceMap::of(std::uint64_t rank) const {
  if (!list.empty()) {
    LADING_CHECK(rank < list.size());
    return list[rank];
  }
  LADING_CHECK(per_node > 0);
  return Device{type, type == DeviceType::kCpu ? 0 : rank % per_node};
}

Device Layout::device_of(const Placement& placement, std::uint64_t rank) const {
  return placement.device == DeviceRule::kCpu ? Device{} : devices.of(rank);
}

}  // namespace lading::layout
