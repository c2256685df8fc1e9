// The canary on GPUs: the same random plans, with destinations in device memory, and ranks on several GPUs where there
// are some. Runs on the stand-in for the driver where there is no GPU.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "exec/random_load_for_tests.h"
#include "support/gpu.h"

namespace lading::exec {
namespace {

// The buffers of a load in device memory.
class GpuBuffers {
 public:
  GpuBuffers(RandomLoad& load, const std::vector<std::string>& devices) : load_(load) {
    for (const std::string& name : devices) {
      devices_[name] = *device::open_device(name);
      lanes_[name] = *devices_[name]->open_lane({4096, 1, nullptr});
    }
    for (const plan::RankPlan& rank : load.plan().ranks) {
      for (const plan::Destination& d : rank.destinations) {
        Buffer& buffer = buffers_[RandomLoad::key(rank, d)];
        if (buffer.memory != nullptr) continue;
        const Bytes& noise = load.buffers().at(RandomLoad::key(rank, d));
        buffer.device = d.device;
        buffer.memory = *devices_[d.device]->allocate(noise.size());
        EXPECT_TRUE(
            lanes_[d.device]->move({noise.data(), buffer.memory.get(), noise.size(), DType::kU8, DType::kU8, {}}));
      }
    }
    for (const auto& [name, lane] : lanes_) EXPECT_TRUE(lane->finish());
  }

  [[nodiscard]] Inputs inputs() {
    Inputs inputs = load_.inputs();
    for (std::size_t r = 0; r < inputs.memory.size(); ++r) {
      const plan::RankPlan& rank = load_.plan().ranks[r];
      for (const plan::DestinationId d : rank.destinations.ids()) {
        inputs.memory[r][d.number()].data =
            buffers_[RandomLoad::key(rank, rank.destinations[d])].memory.get() + RandomLoad::kGuardBytes;
      }
    }
    return inputs;
  }

  /// Writes a destination as it must be, as somebody does who is no part of the load.
  void put_expected(const DestinationRef& ref, const DestinationMemory& memory) {
    const plan::RankPlan& rank = load_.plan().ranks[ref.rank];
    device::Lane& lane = *lanes_.at(rank.destinations[ref.destination].device);
    const auto bytes = load_.expected(ref);
    if (bytes.empty()) return;
    EXPECT_TRUE(lane.move({bytes.data(), memory.data, bytes.size(), DType::kU8, DType::kU8, {}}));
    EXPECT_TRUE(lane.finish());
  }

  /// Takes them back to where the load compares them.
  void fetch() {
    std::map<std::string, Bytes> found = load_.buffers();
    for (auto& [key, bytes] : found) {
      const Buffer& buffer = buffers_.at(key);
      EXPECT_TRUE(lanes_.at(buffer.device)->fetch(buffer.memory.get(), bytes));
    }
    load_.restore(found);
  }

 private:
  struct Buffer {
    std::string device;
    std::shared_ptr<std::byte> memory;
  };

  RandomLoad& load_;
  std::map<std::string, std::unique_ptr<device::Device>> devices_;
  std::map<std::string, std::unique_ptr<device::Lane>> lanes_;
  std::map<std::string, Buffer> buffers_;
};

TEST(GpuCanary, R3_R11_R34_EveryByteIsRightInDeviceMemory) {
  const std::vector<std::string> gpus = test::gpus();
  if (gpus.empty()) GTEST_SKIP() << "no GPU, and no stand-in for the driver";
  // Held for all loads: a context that nobody else has costs a quarter of a second each time.
  std::vector<std::unique_ptr<device::Device>> held;
  for (const std::string& name : gpus) held.push_back(*device::open_device(name));
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    RandomLoad load(seed);
    load.put_on(gpus);
    GpuBuffers buffers(load, gpus);
    Options options;
    options.threads = 1 + static_cast<std::uint32_t>(seed % 3);
    options.staging_buffer_bytes = std::uint64_t{64} << (seed % 6);
    options.poison = seed % 2 == 0 ? Poison::kOn : Poison::kOff;
    const Outcome outcome = execute(buffers.inputs(), options);
    if (load.ties_differ()) {
      ASSERT_FALSE(outcome.errors.empty()) << "seed " << seed;
      EXPECT_EQ(outcome.errors.front().code, Code::kValuesDiffer) << "seed " << seed;
      continue;
    }
    ASSERT_TRUE(outcome.errors.empty()) << "seed " << seed << ": " << outcome.errors.front().text();
    buffers.fetch();
    ASSERT_TRUE(load.is_right()) << "seed " << seed;
    for (std::size_t t = 0; t < outcome.outcomes.size(); ++t) {
      ASSERT_EQ(outcome.outcomes[t].digest, load.digests()[t]) << "seed " << seed << ", destination " << t;
    }
  }
}

TEST(GpuCanary, WhatIsReceivedInDeviceMemoryIsDigestedThere) {
  const std::vector<std::string> gpus = test::gpus();
  if (gpus.empty()) GTEST_SKIP() << "no GPU, and no stand-in for the driver";
  std::vector<std::unique_ptr<device::Device>> held;
  for (const std::string& name : gpus) held.push_back(*device::open_device(name));
  int received = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    RandomLoad load(seed);
    if (load.ties_differ()) continue;
    load.put_on(gpus);
    GpuBuffers buffers(load, gpus);
    Inputs inputs = buffers.inputs();
    const std::vector<DestinationRef> destinations = destinations_of(load.plan());
    for (const DestinationRef& ref : destinations) {
      inputs.memory[ref.rank][ref.destination.number()].received = load.can_be_received(ref);
    }
    inputs.receive = [&]() -> Result<void> {
      for (const DestinationRef& ref : destinations) {
        const DestinationMemory& memory = inputs.memory[ref.rank][ref.destination.number()];
        if (!memory.received) continue;
        buffers.put_expected(ref, memory);
        ++received;
      }
      return {};
    };
    Options options;
    options.poison = Poison::kOn;
    const Outcome outcome = execute(inputs, options);
    ASSERT_TRUE(outcome.errors.empty()) << "seed " << seed << ": " << outcome.errors.front().text();
    buffers.fetch();
    ASSERT_TRUE(load.is_right()) << "seed " << seed;
    for (std::size_t t = 0; t < outcome.outcomes.size(); ++t) {
      ASSERT_EQ(outcome.outcomes[t].digest, load.digests()[t]) << "seed " << seed << ", destination " << t;
    }
  }
  EXPECT_GT(received, 20);
}

TEST(GpuCanary, R34_MemoryOfAnotherDeviceIsRefusedBeforeAByteIsWritten) {
  const std::vector<std::string> gpus = test::gpus();
  if (gpus.empty()) GTEST_SKIP() << "no GPU, and no stand-in for the driver";
  RandomLoad load(7);
  load.put_on(gpus);
  const std::map<std::string, Bytes> before = load.buffers();
  const Outcome outcome = execute(load.inputs(), {});  // with host memory for all of them
  ASSERT_FALSE(outcome.errors.empty());
  EXPECT_FALSE(outcome.begun);
  EXPECT_EQ(outcome.errors.front().rule, "R34");
  EXPECT_EQ(load.buffers(), before);
}

}  // namespace
}  // namespace lading::exec
