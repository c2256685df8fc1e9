// Destinations that somebody else fills, in the middle of a load: random plans, of which some destinations are
// received.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "exec/random_load_for_tests.h"
#include "support/sanitizers.h"

namespace lading::exec {
namespace {

// A random load of which about half of what can be received is.
class ReceivingLoad {
 public:
  explicit ReceivingLoad(std::uint64_t seed)
      : load_(seed), inputs_(load_.inputs()), destinations_(destinations_of(load_.plan())) {
    std::mt19937_64 dice(seed);
    for (const DestinationRef& ref : destinations_) {
      DestinationMemory& memory = memory_of(ref);
      memory.received = load_.can_be_received(ref) && dice() % 2 == 0;
    }
    inputs_.open = [this](plan::FileId file) {
      {
        const std::lock_guard lock(opened_mutex_);  // each thread of the load opens files
        opened_.insert(file);
      }
      return load_.open(file);
    };
    inputs_.receive = [this]() -> Result<void> {
      receive();
      return {};
    };
  }

  [[nodiscard]] RandomLoad& load() { return load_; }
  [[nodiscard]] Inputs& inputs() { return inputs_; }
  [[nodiscard]] const std::vector<DestinationRef>& destinations() const { return destinations_; }
  [[nodiscard]] DestinationMemory& memory_of(const DestinationRef& ref) {
    return inputs_.memory[ref.rank][ref.destination.number()];
  }
  [[nodiscard]] const std::set<plan::FileId>& opened() const { return opened_; }
  [[nodiscard]] bool receives() {
    return std::any_of(destinations_.begin(), destinations_.end(),
                       [&](const DestinationRef& t) { return memory_of(t).received && memory_of(t).size_bytes > 0; });
  }

  /// Takes what belongs there.
  void receive() {
    for (const DestinationRef& ref : destinations_) {
      const DestinationMemory& memory = memory_of(ref);
      if (memory.received) std::memcpy(memory.data, load_.expected(ref).data(), memory.size_bytes);
    }
  }

  /// Of the files that destinations need which are read here.
  [[nodiscard]] std::set<plan::FileId> files_needed() {
    std::set<plan::FileId> files;
    const auto add = [&](const std::vector<plan::Transfer>& transfers) {
      for (const plan::Transfer& transfer : transfers) {
        if (transfer.is_fill() || transfer.elems() == 0) continue;
        const plan::Source& source = load_.plan().sources[transfer.source];
        files.insert(source.file);
        if (!source.scaling) continue;
        for (const plan::SourceId beside :
             {source.scaling->scales, source.scaling->zeros, source.scaling->tensor_scale, source.scaling->groups}) {
          if (!beside.is_none()) files.insert(load_.plan().sources[beside].file);
        }
      }
    };
    for (const DestinationRef& ref : destinations_) {
      if (memory_of(ref).received) continue;
      const plan::Destination& d = load_.plan().ranks[ref.rank].destinations[ref.destination];
      add(d.transfers);
      for (const auto& comparison : d.comparisons) add(comparison);
    }
    return files;
  }

