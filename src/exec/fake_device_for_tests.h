// For tests: a device whose lanes only count what is done with them.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "exec/devices.h"

namespace lading::exec {

struct LaneCounts {
  std::atomic<int> open = 0;
  std::atomic<int> attached = 0;  ///< and not yet detached
  std::atomic<int> finished = 0;
};

class FakeLane : public device::Lane {
 public:
  FakeLane(LaneCounts& counts, Error* failure) : counts_(counts), failure_(failure) { ++counts_.open; }
  ~FakeLane() override { --counts_.open; }
  FakeLane(const FakeLane&) = delete;
  FakeLane& operator=(const FakeLane&) = delete;

  void attach() override { ++counts_.attached; }
  void detach() override { --counts_.attached; }
  Result<std::span<std::byte>> acquire_staging_buffer() override { return std::span<std::byte>(); }
  Result<void> release_staging_buffer() override { return {}; }
  Result<void> move(const device::Move&) override { return {}; }
  Result<void> fill(const device::Fill&) override { return {}; }
  Result<void> sample(const device::Sample&) override { return {}; }
  Result<void> digest(const device::DigestJob&) override { return {}; }
  Result<void> fetch(const std::byte*, std::span<std::byte>) override { return {}; }
  Result<void> finish() override {
    ++counts_.finished;
    if (failure_ != nullptr) return fail(*failure_);
    return {};
  }

 private:
  LaneCounts& counts_;
  Error* failure_;
};

struct FakeDeviceOptions {
  bool is_host = true;
  int most_lanes = 1000;
  std::uint64_t extra_lane_bytes = 0;  ///< beside its buffers
  Error* finish_failure = nullptr;     ///< what lanes say when they finish
};

class FakeDevice : public device::Device {
 public:
  explicit FakeDevice(LaneCounts& counts, FakeDeviceOptions options = {}) : counts_(counts), options_(options) {}

  [[nodiscard]] std::string name() const override { return "fake"; }
  [[nodiscard]] bool is_host() const override { return options_.is_host; }
  [[nodiscard]] std::uint64_t lane_bytes(const device::LaneOptions& lane) const override {
    return lane.staging_buffers * lane.staging_buffer_bytes + options_.extra_lane_bytes;
  }
  Result<std::unique_ptr<device::Lane>> open_lane(const device::LaneOptions&) override {
    if (counts_.open == options_.most_lanes) return fail(Error(Code::kOutOfMemory, "no more lanes"));
    return std::unique_ptr<device::Lane>(new FakeLane(counts_, options_.finish_failure));
  }
  [[nodiscard]] Result<void> check(std::span<const std::byte>) const override { return {}; }
  Result<std::shared_ptr<std::byte>> allocate(std::uint64_t) override {
    return fail(Error(Code::kOutOfMemory, "a fake device has no memory"));
  }
  Result<void> take_scales(const device::BlockScales&) override { return {}; }
  void forget_scales(const device::BlockScales&) override {}
  Result<void> collect_digests() override { return {}; }
  [[nodiscard]] std::vector<std::string> take_notes() override { return {}; }

 private:
  LaneCounts& counts_;
  FakeDeviceOptions options_;
};

inline std::vector<LoadDevice> fake_devices(LaneCounts& counts, FakeDeviceOptions options = {}) {
  std::vector<LoadDevice> devices;
  devices.emplace_back().device = std::make_unique<FakeDevice>(counts, options);
  return devices;
}

}  // namespace lading::exec
