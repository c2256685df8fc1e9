// Tasks of random reads: within the read, no larger than a buffer, and every byte to where its transfer sends it.
#include "exec/read_task.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "checker/check_random_plan_for_tests.h"
#include "support/loop_begins.h"

namespace lading::exec {
namespace {

using Loops = std::vector<ByteLoop>;
// The bit in its file where each element begins, by destination and place there.
using Moves = std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t>;

struct Nest {
  std::uint64_t from_bytes = 0;
  std::uint64_t to_bytes = 0;
  std::uint64_t run_elems = 0;
  Loops loops;
  std::uint64_t from_width = 32;  // in bits
  DType to = DType::kF32;
  std::uint64_t first_code = 0;
};

// `place`: from a place in what was read to one in the file.
template <class Place>
void add_moves(std::uint32_t destination, const Nest& nest, const Place& place, Moves& moves) {
  for (const auto& [from, to] : test::loop_begins(nest.from_bytes, nest.to_bytes, nest.loops)) {
    for (std::uint64_t e = 0; e < nest.run_elems; ++e) {
      const auto at = std::pair(destination, to * 8 + e * bits(nest.to));
      const std::uint64_t bit = (nest.first_code + e) * nest.from_width;
      ASSERT_TRUE(moves.emplace(at, place(from + bit / 8) * 8 + bit % 8).second) << "written twice";
    }
  }
}

std::set<std::uint64_t> bytes_of(std::uint64_t begin, std::uint64_t size, std::uint64_t rows, std::uint64_t stride) {
  std::set<std::uint64_t> bytes;
  for (std::uint64_t row = 0; row < rows; ++row) {
    for (std::uint64_t b = 0; b < size; ++b) bytes.insert(begin + row * stride + b);
  }
  return bytes;
}

TEST(ReadTask, R11_R64_ReadsAreSplitAndNeverExtended) {
  checker::naive::PlanMaker maker(5);
  std::uint64_t reads = 0;
  std::uint64_t split = 0;
  for (int round = 0; round < 600; ++round) {
    const plan::Plan plan = maker.make_plan();
    for (const plan::RankPlan& rank : plan.ranks) {
      for (const plan::Read& read : rank.reads) {
        ReadJob job;
        job.read = &read;
        job.staging_buffer_bytes = std::uint64_t{8} << maker.below(5);
        job.may_be_in_place = maker.once_in(2);
        Moves wanted;
        for (const plan::TransferRef& ref : read.transfers) {
          const plan::Transfer& t = rank.at(ref);
          const DType storage = plan.statements[rank.destinations[ref.destination].statement].storage;
          const std::uint32_t destination = ref.destination.number() * 100 + ref.list * 10;
          job.served.push_back({destination, &t, storage});
          const std::uint64_t width = checker::naive::width_of(plan.sources[t.source]);
          Nest nest{t.source_begin_bytes, t.target_begin_bytes, t.run_elems, {}, width, storage, t.first_code};
          for (const ByteLoop& loop : t.loops) {
            nest.loops.push_back({loop.count, loop.source_stride_bytes, loop.target_stride_bytes});
          }
          add_moves(
              destination, nest, [](std::uint64_t at) { return at; }, wanted);
        }
        std::vector<ReadTask> tasks;
        split_read(plan, job, tasks);
        const auto proved = bytes_of(read.begin_bytes, read.size_bytes, read.count, read.stride_bytes);
        Moves found;
        for (const ReadTask& task : tasks) {
          const auto bytes = bytes_of(task.begin_bytes, task.row_bytes, task.rows, task.row_stride_bytes);
          ASSERT_TRUE(std::includes(proved.begin(), proved.end(), bytes.begin(), bytes.end())) << "round " << round;
          ASSERT_LE(task.size_bytes(), std::max<std::uint64_t>(job.staging_buffer_bytes, 64))
              << "eight elements at least";
          for (const Step& step : task.steps) {
            DType storage = DType::kF32;
            for (const Served& one : job.served) {
              if (one.destination == step.destination) storage = one.storage;
            }
            const Nest nest{step.source_begin_bytes,
                            step.target_begin_bytes,
                            step.run_elems,
                            step.loops,
                            checker::naive::width_of(plan.sources[step.source]),
                            storage,
                            step.first_code};
            const auto in_file = [&](std::uint64_t at) {
              if (task.rows == 1) return task.begin_bytes + at;
              return task.begin_bytes + at / task.row_bytes * task.row_stride_bytes + at % task.row_bytes;
            };
            add_moves(step.destination, nest, in_file, found);
          }
        }
        ASSERT_EQ(found, wanted) << "round " << round;
        ++reads;
        split += tasks.size() > 1 ? 1U : 0U;
      }
    }
  }
  EXPECT_GT(reads, 5'000U);
  EXPECT_GT(split, 500U);
}

}  // namespace
}  // namespace lading::exec
