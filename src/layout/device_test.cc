#include <gtest/gtest.h>

#include "layout/layout.h"

namespace lading::layout {
namespace {

TEST(Device, R34_TypesAndIndicesAreExplicit) {
  EXPECT_EQ(parse_device("cpu").value(), (Device{DeviceType::kCpu, 0}));
  EXPECT_EQ(parse_device("cuda:3").value(), (Device{DeviceType::kCuda, 3}));
  EXPECT_EQ(parse_device("cuda:0").value().text(), "cuda:0");
  EXPECT_EQ(parse_device("cuda:127").value().text(), "cuda:127");
  EXPECT_EQ(parse_device("cpu").value().text(), "cpu");
}

TEST(Device, R34_BareCudaIsRefusedWithARemedy) {
  const auto device = parse_device("cuda");
  ASSERT_FALSE(device.has_value());
  EXPECT_EQ(device.error().code, Code::kLayout);
  EXPECT_EQ(device.error().rule, "R34");
  EXPECT_FALSE(device.error().remedy.empty());
}

TEST(Device, R34_EverythingElseIsRefused) {
  for (const char* const text : {"", "meta", "meta:0", "cpu:0", "cuda:", "cuda:-1", "cuda:01", "cuda:128", "cuda:1x",
                                 "cuda: 1", "CUDA:0", "cuda:99999999999999999999", "cuda0", "gpu:0", "cuda:1:2"}) {
    const auto device = parse_device(text);
    ASSERT_FALSE(device.has_value()) << text;
    EXPECT_EQ(device.error().rule, "R34") << text;
  }
}

TEST(DeviceMap, R34_EveryRankOfANodeHasItsOwn) {
  const DeviceMap devices{{}, DeviceType::kCuda, 8};
  EXPECT_EQ(devices.of(1).text(), "cuda:1");
  EXPECT_EQ(devices.of(7).text(), "cuda:7");
  EXPECT_EQ(devices.of(8).text(), "cuda:0");
  EXPECT_EQ(devices.of(0xFFFF'FFFF).text(), "cuda:7");
  EXPECT_EQ(DeviceMap{}.of(5).text(), "cpu");
  EXPECT_EQ((DeviceMap{{{DeviceType::kCuda, 1}, {DeviceType::kCuda, 0}}, DeviceType::kCpu, 1}).of(0).text(), "cuda:1");
}

TEST(Layout, R36_OffloadedParametersAreOnTheCpuAndBuffersOnTheRanksDevice) {
  Layout layout;
  layout.mesh = Mesh({{"dp", 2}});
  layout.devices = {{}, DeviceType::kCuda, 2};
  layout.rules.push_back({"*.weight", {{Slot{}}, DeviceRule::kCpu, ""}});
  EXPECT_EQ(layout.device_of(layout.placement_of("a.weight"), 1).text(), "cpu");
  EXPECT_EQ(layout.device_of(layout.placement_of("a.running_mean"), 1).text(), "cuda:1");
}

}  // namespace
}  // namespace lading::layout
