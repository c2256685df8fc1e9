#include "ranks/pulse.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "ranks/thread_channel_for_tests.h"

namespace lading::ranks {
namespace {

using namespace std::chrono_literals;

// A rank alone, that says a number and then nothing for longer than a load may stand still.
template <class Act>
bool ends_well_after(Act&& act) {
  EntryStore store;
  ThreadChannel channel(store, 0, 1);
  Options options;
  options.deadline = 2s;
  options.stall_timeout = 400ms;
  Coordinator ranks(channel, options);
  if (!ranks.begin() || !ranks.agree("the plan", {})) return false;
  std::atomic<bool> has_failed = false;
  Pulse pulse(ranks, [&] { has_failed = true; });
  pulse.progress(5);
  std::this_thread::sleep_for(50ms);
  act(pulse);
  std::this_thread::sleep_for(700ms);
  return !has_failed;
}

TEST(Pulse, R44_ALoadThatStandsStillFails) {
  EXPECT_FALSE(ends_well_after([](Pulse&) {}));
}

TEST(Pulse, R44_WhoWaitsForOthersDoesNot) {
  EXPECT_TRUE(ends_well_after([](Pulse& pulse) { pulse.rest(); }));
}

TEST(Pulse, R44_AfterAWaitTheTimeBeginsAnew) {
  EXPECT_TRUE(ends_well_after([](Pulse& pulse) {
    pulse.rest();
    std::this_thread::sleep_for(600ms);
    pulse.progress(6);
    std::this_thread::sleep_for(60ms);
    pulse.rest();
  }));
}

}  // namespace
}  // namespace lading::ranks
