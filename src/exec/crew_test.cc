#include "exec/crew.h"

#include <gtest/gtest.h>

#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>

#include "exec/fake_device_for_tests.h"

namespace lading::exec {
namespace {

using namespace std::chrono_literals;

CrewOptions crew_options(const std::atomic<bool>* cancelled = nullptr) {
  return {cancelled, nullptr, [] { return Error(Code::kCancelled, "the picnic was cancelled"); },
          [] { return Error(Code::kOutOfMemory, "no memory for the picnic"); }, "the picnic"};
}

void open_threads(Crew& crew, std::uint32_t threads) { ASSERT_TRUE(crew.open({}, threads)); }

// Waits for something that another thread does.
void wait_for(const std::function<bool()>& is_true) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (!is_true() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(is_true());
}

// Ends a task when three are at work, so that it cannot pass if they follow one another.
Result<void> wait_for_three(std::atomic<int>& inside, Result<void> answer) {
  ++inside;
  wait_for([&] { return inside == 3; });
  return answer;
}

TEST(Crew, EveryTaskRunsOnce) {
  for (const std::uint32_t threads : {1U, 2U, 7U}) {
    Crew crew(crew_options());
    open_threads(crew, threads);
    EXPECT_EQ(crew.threads(), threads);
    for (const std::size_t count : {0U, 1U, 3U, 1000U}) {
      std::vector<std::atomic<int>> runs(count);
      crew.run(count, [&](const Lanes& lanes, std::size_t i) -> Result<void> {
        EXPECT_TRUE(lanes.empty());
        ++runs[i];
        return {};
      });
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(runs[i], 1) << "task " << i << " of " << count;
    }
    EXPECT_TRUE(crew.take_errors().empty());
  }
}

TEST(Crew, TasksBeginInOrder) {
  Crew crew(crew_options());
  open_threads(crew, 1);
  std::vector<std::size_t> begun;
  crew.run(50, [&](const Lanes&, std::size_t i) -> Result<void> {
    begun.push_back(i);
    return {};
  });
  ASSERT_EQ(begun.size(), 50U);
  for (std::size_t i = 0; i < begun.size(); ++i) EXPECT_EQ(begun[i], i);
}

TEST(Crew, ThreadsWorkAtTheSameTime) {
  Crew crew(crew_options());
  open_threads(crew, 3);
  std::atomic<int> inside = 0;
  crew.run(3, [&](const Lanes&, std::size_t) { return wait_for_three(inside, {}); });
  EXPECT_EQ(inside, 3);
}

TEST(Crew, NoTaskBeginsAfterAnError) {
  Crew crew(crew_options());
  open_threads(crew, 1);
  std::size_t last = 0;
  const auto task = [&](const Lanes&, std::size_t i) -> Result<void> {
    last = i;
    if (i == 5) return fail(Error(Code::kReadFailed, "ants"));
    return {};
  };
  crew.run(100, task);
  EXPECT_EQ(last, 5U);
  EXPECT_TRUE(crew.stopped());
  last = 77;
  crew.run(100, task);
  EXPECT_EQ(last, 77U) << "nor in a later run";
  const Errors errors = crew.take_errors();
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().message, "ants");
}

TEST(Crew, RunReturnsWhenWhatWasBegunIsDone) {
  Crew crew(crew_options());
  open_threads(crew, 4);
  std::atomic<int> begun = 0;
  std::atomic<int> ended = 0;
  crew.run(1000, [&](const Lanes&, std::size_t i) -> Result<void> {
    ++begun;
    wait_for([&] { return begun >= 4; });  // the error comes while others are at work
    if (i == 0) {
      ++ended;
      return fail(Error(Code::kReadFailed, "ants"));
    }
    wait_for([&] { return crew.stopped(); });
    std::this_thread::sleep_for(20ms);
    ++ended;
    return {};
  });
  EXPECT_EQ(begun, 4);
  EXPECT_EQ(ended, 4);
}

TEST(Crew, EveryErrorIsKept) {
  Crew crew(crew_options());
  open_threads(crew, 3);
  std::atomic<int> inside = 0;
  crew.run(3,
           [&](const Lanes&, std::size_t) { return wait_for_three(inside, fail(Error(Code::kReadFailed, "ants"))); });
  EXPECT_EQ(crew.take_errors().size(), 3U);
}

TEST(Crew, ExceptionsAreErrors) {
  Crew crew(crew_options());
  open_threads(crew, 2);
  crew.run(10, [&](const Lanes&, std::size_t) -> Result<void> { throw std::runtime_error("rain"); });
  Errors errors = crew.take_errors();
  ASSERT_FALSE(errors.empty());
  EXPECT_EQ(errors.front().code, Code::kInternal);
  EXPECT_EQ(errors.front().message, "the picnic stopped: rain");

  Crew poor(crew_options());
  open_threads(poor, 2);
  poor.run(10, [&](const Lanes&, std::size_t) -> Result<void> { throw std::bad_alloc(); });
  EXPECT_TRUE(poor.stopped());
  errors = poor.take_errors();
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().message, "no memory for the picnic");
}

