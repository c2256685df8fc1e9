#include "ranks/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>

#include "ranks/thread_channel_for_tests.h"

namespace lading::ranks {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

Options quick() {
  Options options;
  options.deadline = 500ms;
  options.step_timeout = 400ms;
  return options;
}

using Body = std::function<std::string(Coordinator&)>;

std::string told(const Result<void, Verdict>& result) { return result ? "well" : result.error().text(); }

// One thread per rank; what each of them says in the end.
std::vector<std::string> on_ranks(std::uint64_t size, const Body& body, EntryStore* shared = nullptr) {
  EntryStore own;
  EntryStore& store = shared != nullptr ? *shared : own;
  std::vector<std::string> said(size);
  std::vector<std::thread> threads;
  for (std::uint64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadChannel channel(store, rank, size);
      Coordinator ranks(channel, quick());
      said[rank] = body(ranks);
      ranks.leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

std::string whole(Coordinator& ranks) {
  if (auto begun = ranks.begin(); !begun) return told(begun);
  if (auto agreed = ranks.agree("the plan", {{"plan", "abc"}}); !agreed) return agreed.error().text();
  return told(ranks.commit());
}

TEST(Coordinator, R44_RanksThatAgreeEndTogether) {
  for (const std::uint64_t size : {1U, 2U, 17U, 40U}) EXPECT_THAT(on_ranks(size, whole), Each("well")) << size;
}

TEST(Coordinator, R44_ADifferenceIsOneErrorEverywhere) {
  const auto said = on_ranks(20, [](Coordinator& ranks) {
    if (auto begun = ranks.begin(); !begun) return told(begun);
    const auto agreed = ranks.agree("the plan", {{"layout", ranks.channel().rank() == 18 ? "b" : "a"}});
    return agreed ? "well" : agreed.error().text();
  });
  EXPECT_THAT(said, Each(said.front()));
  EXPECT_THAT(said.front(), AllOf(HasSubstr("differ in layout"), HasSubstr("a on ranks 0-17, 19; b on rank 18"),
                                  HasSubstr("ranks_differ, R44"), HasSubstr("error id ")));
}

TEST(Coordinator, R44_FailuresOfAllRanksAreToldTogether) {
  const auto said = on_ranks(5, [](Coordinator& ranks) {
    if (auto begun = ranks.begin(); !begun) return told(begun);
    Failure failure{Error(Code::kNotFound, "no such checkpoint"), Exit::kCheckpoint, false, {}};
    if (ranks.channel().rank() == 4) failure.problems.add(Error(Code::kDeviceMemory, "too little"));
    const auto agreed = ranks.agree("the plan", {}, ranks.channel().rank() > 0 ? &failure : nullptr);
    return agreed ? "well" : agreed.error().text();
  });
  EXPECT_THAT(said, Each(said.front()));
  EXPECT_THAT(said.front(), AllOf(HasSubstr("ranks 1-4: no such checkpoint"), HasSubstr("rank 4: too little")));
}

TEST(Coordinator, ARankThatNeverComesIsNamed) {
  for (const std::uint64_t missing : {0U, 1U, 3U, 18U}) {
    auto said = on_ranks(20, [&](Coordinator& ranks) {
      return ranks.channel().rank() == missing ? std::string() : told(ranks.begin());
    });
    said.erase(said.begin() + static_cast<std::ptrdiff_t>(missing));
    EXPECT_THAT(said, Each(said.front()));
    EXPECT_THAT(said.front(),
                HasSubstr("rank " + std::to_string(missing) + " did not reach the step \"the beginning\""));
  }
}

TEST(Coordinator, ARankThatFallsSilentWhileLoadingIsNamed) {
  for (const std::uint64_t dead : {0U, 2U}) {
    auto said = on_ranks(4, [&](Coordinator& ranks) -> std::string {
      if (auto begun = ranks.begin(); !begun) return told(begun);
      if (ranks.channel().rank() == dead) return "";
      const Time end = steady_now() + 5s;
      for (std::uint64_t done = 0; steady_now() < end; ++done) {
        if (auto polled = ranks.poll(done); !polled) return told(polled);
        std::this_thread::sleep_for(10ms);
      }
      return "waited";
    });
    said.erase(said.begin() + static_cast<std::ptrdiff_t>(dead));
    EXPECT_THAT(said, Each(said.front()));
    EXPECT_THAT(said.front(), HasSubstr("rank " + std::to_string(dead) + " sent no heartbeat"));
  }
}

TEST(Coordinator, AFailureWhileLoadingReachesThoseThatLoadAndThoseThatAreDone) {
  const auto said = on_ranks(6, [&](Coordinator& ranks) -> std::string {
    if (auto begun = ranks.begin(); !begun) return told(begun);
    const std::uint64_t rank = ranks.channel().rank();
    if (rank == 3) {
      std::this_thread::sleep_for(100ms);
      return ranks.fail({Error(Code::kReadFailed, "the disk is gone"), Exit::kLoad, true, {}}).text();
    }
    if (rank % 2 == 0) return told(ranks.commit());
    for (std::uint64_t done = 0; done < 500; ++done) {
      if (auto polled = ranks.poll(done); !polled) return told(polled);
      std::this_thread::sleep_for(10ms);
    }
    return "waited";
  });
  EXPECT_THAT(said, Each(said.front()));
  EXPECT_THAT(said.front(), HasSubstr("rank 3: the disk is gone"));
}

TEST(Coordinator, AfterALoadRanksWaitAsLongAsTheOthersLive) {
  for (const Patience patience : {Patience::kWhileAlive, Patience::kStepTimeout}) {
    const auto said = on_ranks(2, [&](Coordinator& ranks) -> std::string {
      if (auto begun = ranks.begin(); !begun) return told(begun);
      const Time end = steady_now() + ranks.options().step_timeout * 2 + ranks.options().deadline;
      while (ranks.channel().rank() == 1 && steady_now() < end) {
        if (auto polled = ranks.poll(); !polled) return told(polled);
        std::this_thread::sleep_for(10ms);
      }
      const auto agreed = ranks.agree("what was loaded", {}, nullptr, patience);
      return agreed ? "well" : agreed.error().text();
    });
    EXPECT_THAT(said, Each(HasSubstr(patience == Patience::kWhileAlive ? "well" : "rank 1 did not reach")));
  }
}

TEST(Coordinator, ALoadWithoutProgressIsAFailure) {
  EntryStore store;
  ThreadChannel channel(store, 0, 1);
  Options options = quick();
  options.stall_timeout = 50ms;
  Coordinator ranks(channel, options);
  ASSERT_TRUE(ranks.begin().has_value());
  ASSERT_TRUE(ranks.poll(7).has_value());
  std::this_thread::sleep_for(70ms);
  const auto polled = ranks.poll(7);
  ASSERT_FALSE(polled.has_value());
  EXPECT_THAT(polled.error().text(), AllOf(HasSubstr("no progress"), HasSubstr("storage")));
}

TEST(Coordinator, AnExchangeWithoutProgressIsNotTheStoragesFault) {
  EntryStore store;
  ThreadChannel channel(store, 0, 1);
  Options options = quick();
  options.stall_timeout = 50ms;
  Coordinator ranks(channel, options);
  ASSERT_TRUE(ranks.begin().has_value());
  ASSERT_TRUE(ranks.poll(7, Activity::kExchanging).has_value());
  std::this_thread::sleep_for(70ms);
  const auto polled = ranks.poll(7, Activity::kExchanging);
  ASSERT_FALSE(polled.has_value());
  EXPECT_THAT(polled.error().text(), AllOf(HasSubstr("exchange of bytes of rank 0"), Not(HasSubstr("storage"))));
}

TEST(Coordinator, DifferentStepsAreADifference) {
  const auto said = on_ranks(2, [](Coordinator& ranks) {
    if (auto begun = ranks.begin(); !begun) return told(begun);
    const auto agreed = ranks.agree(ranks.channel().rank() == 0 ? "facts" : "the plan", {});
    return agreed ? "well" : agreed.error().text();
  });
  EXPECT_THAT(said, Each(HasSubstr("facts on rank 0; the plan on rank 1")));
}

TEST(Coordinator, EverybodyLearnsWhatIsCollected) {
  const auto said = on_ranks(3, [](Coordinator& ranks) {
    if (auto begun = ranks.begin(); !begun) return told(begun);
    const std::string device = ranks.channel().rank() == 1 ? "cuda:1" : "cpu";
    const auto agreed = ranks.agree("devices", {{"device", device, Field::Mode::kCollect}});
    std::string out;
    if (agreed) {
      for (const Share& share : agreed->fields.at("device").list) out += share.value + " " + share.ranks.text() + ";";
    }
    return out;
  });
  EXPECT_THAT(said, Each("cpu ranks 0, 2;cuda:1 rank 1;"));
}

TEST(Coordinator, Fault54_TwoProcessesOfOneRank) {
  EntryStore store;
  std::vector<std::string> said(3);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      ThreadChannel channel(store, i == 2 ? 1 : i, 2);
      Coordinator ranks(channel, quick());
      std::this_thread::sleep_for(i * 20ms);
      said[i] = told(ranks.begin());
      for (int done = 0; said[i] == "well" && done < 100; ++done) {
        if (auto polled = ranks.poll(); !polled) said[i] = told(polled);
        std::this_thread::sleep_for(10ms);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(said, Each(HasSubstr("two processes claim to be rank 1")));
}

TEST(Coordinator, Fault54_AnotherNumberOfRanks) {
  for (const std::uint64_t odd : {0U, 1U}) {
    EntryStore store;
    std::vector<std::string> said(2);
    std::vector<std::thread> threads;
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        ThreadChannel channel(store, rank, rank == odd ? 3 : 2);
        Coordinator ranks(channel, quick());
        said[rank] = told(ranks.begin());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(said, Each(odd == 1 ? HasSubstr("2 on rank 0; 3 on rank 1") : HasSubstr("rank 2 did not reach")));
  }
}

TEST(Coordinator, OneLoadAfterTheOther) {
  EntryStore store;
  EXPECT_THAT(on_ranks(3, whole, &store), Each("well"));
  const auto failed = on_ranks(
      3, [](Coordinator& ranks) { return ranks.channel().rank() == 1 ? "" : whole(ranks); }, &store);
  EXPECT_THAT(failed[0], HasSubstr("rank 1 did not reach"));
  EXPECT_EQ(failed[0], failed[2]);
  // The others open the next load; rank 1 finds it, and not the one that failed without it.
  const auto again = on_ranks(
      3,
      [](Coordinator& ranks) {
        if (ranks.channel().rank() == 1) std::this_thread::sleep_for(30ms);
        return whole(ranks);
      },
      &store);
  EXPECT_THAT(again, Each("well"));
}

TEST(Coordinator, WhoComesTooLateGetsTheSameError) {
  const auto said = on_ranks(3, [](Coordinator& ranks) {
    if (ranks.channel().rank() == 2) std::this_thread::sleep_for(600ms);
    return told(ranks.begin());
  });
  EXPECT_THAT(said, Each(HasSubstr("rank 2 did not reach")));
}

}  // namespace
}  // namespace lading::ranks
