// Loads by several ranks, a thread each, that read for each other. Real files; notes and bytes go through memory.
#include "api/group_load.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include "ranks/thread_bulk_for_tests.h"
#include "ranks/thread_channel_for_tests.h"
#include "support/by_strategy.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr std::uint64_t kRanks = 4;

class GroupLoadTest : public ::testing::Test {
 protected:
  // "w0" … "w7", F32, of 20,000, 21,000, … 27,000 elements, and "empty" of none.
  void SetUp() override {
    std::string header = R"({"empty":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
    std::vector<float> values;
    for (std::uint64_t i = 0; i < 8; ++i) {
      const std::uint64_t begin = values.size() * sizeof(float);
      for (std::uint64_t e = 0; e < elems(i); ++e) values.push_back(static_cast<float>(values.size()) + 0.5F);
      header += fmt::format(R"(,"w{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})", i, elems(i), begin,
                            values.size() * sizeof(float));
    }
    data_.resize(values.size() * sizeof(float));
    std::memcpy(data_.data(), values.data(), data_.size());
    dir_.write("ckpt/model.safetensors", test::safetensors_bytes(header + "}", data_));
    request_.load.plan.checkpoint.path = dir_.path("ckpt");
    request_.load.plan.layout = test::by_strategy("ddp", "dp=4");
    request_.load.poison = PoisonFirst::kYes;
    request_.exchange = Exchange::kJob;
    request_.options.deadline = 2s;
  }

  static std::uint64_t elems(std::uint64_t tensor) { return 20'000 + 1000 * tensor; }

  using Ended = std::vector<Result<GroupReport, GroupFailure>>;

  /// On all ranks, a thread each.
  Ended load(const std::function<void(std::uint64_t rank, GroupRequest& request)>& change = {}) {
    ranks::EntryStore store;
    Ended ended(kRanks, Result<GroupReport, GroupFailure>(GroupReport{}));
    std::vector<std::jthread> threads;
    for (std::uint64_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        ranks::ThreadChannel channel(store, rank, kRanks);
        ranks::ThreadBulk bulk(post_, rank);
        GroupRequest request = request_;
        if (change) change(rank, request);
        ended[rank] = load_in_group(channel, bulk, std::move(request));
      });
    }
    threads.clear();
    return ended;
  }

  void expect_right(const Ended& ended) const {
    for (const auto& one : ended) {
      ASSERT_TRUE(one) << one.error().failure.problems.front().text();
      std::string memory;
      for (const LoadedTensor& tensor : one->report.tensors) {
        memory.append(reinterpret_cast<const char*>(tensor.memory.data()), tensor.memory.size());
      }
      EXPECT_EQ(memory, data_);
    }
  }

  static std::string failure_of(const Ended& ended) {
    std::string text;
    for (const auto& one : ended) {
      if (one) return "rank without a failure";
      std::string mine;
      for (const Error& error : one.error().failure.problems) mine += error.text() + "\n";
      if (!text.empty() && mine != text) return "they differ:\n" + text + mine;
      text = mine;
    }
    return text;
  }

  test::TempDir dir_;
  std::string data_;
  GroupRequest request_;
  ranks::BulkPost post_;
};

TEST_F(GroupLoadTest, EveryByteIsReadOnceForAll) {
  const Ended ended = load();
  expect_right(ended);
  std::uint64_t read_bytes = 0;
  for (const auto& one : ended) {
    EXPECT_EQ(one->read_bytes, data_.size());
    EXPECT_LT(one->report.read_bytes, data_.size() / 3);
    read_bytes += one->report.read_bytes;
  }
  EXPECT_EQ(read_bytes, data_.size());
  EXPECT_TRUE(post_.is_tidy());
  const std::string ledger = ledger_json(ended[0]->report);
  EXPECT_THAT(ledger, AllOf(HasSubstr(R"("received_from": 1)"), HasSubstr(R"("received_from": 3)")));
}

TEST_F(GroupLoadTest, OrByEveryRankForItself) {
  request_.exchange = Exchange::kNever;
  const Ended ended = load();
  expect_right(ended);
  EXPECT_EQ(ended[0]->read_bytes, kRanks * data_.size());
}

TEST_F(GroupLoadTest, OrOnceOnEachNode) {
  request_.exchange = Exchange::kNode;
  const auto on_two = [](std::uint64_t rank, GroupRequest& request) { request.node = rank == 2 ? "b" : "a"; };
  const Ended ended = load(on_two);
  expect_right(ended);
  EXPECT_EQ(ended[0]->read_bytes, 2 * data_.size());
  EXPECT_EQ(ended[2]->report.read_bytes, data_.size()) << "it is alone there";
}