TEST(Crew, CancelledIsToldOnce) {
  std::atomic<bool> cancelled = false;
  Crew crew(crew_options(&cancelled));
  open_threads(crew, 1);
  std::size_t last = 0;
  crew.run(100, [&](const Lanes&, std::size_t i) -> Result<void> {
    last = i;
    if (i == 3) cancelled = true;
    return {};
  });
  EXPECT_EQ(last, 3U);
  EXPECT_TRUE(crew.stopped());
  EXPECT_TRUE(crew.stopped());
  const Errors errors = crew.take_errors();
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().message, "the picnic was cancelled");
}

TEST(Crew, AnErrorIsToldInsteadOfACancellationAfterIt) {
  std::atomic<bool> cancelled = false;
  Crew crew(crew_options(&cancelled));
  crew.add_error(Error(Code::kReadFailed, "ants"));
  cancelled = true;
  EXPECT_TRUE(crew.stopped());
  const Errors errors = crew.take_errors();
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().message, "ants");
}

TEST(Crew, TheCallingThreadReportsProgress) {
  const auto caller = std::this_thread::get_id();
  std::atomic<int> reports = 0;
  Progress last;
  const std::function<void(const Progress&)> progress = [&](const Progress& now) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    last = now;
    ++reports;
  };
  CrewOptions options = crew_options();
  options.progress = &progress;
  Crew crew(options);
  open_threads(crew, 2);
  crew.set_total(30);
  crew.run(2, [&](const Lanes&, std::size_t) -> Result<void> {
    crew.add_read(7);
    crew.add_done(5);
    const int before = reports;
    wait_for([&] { return reports > before; });
    return {};
  });
  crew.report_progress();
  EXPECT_EQ(last.done_bytes, 10U);
  EXPECT_EQ(last.read_bytes, 14U);
  EXPECT_EQ(last.total_bytes, 30U);
  EXPECT_EQ(crew.read_bytes(), 14U);
}

TEST(Crew, EachThreadHasALaneOfEveryDevice) {
  LaneCounts counts;
  std::vector<LoadDevice> devices = fake_devices(counts);
  devices.emplace_back().device = std::make_unique<FakeDevice>(counts);
  Crew crew(crew_options());
  ASSERT_TRUE(crew.open(devices, 3));
  EXPECT_EQ(counts.open, 6);
  std::atomic<int> inside = 0;
  std::atomic<int> leaving = 0;
  crew.run(3, [&](const Lanes& lanes, std::size_t) -> Result<void> {
    EXPECT_EQ(lanes.size(), 2U);
    ++inside;
    wait_for([&] { return inside == 3; });
    EXPECT_EQ(counts.attached, 6);
    ++leaving;
    wait_for([&] { return leaving == 3; });
    return {};
  });
  EXPECT_EQ(counts.attached, 0);
  EXPECT_EQ(counts.finished, 6);
  crew.close();
  EXPECT_EQ(counts.open, 0);
}

// Nothing may still be written when the caller gets the memory back.
TEST(Crew, LanesAreFinishedAfterAnErrorToo) {
  for (const bool throws : {false, true}) {
    LaneCounts counts;
    const std::vector<LoadDevice> devices = fake_devices(counts);
    Crew crew(crew_options());
    ASSERT_TRUE(crew.open(devices, 1));
    crew.run(10, [&](const Lanes&, std::size_t) -> Result<void> {
      if (throws) throw std::bad_alloc();
      return fail(Error(Code::kReadFailed, "ants"));
    });
    EXPECT_EQ(counts.finished, 1);
    EXPECT_EQ(counts.attached, 0);
    crew.close();
  }
}

TEST(Crew, WhatALaneSaysWhenItFinishesIsAnError) {
  LaneCounts counts;
  Error lost(Code::kInternal, "the GPU is lost");
  const std::vector<LoadDevice> devices = fake_devices(counts, {.finish_failure = &lost});
  Crew crew(crew_options());
  ASSERT_TRUE(crew.open(devices, 1));
  crew.run(1, [&](const Lanes&, std::size_t) -> Result<void> { return {}; });
  const Errors errors = crew.take_errors();
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().message, "the GPU is lost");
}

TEST(Crew, FewerLanesAreFewerThreadsAndNoneIsAnError) {
  LaneCounts counts;
  const std::vector<LoadDevice> devices = fake_devices(counts, {.most_lanes = 2});
  Crew crew(crew_options());
  ASSERT_TRUE(crew.open(devices, 5));
  EXPECT_EQ(crew.threads(), 2U);
  std::atomic<int> runs = 0;
  crew.run(20, [&](const Lanes&, std::size_t) -> Result<void> {
    ++runs;
    return {};
  });
  EXPECT_EQ(runs, 20);

  LaneCounts no_counts;
  const std::vector<LoadDevice> full = fake_devices(no_counts, {.most_lanes = 0});
  Crew idle(crew_options());
  const auto opened = idle.open(full, 5);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().message, "no more lanes");
}

}  // namespace
}  // namespace lading::exec
