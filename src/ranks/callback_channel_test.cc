#include "ranks/callback_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "ranks/coordinator.h"
#include "ranks/thread_channel_for_tests.h"

namespace lading::ranks {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

CallbackBackend backend_on(EntryStore& store) {
  CallbackBackend backend;
  backend.put = [&](const std::string& key, const std::string& value) {
    store.put(key, value);
    return Reply::ready();
  };
  backend.decide = [&](const std::string& key, const std::string& value) {
    return Reply::ready({store.decide(key, value)});
  };
  backend.wait = [&](const std::vector<std::string>& keys, Time timeout) {
    auto values = store.wait(keys, steady_now() + timeout);
    return values ? Reply::ready(*std::move(values)) : Reply::absent();
  };
  return backend;
}

TEST(CallbackChannel, ALoadFromBeginToEnd) {
  EntryStore store;
  std::vector<std::string> said(3);
  std::vector<std::thread> threads;
  for (std::uint64_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      CallbackChannel channel({rank, 3, rank == 0, 1s}, backend_on(store));
      Coordinator ranks(channel, {});
      const auto begun = ranks.begin();
      const auto committed = ranks.commit();
      ranks.leave();
      said[rank] = begun && committed ? "well" : "failed";
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(said, Each("well"));
}

TEST(CallbackChannel, Fault51_AStoreThatHangsIsLeftBehind) {
  auto released = std::make_shared<std::atomic<bool>>(false);
  EntryStore store;
  CallbackBackend backend = backend_on(store);
  backend.decide = [released](const std::string&, const std::string& value) {
    while (!*released) std::this_thread::sleep_for(1ms);
    return Reply::ready({value});
  };
  const Time begin = steady_now();
  {
    CallbackChannel channel({0, 1, true, 50ms}, std::move(backend));
    Coordinator ranks(channel, {});
    const auto begun = ranks.begin();
    ASSERT_FALSE(begun.has_value());
    EXPECT_THAT(begun.error().text(), HasSubstr("lost contact"));
    EXPECT_THAT(begun.error().detail, HasSubstr("did not answer in time"));
    EXPECT_TRUE(channel.put("a", "b").is_gone()) << "from then on";
    ranks.leave();
  }
  EXPECT_LT(steady_now() - begin, 5s);
  *released = true;
  std::this_thread::sleep_for(10ms);
}

// A child of this process asks a store that needs a little of the child's running time, and is stopped meanwhile.
int ask_while_stopped(Time answer_timeout) {
  CallbackBackend backend;
  backend.put = [](const std::string&, const std::string&) {
    for (int i = 0; i < 50; ++i) std::this_thread::sleep_for(1ms);
    return Reply::ready();
  };
  CallbackChannel channel({0, 1, true, answer_timeout}, std::move(backend));
  std::thread([] {
    std::this_thread::sleep_for(10ms);
    ::kill(::getpid(), SIGSTOP);
  }).detach();
  return channel.put("a", "b").is_ready() ? 0 : 1;
}

TEST(CallbackChannel, TheTimeThatARankIsStoppedIsNotTheStores) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(ask_while_stopped(400ms));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::this_thread::sleep_for(800ms);
  ASSERT_EQ(::kill(child, SIGCONT), 0);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the store was given up, which answered as soon as the rank could hear it";
}

TEST(CallbackChannel, AStoreThatFailsIsGone) {
  EntryStore store;
  CallbackBackend backend = backend_on(store);
  backend.wait = [](const std::vector<std::string>&, Time) { return Reply::gone("connection reset"); };
  CallbackChannel channel({0, 2, true, 1s}, std::move(backend));
  Coordinator ranks(channel, {});
  const auto begun = ranks.begin();
  ASSERT_FALSE(begun.has_value());
  EXPECT_EQ(begun.error().detail, "connection reset");
}

}  // namespace
}  // namespace lading::ranks
