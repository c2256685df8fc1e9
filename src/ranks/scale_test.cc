// What agreement costs with many ranks, in a simulation: docs/how-it-works/scaling.md has the numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "ranks/coordinator.h"
#include "ranks/sim_for_tests.h"

namespace lading::ranks::test {
namespace {

using namespace std::chrono_literals;

struct Cost {
  std::vector<const char*> phases = {"begin", "agree", "10 s of loading", "commit and leave"};
  std::vector<Traffic> traffic;
  std::vector<Time> time;
  std::uint64_t most_messages = 0;  // of one rank, in all
  bool is_well = true;
};

Cost measure(std::uint64_t size) {
  WorldOptions options;
  options.size = size;
  options.min_delay = 20us;
  options.max_delay = 100us;
  options.service = 5us;
  World world(options);
  Cost cost;
  cost.traffic.resize(cost.phases.size());
  cost.time.resize(cost.phases.size());
  const auto body = [&](std::uint64_t rank) {
    SimChannel channel(world, rank);
    Options with;
    with.process = std::to_string(rank);
    Coordinator ranks(channel, with);
    Traffic before = world.traffic_of(rank);
    Time began = world.now();
    const auto phase = [&](std::size_t index) {
      const Traffic now = world.traffic_of(rank);
      cost.traffic[index].messages += now.messages - before.messages;
      cost.traffic[index].bytes += now.bytes - before.bytes;
      cost.time[index] = std::max(cost.time[index], world.now() - began);
      before = now;
      began = world.now();
    };
    cost.is_well = ranks.begin().has_value() && cost.is_well;
    phase(0);
    cost.is_well = ranks.agree("the plan", {{"plan", "0123456789abcdef0123456789abcdef"}}).has_value() && cost.is_well;
    phase(1);
    for (std::uint64_t done = 0; done < 50; ++done) {
      world.sleep(rank, 200ms);
      cost.is_well = ranks.poll(done).has_value() && cost.is_well;
    }
    phase(2);
    cost.is_well = ranks.commit().has_value() && cost.is_well;
    ranks.leave();
    phase(3);
    world.process_ended(rank);
  };
  cost.is_well = world.run(body, 10min) && cost.is_well;
  for (std::uint64_t rank = 0; rank < size; ++rank) {
    cost.most_messages = std::max(cost.most_messages, world.traffic_of(rank).messages);
  }
  return cost;
}

TEST(Scale, MessagesGrowNoFasterThanRanks) {
  for (const std::uint64_t size : {8U, 64U, 1024U}) {
    const Cost cost = measure(size);
    EXPECT_TRUE(cost.is_well);
    for (std::size_t i = 0; i < cost.phases.size(); ++i) {
      std::printf("| %llu | %s | %llu | %.1f | %.1f | %.1f |\n", static_cast<unsigned long long>(size), cost.phases[i],
                  static_cast<unsigned long long>(cost.traffic[i].messages),
                  static_cast<double>(cost.traffic[i].messages) / static_cast<double>(size),
                  static_cast<double>(cost.traffic[i].bytes) / static_cast<double>(size),
                  std::chrono::duration<double, std::milli>(cost.time[i]).count());
      const double allowed = i == 2 ? 80 : 14;  // ten beats and ten looks of two questions, with answers
      EXPECT_LT(static_cast<double>(cost.traffic[i].messages), allowed * static_cast<double>(size)) << cost.phases[i];
    }
    std::printf("  most messages of one rank: %llu\n", static_cast<unsigned long long>(cost.most_messages));
    EXPECT_LT(cost.most_messages, 120U);
  }
}

}  // namespace
}  // namespace lading::ranks::test
