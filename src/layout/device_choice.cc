#include "layout/device_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/enumerator.h"
#include "base/text.h"

namespace lading::layout {
namespace {

constexpr std::uint64_t kUsualPerNode = 8;
constexpr std::uint64_t kMostListed = 1'000'000;

Error usage(std::string message) {
  return Error(Code::kUsage, std::move(message))
      .by_rule("R34")
      .try_this("Use cpu, cuda, or for one rank a device such as cuda:1.");
}

// Of a rank among others the device is what its own process calls it. The others do the same, so that the plan, and
// its digest, are theirs too.
Result<ChosenDevices> device_of_one(const Device& device, std::uint64_t rank_count) {
  ChosenDevices chosen;
  if (rank_count != 1) chosen.note = fmt::format("every rank uses {}, in its own process", device.text());
  if (rank_count != 1 && device.index == 0) {
    chosen.devices.type = device.type;
    chosen.devices.per_node = 1;
  } else if (rank_count > kMostListed) {
    return fail(usage("a device with an index cannot be chosen for one of so many ranks").wanted("cuda or cuda:0"));
  } else {
    chosen.devices.list.assign(rank_count, device);
  }
  return chosen;
}

Result<ChosenDevices> count_by_rank(const DeviceChoice& choice, std::uint64_t rank_count) {
  ChosenDevices chosen;
  chosen.devices.type = choice.type;
  chosen.devices.per_node = choice.per_node.value_or(std::min(rank_count, kUsualPerNode));
  chosen.note =
      rank_count == 1 ? "the rank uses cuda:0" : fmt::format("rank r uses cuda:(r % {})", chosen.devices.per_node);
  return chosen;
}

}  // namespace

Result<DeviceChoice> parse_device_choice(std::string_view text) {
  DeviceChoice choice;
  if (text == "cuda") {
    choice.type = DeviceType::kCuda;
    return choice;
  }
  LADING_ASSIGN_OR_RETURN(const Device device, parse_device(text));
  choice.type = device.type;
  if (device.type != DeviceType::kCpu) choice.index = device.index;
  return choice;
}

Result<ChosenDevices> choose_devices(const DeviceQuestion& question) {
  const DeviceChoice& choice = question.choice;
  const bool is_counted = choice.type == DeviceType::kCuda && !choice.index;
  if (choice.per_node && !is_counted) {
    return fail(usage("the number of devices per node can only be combined with the device \"cuda\""));
  }
  if (choice.per_node == std::uint64_t{0})
    return fail(usage("the number of devices per node is 0").wanted("1 or more"));
  if (!is_enumerator(choice.type, DeviceType::kCuda)) return fail(usage("the device type is not a known enumerator"));
  if (choice.type == DeviceType::kCpu && choice.index) return fail(usage("the CPU has no index").wanted("cpu"));
  if (choice.type == DeviceType::kCpu) return ChosenDevices{};
  if (choice.per_node) LADING_TRY(parse_device(Device{choice.type, *choice.per_node - 1}.text()));
  if (is_counted) return count_by_rank(choice, question.rank_count);
  const Device device{choice.type, *choice.index};
  LADING_TRY(parse_device(device.text()));  // its index is in bounds
  if (question.rank_count != 1 && !question.is_for_one_rank) {
    return fail(usage("one device is given for several ranks")
                    .wanted("cuda (rank r then uses cuda:r), or one rank (--rank R)")
                    .got(quote(device.text()))
                    .try_this("Select one rank with --rank, or pass --device cuda."));
  }
  return device_of_one(device, question.rank_count);
}

}  // namespace lading::layout
