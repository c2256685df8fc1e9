#include "layout/device_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/enumerator.h"
#include "base/text.h"

namespace lading::layout {
namespace {

constexpr std::uint64_t kUsualPerNode = 8;
constexpr std::uint64_t kMostListed = 1'000'000;

Error usage(std::string message) { return Error(Code::kUsage, std::move(message)).by_rule("R34"); }

// Of a rank among others the device is what its own process calls it. The others do the same, so that the plan, and
// its digest, are theirs too.
Result<ChosenDevices> device_of_one(const Device& device, std::uint64_t rank_count) {
  ChosenDevices chosen;
  if (rank_count != 1) chosen.note = fmt::format("every rank has {}, in a process of its own", device.text());
  if (rank_count != 1 && device.index == 0) {
    chosen.devices.type = device.type;
    chosen.devices.per_node = 1;
  } else if (rank_count > kMostListed) {
    return fail(usage("a device with a number for a rank of so many").wanted("cuda or cuda:0"));
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
      rank_count == 1 ? "the rank has cuda:0" : fmt::format("rank r has cuda:(r % {})", chosen.devices.per_node);
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
    return fail(usage("a number of devices per node goes with the device \"cuda\" only"));
  }
  if (choice.per_node == std::uint64_t{0}) return fail(usage("a node without devices").wanted("1 or more"));
  if (!is_enumerator(choice.type, DeviceType::kCuda)) return fail(usage("a device of a type that is no enumerator"));
  if (choice.type == DeviceType::kCpu && choice.index) return fail(usage("the CPU has no index").wanted("cpu"));
  if (choice.type == DeviceType::kCpu) return ChosenDevices{};
  if (choice.per_node) LADING_TRY(parse_device(Device{choice.type, *choice.per_node - 1}.text()));
  if (is_counted) return count_by_rank(choice, question.rank_count);
  const Device device{choice.type, *choice.index};
  LADING_TRY(parse_device(device.text()));  // its index is in bounds
  if (question.rank_count != 1 && !question.is_for_one_rank) {
    return fail(usage("one device for several ranks")
                    .wanted("cuda, which is then counted by rank, or one rank (--rank R)")
                    .got(quote(device.text()))
                    .try_this("Name the rank with --rank, or give --device cuda."));
  }
  return device_of_one(device, question.rank_count);
}

}  // namespace lading::layout