TEST_F(GroupLoadTest, R17_AByteThatCameWrongIsRefusedByName) {
  std::atomic<bool> is_broken = false;
  post_.on_arrival = [&](const ranks::BulkPost::Pair& pair, std::span<std::byte> bytes) {
    if (pair.second == 3 && bytes.size() == 4 * elems(7) && !is_broken.exchange(true)) bytes[7] ^= std::byte{0x10};
  };
  const Ended ended = load();
  ASSERT_TRUE(is_broken);
  EXPECT_THAT(failure_of(ended), AllOf(HasSubstr("tensor \"w7\""), HasSubstr("have different bytes"), HasSubstr("R17"),
                                       HasSubstr("on ranks 0-2"), HasSubstr("on rank 3")));
  EXPECT_EQ(ended[1].error().exit_code, Exit::kLoad);
  EXPECT_TRUE(ended[1].error().failure.begun);
}

TEST_F(GroupLoadTest, R44_WhereOneRankIsCancelledNobodyWaitsForItsBytes) {
  const std::atomic<bool> cancelled = true;
  const auto begin = std::chrono::steady_clock::now();
  const Ended ended = load([&](std::uint64_t rank, GroupRequest& request) {
    if (rank == 1) request.load.cancelled = &cancelled;
    if (rank == 1) request.load.threads = 1;
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  EXPECT_THAT(failure_of(ended), AllOf(HasSubstr("cancelled"), HasSubstr("rank 1")));
}

TEST_F(GroupLoadTest, R44_ARankThatIsCancelledWhileItWaitsForOthersEndsAll) {
  std::atomic<bool> cancelled = false;
  request_.exchange = Exchange::kNever;
  const std::jthread user([&] {
    std::this_thread::sleep_for(500ms);
    cancelled = true;
  });
  const Ended ended = load([&](std::uint64_t rank, GroupRequest& request) {
    if (rank == 1) request.load.cancelled = &cancelled;
    if (rank == 2) request.load.progress = [](const LoadProgress&) { std::this_thread::sleep_for(1500ms); };
  });
  EXPECT_THAT(failure_of(ended), HasSubstr("rank 1: the load was cancelled"));
  EXPECT_THAT(ended[1].error().failure.ledger, HasSubstr(R"("complete": false)"));
}

TEST_F(GroupLoadTest, R44_ATransferThatNeverEndsEndsWithItsRank) {
  post_.hangs = [](const ranks::BulkPost::Pair& pair) { return pair.first == 2; };
  std::atomic<bool> cancelled = false;
  std::jthread impatient([&] {
    std::this_thread::sleep_for(300ms);
    cancelled = true;
  });
  const Ended ended = load(
      [&](std::uint64_t rank, GroupRequest& request) { request.load.cancelled = rank == 0 ? &cancelled : nullptr; });
  EXPECT_THAT(failure_of(ended), HasSubstr("stopped early"));
}

TEST_F(GroupLoadTest, R44_RanksThatWantOtherExchangesAreRefused) {
  const Ended ended = load([](std::uint64_t rank, GroupRequest& request) {
    if (rank == 3) request.exchange = Exchange::kNever;
  });
  EXPECT_THAT(failure_of(ended),
              AllOf(HasSubstr("differ in exchange"), HasSubstr("job on ranks 0-2; never on rank 3")));
  EXPECT_FALSE(ended[0].error().failure.begun);
}

TEST_F(GroupLoadTest, R44_ARefusalOfOneRankIsARefusalOfAllAndTwoSpeak) {
  const Ended ended = load([](std::uint64_t rank, GroupRequest& request) {
    if (rank == 2) request.load.plan.checkpoint.path = "/no/such/checkpoint";
  });
  EXPECT_THAT(failure_of(ended), HasSubstr("rank 2: "));
  for (const auto& one : ended) {
    EXPECT_TRUE(one.error().failure.refused.has_value()) << "one label";
    EXPECT_THAT(one.error().speakers, ::testing::ElementsAre(0U, 2U));
  }
}

TEST_F(GroupLoadTest, MemoryOfTheCallersIsNotExchanged) {
  const Ended ended = load([](std::uint64_t, GroupRequest& request) {
    request.load.memory = [](const DestinationInfo&) -> Result<std::span<std::byte>> { return std::span<std::byte>(); };
  });
  EXPECT_THAT(failure_of(ended), HasSubstr("memory of the caller"));
}

// Cut along one axis of the mesh, and whole on the other.
TEST_F(GroupLoadTest, PartsAreExchangedBetweenThoseThatHoldThem) {
  request_.load.plan.layout = Document::text(R"({"schema": "lading.layout/1",
    "mesh": [{"name": "rep", "size": 2}, {"name": "tp", "size": 2}], "devices": "cpu",
    "rules": [{"pattern": "w7", "cuts": [{"shard": 0, "axes": ["tp"]}]}]})");
  const Ended ended = load();
  ASSERT_TRUE(ended[0]) << failure_of(ended);
  EXPECT_EQ(ended[0]->read_bytes, data_.size());
}

}  // namespace
}  // namespace lading
