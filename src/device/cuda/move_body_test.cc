#include "device/cuda/move_body.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/cast.h"
#include "device/move.h"

namespace lading::device::cuda {
namespace {

using Random = std::mt19937_64;

// What a block does: the plan in parts, then every thread.
void run_job(const MoveJob& job) {
  MovePlan plan;
  for (std::uint32_t part = 0; part < kMovePlanParts; ++part) make_plan_part(job, unit_of(job), part, plan);
  for (std::uint32_t thread = 0; thread < kBlockThreads; ++thread) move_body(job, plan, {thread, kBlockThreads});
}

std::uint64_t total_elems(const Move& move) {
  std::uint64_t elems = move.run_elems;
  for (const ByteLoop& loop : move.loops) elems *= loop.count;
  return elems;
}

// The move as jobs of at most `job_elems` elements.
void move_by_jobs(const Move& move, std::uint64_t job_elems) {
  MoveJob job = {};
  job.source = reinterpret_cast<std::uint64_t>(move.source);
  job.target = reinterpret_cast<std::uint64_t>(move.target);
  job.run_elems = move.run_elems;
  job.cast = {static_cast<std::uint32_t>(move.from), static_cast<std::uint32_t>(move.to)};
  job.loop_count = static_cast<std::uint32_t>(move.loops.size());
  for (std::size_t i = 0; i < move.loops.size(); ++i) {
    job.loops[i] = {move.loops[i].count, move.loops[i].source_stride_bytes, move.loops[i].target_stride_bytes};
  }
  const std::uint64_t total = total_elems(move);
  for (job.first_elem = 0; job.first_elem < total; job.first_elem += job_elems) {
    job.elems = std::min(job_elems, total - job.first_elem);
    run_job(job);
  }
}

// Both sides of a move that is made up: loops in any order of memory, with gaps between runs, any alignment.
struct Made {
  std::vector<std::byte> source;
  std::size_t target_bytes = 0;
  std::size_t source_offset = 0;
  std::size_t target_offset = 0;
  std::uint64_t run_elems = 1;
  std::vector<ByteLoop> loops;
};

std::uint64_t one_of(Random& random, std::initializer_list<std::uint64_t> choices) {
  return *(choices.begin() + random() % choices.size());
}

// Strides of one side, in an order of its own; gives the bytes that all of it takes.
std::uint64_t lay_out(Random& random, std::uint64_t run_bytes, std::vector<ByteLoop>& loops,
                      std::uint64_t ByteLoop::*stride) {
  std::vector<std::size_t> order(loops.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  std::uint64_t extent = run_bytes;
  for (const std::size_t i : order) {
    loops[i].*stride = extent + one_of(random, {0, 0, 0, 1, 4, 16, 48});
    extent += (loops[i].count - 1) * loops[i].*stride;
  }
  return extent;
}

Made make_up(Random& random, DType from, DType to) {
  Made made;
  made.run_elems = one_of(random, {1, 2, 3, 4, 8, 16, 31, 64, 100, 512, 3000});
  const std::size_t loop_count = random() % (kMaxJobLoops + 1);
  std::uint64_t elems = made.run_elems;
  for (std::size_t i = 0; i < loop_count; ++i) {
    const std::uint64_t count = elems > 4000 ? 1 + random() % 2 : one_of(random, {1, 2, 3, 5, 8, 16});
    elems *= count;
    made.loops.push_back({count, 0, 0});
  }
  const auto source_bytes =
      lay_out(random, made.run_elems * element_bytes(from), made.loops, &ByteLoop::source_stride_bytes);
  const auto target_bytes =
      lay_out(random, made.run_elems * element_bytes(to), made.loops, &ByteLoop::target_stride_bytes);
  made.source_offset = one_of(random, {0, 0, 0, 1, 2, 4, 8, 12, 13});
  made.target_offset = one_of(random, {0, 0, 0, 1, 2, 4, 8, 12, 13});
  made.source.resize(made.source_offset + source_bytes);
  for (std::byte& byte : made.source) byte = static_cast<std::byte>(random());
  made.target_bytes = made.target_offset + target_bytes;
  return made;
}

void expect_as_on_host(const Made& made, DType from, DType to, std::uint64_t job_elems) {
  std::vector<std::byte> wanted(made.target_bytes, std::byte{0x5A});
  std::vector<std::byte> found = wanted;
  Move move;
  move.source = made.source.data() + made.source_offset;
  move.target = wanted.data() + made.target_offset;
  move.run_elems = made.run_elems;
  move.from = from;
  move.to = to;
  move.loops = made.loops;
  move_on_host(move);
  move.target = found.data() + made.target_offset;
  move_by_jobs(move, job_elems);
  if (found == wanted) return;
  std::string loops;
  for (const ByteLoop& loop : made.loops) {
    loops += fmt::format(" {} x {}, {};", loop.count, loop.source_stride_bytes, loop.target_stride_bytes);
  }
  FAIL() << fmt::format("{} to {}: runs of {}, jobs of {}, loops{}, offsets {} and {}", name(from), name(to),
                        made.run_elems, job_elems, loops, made.source_offset, made.target_offset);
}

TEST(MoveBody, AllPairsAsOnTheHost) {
  Random random(1);
  for (const DType from : all_dtypes()) {
    for (const DType to : all_dtypes()) {
      if (bits(from) < 8 || (from != to && find_cast(from, to) == nullptr)) continue;
      for (int i = 0; i < 12; ++i) {
        const Made made = make_up(random, from, to);
        ASSERT_NO_FATAL_FAILURE(expect_as_on_host(made, from, to, one_of(random, {64, 1000, 1 << 20})));
      }
    }
  }
}

TEST(MoveBody, CommonPairsAsOnTheHost) {
  Random random(2);
  using enum DType;
  for (int i = 0; i < 150; ++i) {
    for (const auto& [from, to] : std::initializer_list<std::pair<DType, DType>>{{kF32, kBF16},
                                                                                 {kBF16, kF32},
                                                                                 {kF32, kF16},
                                                                                 {kF16, kF32},
                                                                                 {kF16, kBF16},
                                                                                 {kBF16, kF16},
                                                                                 {kF8E4M3, kBF16},
                                                                                 {kF8E4M3, kF32},
                                                                                 {kU8, kU8},
                                                                                 {kBF16, kBF16},
                                                                                 {kF32, kF32}}) {
      const Made made = make_up(random, from, to);
      ASSERT_NO_FATAL_FAILURE(expect_as_on_host(made, from, to, one_of(random, {64, 1001, 1 << 20})));
    }
  }
}

TEST(MoveBody, WideUnitsAreTakenWhereTheyFit) {
  MoveJob job = {};
  job.source = 4096;
  job.target = 8192;
  job.elems = 1 << 14;
  job.run_elems = 1 << 20;
  job.cast = {static_cast<std::uint32_t>(DType::kF32), static_cast<std::uint32_t>(DType::kBF16)};
  EXPECT_EQ(unit_of(job).source_bytes, 16U);
  job.cast.to = job.cast.from;
  EXPECT_EQ(unit_of(job).source_bytes, 16U);
  job.run_elems = 64;
  job.loop_count = 1;
  job.loops[0] = {256, 1024, 256};
  EXPECT_EQ(unit_of(job).source_bytes, 16U);
  job.loops[0].source_stride_bytes = 1020;
  EXPECT_EQ(unit_of(job).source_bytes, 4U);
  job.loops[0].source_stride_bytes = 1023;
  EXPECT_EQ(unit_of(job).source_bytes, 1U);
}

// Numbers beyond 32 bits: a run, a loop and a place that large, of which the jobs are small pieces.
TEST(MoveBody, LargeNumbers) {
  Random random(3);
  constexpr std::uint64_t kBig = (std::uint64_t{1} << 36) + 40;
  for (const auto& [from, to] : {std::pair(DType::kF32, DType::kBF16), std::pair(DType::kF32, DType::kF32)}) {
    const std::uint64_t from_bytes = element_bytes(from);
    const std::uint64_t to_bytes = element_bytes(to);
    std::vector<std::byte> source(4000 * from_bytes);
    for (std::byte& byte : source) byte = static_cast<std::byte>(random());
    std::vector<std::byte> wanted(4000 * to_bytes);
    Move move;
    move.source = source.data();
    move.target = wanted.data();
    move.run_elems = 4000;
    move.from = from;
    move.to = to;
    move_on_host(move);

    std::vector<std::byte> found(wanted.size());
    MoveJob job = {};
    job.elems = 4000;
    job.cast = {static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(to)};
    // The last 1,000 elements of a run beyond 2^32, and the first 3,000 of the next, which stands right behind it.
    job.run_elems = kBig;
    job.first_elem = 2 * kBig - 1000;
    job.loop_count = 2;
    job.loops[0] = {3, 0, 0};
    job.loops[1] = {kBig, kBig * from_bytes, kBig * to_bytes};
    job.source = reinterpret_cast<std::uint64_t>(source.data()) - job.first_elem * from_bytes;
    job.target = reinterpret_cast<std::uint64_t>(found.data()) - job.first_elem * to_bytes;
    run_job(job);
    EXPECT_EQ(found, wanted) << name(to);

    // Without loops.
    std::fill(found.begin(), found.end(), std::byte{0});
    job.loop_count = 0;
    run_job(job);
    EXPECT_EQ(found, wanted) << name(to);
  }
}

TEST(MoveBody, DividersAreExact) {
  Random random(4);
  for (int i = 0; i < 200000; ++i) {
    const std::uint32_t divisor = static_cast<std::uint32_t>(random() >> (32 + random() % 32)) | 1U << random() % 31;
    const Divider by = make_divider(divisor);
    const auto number = static_cast<std::uint32_t>(random());
    const std::uint32_t multiple = number - number % divisor;
    for (const std::uint32_t n : {number, multiple, multiple - 1, 0xFFFFFFFFU}) ASSERT_EQ(divide(n, by), n / divisor);
  }
  EXPECT_EQ(divide(std::uint32_t{77}, make_divider(1)), 77U);
}

}  // namespace
}  // namespace lading::device::cuda
