#include "exec/devices.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "exec/crew.h"
#include "exec/fake_device_for_tests.h"
#include "exec/random_load_for_tests.h"
#include "exec/thread_count.h"

namespace lading::exec {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

plan::Plan plan_with(const std::vector<std::uint64_t>& staging_bytes, std::uint64_t budget_bytes,
                     std::uint64_t read_bytes = std::uint64_t{1} << 40) {
  plan::Plan plan;
  plan.budget_bytes = budget_bytes;
  for (const std::uint64_t bytes : staging_bytes) {
    plan::RankPlan& rank = plan.ranks.emplace_back();
    rank.staging_bytes = bytes;
    rank.read_bytes = read_bytes;
  }
  return plan;
}

TEST(ThreadCount, OneInEightStaysFreeUpToSixteen) {
  EXPECT_EQ(thread_count(0, 1), 1U);
  EXPECT_EQ(thread_count(0, 7), 7U);
  EXPECT_EQ(thread_count(0, 8), 7U);
  EXPECT_EQ(thread_count(0, 16), 14U);
  EXPECT_EQ(thread_count(0, 19), kMostThreads);
  EXPECT_EQ(thread_count(0, 17), 15U);
  EXPECT_EQ(thread_count(0, 192), kMostThreads);
  EXPECT_EQ(thread_count(3, 192), 3U);
  EXPECT_EQ(thread_count(100, 2), 100U);
  EXPECT_EQ(thread_count(100'000, 2), kMostThreadsOnRequest);
}

TEST(Devices, R64_LanesFitTheStagingFigure) {
  LaneCounts counts;
  int fewer = 0;
  for (const bool is_host : {true, false}) {
    for (const std::size_t devices_count : {1U, 3U}) {
      for (const std::uint32_t threads : {1U, 4U, 16U, 200U}) {
        for (const std::uint64_t staging_buffer_bytes : {std::uint64_t{0}, std::uint64_t{64}, 2 * kMiB, 4096 * kMiB}) {
          for (const std::uint64_t staging : {std::uint64_t{0}, kMiB, 5 * kMiB, 64 * kMiB, 3000 * kMiB}) {
            std::vector<LoadDevice> devices;
            for (std::size_t i = 0; i < devices_count; ++i) {
              devices.emplace_back().device =
                  std::make_unique<FakeDevice>(counts, FakeDeviceOptions{.is_host = is_host, .extra_lane_bytes = 4096});
            }
            Options options;
            options.threads = threads;
            options.staging_buffer_bytes = staging_buffer_bytes;
            const plan::Plan plan = plan_with({staging, staging}, staging + staging / 2);
            const std::uint32_t fit = fit_lanes(plan, options, devices);
            ASSERT_GE(fit, 1U);
            ASSERT_LE(fit, threads);
            if (fit > 1) {
              ASSERT_LE(fit * lane_bytes(devices), staging + staging / 2);
            }
            fewer += fit < threads ? 1 : 0;
            for (const LoadDevice& device : devices) {
              const device::LaneOptions& lane = device.lane_options;
              EXPECT_EQ(lane.staging_buffers, is_host ? 1U : 2U);
              const std::uint64_t least = staging_buffer_bytes > 0 ? std::min(staging_buffer_bytes, 64 * kMiB) : kMiB;
              const std::uint64_t most = staging_buffer_bytes > 0 ? least : is_host ? kMiB : 4 * kMiB;
              EXPECT_GE(lane.staging_buffer_bytes, least);
              EXPECT_LE(lane.staging_buffer_bytes, most);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(fewer, 50);
}

TEST(Devices, R64_RanksAddUpToTheBudgetAndNoFurther) {
  LaneCounts counts;
  std::vector<LoadDevice> devices = fake_devices(counts);
  Options options;
  options.threads = 100;
  EXPECT_EQ(fit_lanes(plan_with({10 * kMiB}, 50 * kMiB), options, devices), 10U);
  EXPECT_EQ(fit_lanes(plan_with({10 * kMiB, 20 * kMiB}, 50 * kMiB), options, devices), 30U);
  EXPECT_EQ(fit_lanes(plan_with({10 * kMiB, 200 * kMiB}, 50 * kMiB), options, devices), 50U);
}

TEST(Devices, StagingBuffersOfADeviceShrinkWithMemoryAndWithWork) {
  LaneCounts counts;
  std::vector<LoadDevice> devices = fake_devices(counts, {.is_host = false});
  Options options;
  options.threads = 16;
  const auto staging_buffer_bytes = [&](const plan::Plan& plan) {
    EXPECT_EQ(fit_lanes(plan, options, devices), 16U);
    return devices[0].lane_options.staging_buffer_bytes;
  };
  EXPECT_EQ(staging_buffer_bytes(plan_with({1024 * kMiB}, 1024 * kMiB)), 4 * kMiB);
  EXPECT_EQ(staging_buffer_bytes(plan_with({70 * kMiB}, 70 * kMiB)), 2 * kMiB) << "of 70 / 16 / 2";
  EXPECT_EQ(staging_buffer_bytes(plan_with({1024 * kMiB}, 1024 * kMiB, kMiB * 16 * 64 * 3)), 2 * kMiB)
      << "of 3 per task";
  EXPECT_EQ(staging_buffer_bytes(plan_with({1024 * kMiB}, 1024 * kMiB, kMiB)), kMiB);
}

TEST(Devices, ThreadsWithAProcessorEachSpin) {
  LaneCounts counts;
  std::vector<LoadDevice> devices = fake_devices(counts);
  const plan::Plan plan = plan_with({kMiB}, kMiB);
  Options options;
  options.threads = usable_processors();
  (void)fit_lanes(plan, options, devices);
  EXPECT_EQ(devices[0].lane_options.wait, device::Wait::kSpin);
  options.threads = usable_processors() + 1;
  (void)fit_lanes(plan, options, devices);
  EXPECT_EQ(devices[0].lane_options.wait, device::Wait::kSleep);
}

TEST(Devices, LaneBytesAreThoseOfAllDevices) {
  LaneCounts counts;
  std::vector<LoadDevice> devices = fake_devices(counts, {.extra_lane_bytes = 5});
  devices.emplace_back().device = std::make_unique<FakeDevice>(counts);
  devices[0].lane_options.staging_buffer_bytes = 100;
  devices[1].lane_options.staging_buffer_bytes = 1000;
  devices[1].lane_options.staging_buffers = 2;
  EXPECT_EQ(lane_bytes(devices), 100U + 5 + 2 * 1000);
}

// The destinations of a random load whose ranks stand on these devices.
class PlacedLoad {
 public:
  explicit PlacedLoad(const std::vector<std::string>& devices) : load_(seed_with_ranks()) {
    load_.put_on(devices);
    inputs_.emplace(load_.inputs());
    const plan::Plan& plan = load_.plan();
    for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
      for (const plan::DestinationId d : plan.ranks[r].destinations.ids()) {
        states.push_back(std::make_unique<DestinationState>(plan, plan.ranks[r], plan.ranks[r].destinations[d],
                                                            inputs_->memory[r][d.number()]));
      }
    }
  }

  DestinationStates states;

 private:
  static std::uint64_t seed_with_ranks() {
    for (std::uint64_t seed = 0;; ++seed) {
      const RandomLoad load(seed);
      const auto& ranks = load.plan().ranks;
      const auto filled =
          std::count_if(ranks.begin(), ranks.end(), [](const plan::RankPlan& r) { return r.destinations.size() > 1; });
      if (filled > 3 && static_cast<std::size_t>(filled) == ranks.size()) return seed;
    }
  }

  RandomLoad load_;
  std::optional<Inputs> inputs_;
};

CrewOptions silent() {
  return {nullptr, nullptr, [] { return Error(); }, [] { return Error(); }, ""};
}

TEST(Devices, EachIsOpenedOnceAndDestinationsKnowTheirs) {
  PlacedLoad load({"cpu"});
  Crew crew(silent());
  const std::vector<LoadDevice> devices = open_devices(load.states, crew);
  ASSERT_EQ(devices.size(), 1U);
  EXPECT_EQ(devices[0].device->name(), "cpu");
  for (const auto& state : load.states) EXPECT_EQ(state->device, 0U);
  EXPECT_FALSE(crew.stopped());
}

TEST(Devices, ADeviceThatIsNotThereIsNamedOnceWithATensor) {
  PlacedLoad load({"cpu", "cuda:4711"});
  Crew crew(silent());
  const std::vector<LoadDevice> devices = open_devices(load.states, crew);
  ASSERT_EQ(devices.size(), 2U);
  for (const auto& state : load.states) {
    EXPECT_EQ(devices[state->device].device != nullptr, state->destination->device == "cpu");
  }
  const Errors errors = crew.take_errors();
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_TRUE(errors.front().tensor);
  EXPECT_TRUE(errors.front().rank);
}

}  // namespace
}  // namespace lading::exec
