#include "ranks/replicas.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "ranks/thread_channel_for_tests.h"

namespace lading::ranks {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

std::string digest(char digit) { return std::string(32, digit); }

using SetsOf = std::function<std::vector<ReplicaSet>(std::uint64_t rank)>;

// One thread per rank; what each of them says in the end.
std::vector<std::string> on_ranks(std::uint64_t size, const SetsOf& sets_of) {
  EntryStore store;
  std::vector<std::string> said(size);
  std::vector<std::jthread> threads;
  for (std::uint64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadChannel channel(store, rank, size);
      Options options;
      options.deadline = 2s;
      Coordinator ranks(channel, options);
      if (auto begun = ranks.begin(); !begun) return;
      const auto agreed = agree_replicas(ranks, sets_of(rank), {{"read", "5", Field::Mode::kCollect}});
      said[rank] = agreed ? "well" : agreed.error().text();
      if (agreed && !agreed->fields.contains("read")) said[rank] = "the field was lost";
      ranks.leave();
    });
  }
  threads.clear();
  return said;
}

ReplicaSet set_of(const std::vector<std::uint64_t>& ranks, std::size_t tensors) {
  ReplicaSet set{RankSet(ranks), {}};
  for (std::size_t i = 0; i < tensors; ++i) set.digests.push_back({fmt::format("w{}", i), "", digest('a')});
  return set;
}

TEST(Replicas, R17_TheSameOnAllIsAgreed) {
  EXPECT_THAT(on_ranks(4, [](auto) { return std::vector{set_of({0, 1, 2, 3}, 3)}; }), Each("well"));
  EXPECT_THAT(on_ranks(3, [](auto) { return std::vector<ReplicaSet>(); }), Each("well"));
}

TEST(Replicas, R17_OnlyThoseOfASetAreCompared) {
  const auto said = on_ranks(4, [](std::uint64_t rank) {
    ReplicaSet set = set_of(rank % 2 == 0 ? std::vector<std::uint64_t>{0, 2} : std::vector<std::uint64_t>{1, 3}, 2);
    if (rank % 2 == 1) set.digests[0].digest = digest('b');
    return std::vector{set};
  });
  EXPECT_THAT(said, Each("well"));
}

TEST(Replicas, R17_ADifferenceIsNamedByTensorAndRanks) {
  for (const std::size_t tensors : {1U, 2U, 255U, 256U, 257U, 3000U}) {
    const std::size_t odd = tensors * 2 / 3;
    const auto said = on_ranks(4, [&](std::uint64_t rank) {
      ReplicaSet all = set_of({0, 1, 2, 3}, tensors);
      if (rank == 2) all.digests[odd].digest = digest('b');
      return std::vector{all, set_of({rank}, 1)};
    });
    EXPECT_THAT(said, Each(said.front())) << tensors;
    EXPECT_THAT(said.front(), AllOf(HasSubstr(fmt::format("tensor \"w{}\"", odd)), HasSubstr("values_differ, R17"),
                                    HasSubstr(digest('a') + " on ranks 0-1, 3; " + digest('b') + " on rank 2")));
    EXPECT_THAT(said.front(), Not(HasSubstr(fmt::format("tensor \"w{}\"", odd + 1))));
  }
}

TEST(Replicas, R17_RanksThatAreNotInTheSetAreToldToo) {
  const auto said = on_ranks(5, [](std::uint64_t rank) {
    std::vector<ReplicaSet> sets;
    if (rank == 1 || rank == 3) sets.push_back(set_of({1, 3}, 700));
    if (rank == 3) {
      sets[0].digests[5].digest = digest('c');
      sets[0].digests[699].slot = "secondary";
      sets[0].digests[699].digest = digest('d');
    }
    return sets;
  });
  EXPECT_THAT(said, Each(said.front()));
  EXPECT_THAT(said.front(),
              AllOf(HasSubstr("\"w5\""), HasSubstr("w699"), HasSubstr("on rank 1"), HasSubstr("on rank 3")));
}

TEST(Replicas, R17_AValueThatWasThereBeforeIsSaidToBeSo) {
  const auto said = on_ranks(2, [](std::uint64_t rank) {
    ReplicaSet set = set_of({0, 1}, 3);
    set.digests[1].is_kept = true;
    if (rank == 1) set.digests[1].digest = digest('b');
    return std::vector{set};
  });
  EXPECT_THAT(said, Each(AllOf(HasSubstr("tensor \"w1\""), HasSubstr(digest('a') + ", kept on rank 0"),
                               HasSubstr("name it in keep="))));
}

TEST(Replicas, R17_ListsOfOtherLengthsAreADifference) {
  const auto said = on_ranks(2, [](std::uint64_t rank) { return std::vector{set_of({0, 1}, 3 + rank)}; });
  EXPECT_THAT(said, Each(HasSubstr("have different bytes")));
}

}  // namespace
}  // namespace lading::ranks