 private:
  RandomLoad load_;
  Inputs inputs_;
  std::vector<DestinationRef> destinations_;
  std::mutex opened_mutex_;
  std::set<plan::FileId> opened_;
};

Options options_of(std::uint64_t seed) {
  Options options;
  options.threads = 1 + static_cast<std::uint32_t>(seed % 3);
  options.staging_buffer_bytes = std::uint64_t{64} << (seed % 6);
  options.poison = seed % 2 == 0 ? Poison::kOn : Poison::kOff;
  return options;
}

TEST(Receive, R11_WhatIsReceivedCountsAndIsDigestedLikeWhatIsRead) {
  std::uint64_t received = 0;
  std::uint64_t spared_files = 0;
  for (std::uint64_t seed = 0; seed < test::random_cases(1500); ++seed) {
    ReceivingLoad receiving(seed);
    RandomLoad& load = receiving.load();
    if (load.ties_differ()) continue;
    int calls = 0;
    std::uint64_t done_bytes = 0;
    std::uint64_t total_bytes = 0;
    Options options = options_of(seed);
    options.progress = [&](const Progress& progress) {
      done_bytes = progress.done_bytes;
      total_bytes = progress.total_bytes;
    };
    receiving.inputs().receive = [&, thread = std::this_thread::get_id()]() -> Result<void> {
      EXPECT_EQ(std::this_thread::get_id(), thread);
      ++calls;
      receiving.receive();
      return {};
    };
    const Outcome outcome = execute(receiving.inputs(), options);
    ASSERT_TRUE(outcome.errors.empty()) << "seed " << seed << ": " << outcome.errors.front().text();
    ASSERT_TRUE(load.is_right()) << "seed " << seed;
    ASSERT_EQ(calls, 1);
    ASSERT_EQ(done_bytes, total_bytes) << "seed " << seed;
    for (std::size_t t = 0; t < outcome.outcomes.size(); ++t) {
      ASSERT_EQ(outcome.outcomes[t].digest, load.digests()[t]) << "seed " << seed << ", destination " << t;
      ASSERT_TRUE(outcome.outcomes[t].complete());
      if (receiving.memory_of(outcome.destinations[t]).received) received += outcome.outcomes[t].written_bytes;
    }
    ASSERT_EQ(receiving.opened(), receiving.files_needed()) << "seed " << seed;
    if (receiving.opened().empty()) {
      ASSERT_EQ(outcome.read_bytes, 0U);
    }
    spared_files += load.plan().files.size() - receiving.opened().size();
  }
  EXPECT_GT(received, test::random_cases(25'000));
  EXPECT_GT(spared_files, test::random_cases(100));
}

TEST(Receive, R3_ItIsPoisonedBeforeAndEverythingElseIsInPlace) {
  int looked = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    ReceivingLoad receiving(seed);
    RandomLoad& load = receiving.load();
    if (load.ties_differ()) continue;
    Options options = options_of(0);
    receiving.inputs().receive = [&]() -> Result<void> {
      for (const DestinationRef& ref : receiving.destinations()) {
        const DestinationMemory& memory = receiving.memory_of(ref);
        const std::span<const std::byte> found(memory.data, memory.size_bytes);
        if (memory.received) {
          for (const std::byte byte : found) EXPECT_EQ(byte, std::byte{kPoison}) << "seed " << seed;
        } else if (load.can_be_received(ref)) {
          EXPECT_TRUE(std::equal(found.begin(), found.end(), load.expected(ref).begin())) << "seed " << seed;
        }
        ++looked;
      }
      receiving.receive();
      return {};
    };
    EXPECT_TRUE(execute(receiving.inputs(), options).errors.empty());
  }
  EXPECT_GT(looked, 500);
}

TEST(Receive, AByteThatCameWrongShowsInTheDigest) {
  int tried = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    ReceivingLoad receiving(seed);
    RandomLoad& load = receiving.load();
    if (load.ties_differ()) continue;
    std::optional<std::size_t> broken;
    for (std::size_t t = 0; t < receiving.destinations().size(); ++t) {
      const DestinationRef& ref = receiving.destinations()[t];
      const plan::Destination& d = load.plan().ranks[ref.rank].destinations[ref.destination];
      const bool has_padding = d.transfers.size() > 1;  // of which there is no digest
      if (receiving.memory_of(ref).received && d.owned_elems > 0 && !has_padding) broken = t;
    }
    if (!broken) continue;
    ++tried;
    receiving.inputs().receive = [&]() -> Result<void> {
      receiving.receive();
      receiving.memory_of(receiving.destinations()[*broken]).data[0] ^= std::byte{1};
      return {};
    };
    const Outcome outcome = execute(receiving.inputs(), options_of(seed));
    ASSERT_TRUE(outcome.errors.empty());
    for (std::size_t t = 0; t < outcome.outcomes.size(); ++t) {
      EXPECT_EQ(outcome.outcomes[t].digest == load.digests()[t], t != *broken)
          << "seed " << seed << ", destination " << t;
    }
  }
  EXPECT_GT(tried, 20);
}

TEST(Receive, R11_WhoCannotReceiveIsIncomplete) {
  int tried = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    ReceivingLoad receiving(seed);
    if (receiving.load().ties_differ() || !receiving.receives()) continue;
    ++tried;
    receiving.inputs().receive = []() -> Result<void> { return fail(Error(Code::kNoAnswer, "nobody is there")); };
    const Outcome outcome = execute(receiving.inputs(), options_of(seed));
    ASSERT_EQ(outcome.errors.size(), 1U);
    EXPECT_EQ(outcome.errors.front().message, "nobody is there");
    EXPECT_TRUE(outcome.begun);
    for (std::size_t t = 0; t < outcome.outcomes.size(); ++t) {
      const bool is_received = receiving.memory_of(outcome.destinations[t]).received;
      if (!is_received) continue;
      EXPECT_EQ(outcome.outcomes[t].complete(), outcome.outcomes[t].expected_bytes == 0);
    }
  }
  EXPECT_GT(tried, 20);
}

TEST(Receive, ACancelledLoadDoesNotReceive) {
  ReceivingLoad receiving(2);
  const std::atomic<bool> cancelled = true;
  bool called = false;
  receiving.inputs().receive = [&]() -> Result<void> {
    called = true;
    return {};
  };
  Options options;
  options.cancelled = &cancelled;
  const Outcome outcome = execute(receiving.inputs(), options);
  ASSERT_FALSE(outcome.errors.empty());
  EXPECT_EQ(outcome.errors.front().code, Code::kCancelled);
  EXPECT_FALSE(called);
}

TEST(Receive, ALoadThatCouldNotReadDoesNotReceive) {
  int tried = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    ReceivingLoad receiving(seed);
    if (receiving.files_needed().empty()) continue;
    ++tried;
    bool called = false;
    receiving.inputs().open = [](plan::FileId) -> Result<io::File> {
      return fail(Error(Code::kOpenFailed, "it is gone"));
    };
    receiving.inputs().receive = [&]() -> Result<void> {
      called = true;
      return {};
    };
    const Outcome outcome = execute(receiving.inputs(), options_of(seed));
    EXPECT_FALSE(outcome.errors.empty());
    EXPECT_FALSE(called);
  }
  EXPECT_GT(tried, 10);
}

