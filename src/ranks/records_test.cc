#include "ranks/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "ranks/thread_channel_for_tests.h"

namespace lading::ranks {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<Record> many(std::size_t count) {
  std::vector<Record> records;
  for (std::size_t i = 0; i < count; ++i) {
    records.push_back({"layers." + std::to_string(i) + ".weight", {{"dtype", "BF16"}, {"shape", "[4, 2]"}}});
  }
  return records;
}

template <class Change>
std::vector<std::string> compare(std::uint64_t size, std::size_t count, const Change& change) {
  EntryStore store;
  std::vector<std::string> said(size);
  std::vector<std::thread> threads;
  for (std::uint64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadChannel channel(store, rank, size);
      Coordinator ranks(channel, {});
      auto records = many(count);
      change(rank, records);
      if (auto begun = ranks.begin(); !begun) {
        said[rank] = begun.error().text();
        return;
      }
      const auto agreed = agree_records(ranks, "tensor", records);
      said[rank] = agreed ? "well" : agreed.error().text();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

TEST(Records, R30_TheSameRecordsInAnyOrderAgree) {
  EXPECT_THAT(compare(3, 500,
                      [](std::uint64_t rank, auto& records) {
                        if (rank == 1) std::swap(records.front(), records.back());
                      }),
              Each("well"));
  EXPECT_THAT(compare(2, 0, [](std::uint64_t, auto&) {}), Each("well"));
}

TEST(Records, R30_OneDtypeOnOneRankIsNamed) {
  const auto said = compare(5, 3000, [](std::uint64_t rank, auto& records) {
    if (rank == 3) records[1234].fields[0].second = "F32";
  });
  EXPECT_THAT(said, Each(said.front()));
  EXPECT_THAT(said.front(),
              AllOf(HasSubstr("tensor \"layers.1234.weight\""), HasSubstr("differ in tensor: dtype"),
                    HasSubstr("BF16 on ranks 0-2, 4; F32 on rank 3"), HasSubstr("R30"), Not(HasSubstr("shape"))));
}

TEST(Records, R30_ATensorThatOneRankDoesNotHave) {
  const auto said = compare(4, 100, [](std::uint64_t rank, auto& records) {
    if (rank == 0) records.pop_back();
    if (rank == 2) records[5].fields[1].second = "[2, 4]";
  });
  EXPECT_THAT(said, Each(said.front()));
  EXPECT_THAT(said.front(), AllOf(HasSubstr("layers.99.weight"), HasSubstr("missing on rank 0; there on ranks 1, 3"),
                                  HasSubstr("layers.5.weight"), HasSubstr("[2, 4] on rank 2")));
}

TEST(Records, ManyDifferencesAreCut) {
  const auto said = compare(2, 2000, [](std::uint64_t rank, auto& records) {
    if (rank == 1) {
      for (Record& record : records) record.fields[0].second = "F16";
    }
  });
  EXPECT_THAT(said, Each(said.front()));
  EXPECT_THAT(said.front(), HasSubstr("F16 on rank 1"));
  EXPECT_LT(said.front().size(), 5000U);
}

}  // namespace
}  // namespace lading::ranks
