// Plans of saves against an oracle that moves element labels one by one, and mutations of them against the checker.
// LADING_ORACLE_CASES makes it longer.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <utility>

#include "checker/save/check_save.h"
#include "planner/tests/save_world_for_tests.h"

namespace lading::planner {
namespace {

std::uint64_t save_cases() {
  const char* wanted_cases = std::getenv("LADING_ORACLE_CASES");
  return wanted_cases == nullptr ? 10'000 : std::strtoull(wanted_cases, nullptr, 10);
}

std::string all_problems(const Errors& errors) {
  std::string text;
  for (const Error& error : errors) text += error.text() + "\n";
  return text;
}

TEST(SaveOracle, R69_EveryElementOfEveryKeyIsWrittenOnceFromWhereTheOracleHasIt) {
  std::uint64_t saved = 0;
  for (std::uint64_t seed = 0; saved < save_cases(); ++seed) {
    const SaveWorld world(seed);
    const auto made = world.plan();
    ASSERT_EQ(made.has_value(), world.can_be_saved()) << "seed " << seed << (made ? "" : all_problems(made.error()));
    if (!made) continue;
    ++saved;
    ASSERT_EQ(world.written(made->plan), world.wanted()) << "seed " << seed;
    const auto proof = checker::check_save(made->plan);
    ASSERT_TRUE(proof.has_value()) << "seed " << seed << ": " << all_problems(proof.error());
    std::uint64_t bytes = 0;
    for (const auto& [key, elements] : world.wanted()) bytes += 2 * elements.size();
    ASSERT_EQ(proof->bytes_proved, bytes) << "seed " << seed;
  }
}

// One change of a plan that makes it wrong; false if this plan has nothing to change so.
class SaveMutator {
 public:
  explicit SaveMutator(std::uint64_t seed) : random_(seed) {}

  bool mutate(plan::SavePlan& save) {
    switch (below(9)) {
      case 0: return a_write_twice(save);
      case 1: return a_write_missing(save);
      case 2: return a_second_writer(save);
      case 3: return another_place(save, &plan::Write::file_begin_bytes);
      case 4: return another_place(save, &plan::Write::memory_begin_bytes);
      case 5: return another_length(save);
      case 6: return another_stride(save);
      case 7: return another_header(save);
      default: return another_index(save);
    }
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  plan::RankWrites* some_rank(plan::SavePlan& save) {
    for (int i = 0; i < 20; ++i) {
      plan::RankWrites& rank = save.ranks[below(save.ranks.size())];
      if (!rank.writes.empty()) return &rank;
    }
    return nullptr;
  }

  static std::uint64_t bytes_of(const plan::Write& write) { return 2 * write.elems(); }

  bool a_write_twice(plan::SavePlan& save) {
    plan::RankWrites* rank = some_rank(save);
    if (rank == nullptr) return false;
    const plan::Write write = rank->writes[below(rank->writes.size())];
    rank->writes.push_back(write);
    rank->bytes += bytes_of(write);
    return true;
  }

  bool a_write_missing(plan::SavePlan& save) {
    plan::RankWrites* rank = some_rank(save);
    if (rank == nullptr) return false;
    const std::size_t w = below(rank->writes.size());
    rank->bytes -= bytes_of(rank->writes[w]);
    rank->writes.erase(rank->writes.begin() + static_cast<std::ptrdiff_t>(w));
    return true;
  }

  // A replica that writes as well, which is right in itself.
  bool a_second_writer(plan::SavePlan& save) {
    plan::RankWrites* rank = some_rank(save);
    if (rank == nullptr) return false;
    const plan::Write& write = rank->writes[below(rank->writes.size())];
    const auto same = [&](const plan::RankPlan& a, const plan::RankPlan& b) {
      return write.transfer.destination.number() < b.destinations.size() &&
             a.destinations[write.transfer.destination].transfers ==
                 b.destinations[write.transfer.destination].transfers &&
             a.destinations[write.transfer.destination].comparisons ==
                 b.destinations[write.transfer.destination].comparisons;
    };
    const auto at = static_cast<std::size_t>(rank - save.ranks.data());
    for (std::size_t r = 0; r < save.ranks.size(); ++r) {
      if (r == at || !same(save.load.ranks[at], save.load.ranks[r])) continue;
      save.ranks[r].bytes += bytes_of(write);
      save.ranks[r].writes.push_back(write);
      return true;
    }
    return false;
  }

  bool another_place(plan::SavePlan& save, std::uint64_t plan::Write::*place) {
    plan::RankWrites* rank = some_rank(save);
    if (rank == nullptr) return false;
    plan::Write& write = rank->writes[below(rank->writes.size())];
    write.*place += below(2) == 0 && write.*place >= 2 ? static_cast<std::uint64_t>(-2) : 2 * (1 + below(3));
    return true;
  }

  bool another_length(plan::SavePlan& save) {
    plan::RankWrites* rank = some_rank(save);
    if (rank == nullptr) return false;
    plan::Write& write = rank->writes[below(rank->writes.size())];
    const std::uint64_t before = bytes_of(write);
    write.run_elems += below(2) == 0 && write.run_elems > 1 ? static_cast<std::uint64_t>(-1) : 1;
    rank->bytes += bytes_of(write) - before;
    return true;
  }

  bool another_stride(plan::SavePlan& save) {
    plan::RankWrites* rank = some_rank(save);
    if (rank == nullptr) return false;
    plan::Write& write = rank->writes[below(rank->writes.size())];
    if (write.loops.empty()) return false;
    ByteLoop& loop = write.loops[below(write.loops.size())];
    (below(2) == 0 ? loop.source_stride_bytes : loop.target_stride_bytes) += 2;
    return true;
  }

  bool another_header(plan::SavePlan& save) {
    std::string& header = save.headers[plan::FileId(below(save.headers.size()))];
    std::string digits;
    std::vector<std::size_t> places;
    for (std::size_t i = 8; i < header.size(); ++i) {
      if (header[i] >= '0' && header[i] <= '9') places.push_back(i);
    }
    char& digit = header[places[below(places.size())]];
    digit = digit == '9' ? '1' : static_cast<char>(digit + 1);
    return true;
  }

  static bool another_index(plan::SavePlan& save) {
    const std::size_t digit = save.index.find_last_of("01234");
    if (digit == std::string::npos) return false;
    ++save.index[digit];
    return true;
  }

  std::mt19937_64 random_;
};

TEST(SaveMutations, R69_APlanWithOneChangeIsRefused) {
  std::uint64_t mutated = 0;
  for (std::uint64_t seed = 0; mutated < save_cases(); ++seed) {
    const SaveWorld world(seed);
    auto made = world.plan();
    if (!made) continue;
    SaveMutator mutator(seed);
    for (int i = 0; i < 4; ++i) {
      plan::SavePlan changed = made->plan;
      if (!mutator.mutate(changed)) continue;
      ++mutated;
      const auto proof = checker::check_save(changed);
      ASSERT_FALSE(proof.has_value()) << "seed " << seed << " mutation " << i;
    }
  }
}

}  // namespace
}  // namespace lading::planner