TEST(Receive, CancelledMeanwhileItIsCancelled) {
  int tried = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    ReceivingLoad receiving(seed);
    if (receiving.load().ties_differ() || !receiving.receives()) continue;
    ++tried;
    std::atomic<bool> cancelled = false;
    receiving.inputs().receive = [&]() -> Result<void> {
      receiving.receive();
      cancelled = true;
      return {};
    };
    Options options = options_of(seed);
    options.cancelled = &cancelled;
    const Outcome outcome = execute(receiving.inputs(), options);
    ASSERT_FALSE(outcome.errors.empty());
    EXPECT_EQ(outcome.errors.front().code, Code::kCancelled);
    EXPECT_TRUE(outcome.begun);
  }
  EXPECT_GT(tried, 5);
}

TEST(Receive, OnlyWhatComesFromAFileAndSomebodyReceivesIsReceived) {
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    ReceivingLoad receiving(seed);
    RandomLoad& load = receiving.load();
    std::size_t odd = 0;
    for (const DestinationRef& ref : receiving.destinations()) {
      receiving.memory_of(ref).received = true;
      if (!load.can_be_received(ref)) ++odd;
    }
    const std::map<std::string, Bytes> before = load.buffers();
    if (odd > 0) {
      const Outcome outcome = execute(receiving.inputs(), options_of(seed));
      EXPECT_EQ(outcome.errors.size() + outcome.errors.not_listed(), odd) << "seed " << seed;
      EXPECT_FALSE(outcome.begun);
      ++refused;
    }
    receiving.inputs().receive = nullptr;
    const Outcome outcome = execute(receiving.inputs(), options_of(seed));
    ASSERT_EQ(outcome.errors.size(), receiving.destinations().size());
    EXPECT_EQ(outcome.errors.front().code, Code::kUsage);
    EXPECT_FALSE(outcome.begun);
    EXPECT_EQ(load.buffers(), before);
  }
  EXPECT_GT(refused, 20);
}

}  // namespace
}  // namespace lading::exec
