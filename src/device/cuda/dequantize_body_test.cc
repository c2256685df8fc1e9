#include "device/cuda/dequantize_body.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "device/cuda/dequantize_lines.h"
#include "device/cuda/scale_dims.h"
#include "device/quantized/dequantize.h"
#include "device/quantized/quantized_for_tests.h"

namespace lading::device::cuda {
namespace {

constexpr std::byte kUnwritten{0x5A};

// What a block does: the plan in parts, then every thread.
void run_dequantize_job(const DequantizeJob& job) {
  DequantizePlan plan;
  std::fill_n(reinterpret_cast<std::byte*>(&plan), sizeof(plan), kUnwritten);
  for (std::uint32_t part = 0; part < kDequantizePlanParts; ++part) make_plan_part(job, part, plan);
  for (std::uint32_t code = 0; code < kPayloads; ++code) make_plan_payload(job, code, plan);
  for (std::uint32_t thread = 0; thread < kBlockThreads; ++thread) dequantize_body(job, plan, {thread, kBlockThreads});
}

DequantizeJob job_of(const Move& move) {
  const BlockScales& scales = *move.scaling->scales;
  DequantizeJob job = {};
  job.source = reinterpret_cast<std::uint64_t>(move.source);
  job.target = reinterpret_cast<std::uint64_t>(move.target);
  job.run_elems = move.run_elems;
  job.elems = move.run_elems * rounds_of(move.loops);
  job.cast = {static_cast<std::uint32_t>(move.from), static_cast<std::uint32_t>(move.to)};
  describe_scales(scales, move.to, job);
  job.first_code = move.scaling->first_code;
  job.loop_count = static_cast<std::uint32_t>(move.loops.size());
  for (std::size_t i = 0; i < move.loops.size(); ++i) {
    job.loops[i] = {move.loops[i].count, move.loops[i].source_stride_bytes, move.loops[i].target_stride_bytes,
                    move.scaling->strides_elems[i]};
  }
  place_dims(
      scale_dims(scales),
      {reinterpret_cast<std::uint64_t>(scales.values.data()), reinterpret_cast<std::uint64_t>(scales.zeros.data()),
       bits(scales.dtype) / 8, scales.first, move.scaling->first_elem,
       scales.groups.empty() ? 0 : reinterpret_cast<std::uint64_t>(scales.groups.data())},
      job);
  return job;
}

void dequantize_by_jobs(const Move& move, std::uint64_t job_elems) {
  DequantizeJob job = job_of(move);
  const auto loop = loop_of_lines(job);
  if (loop && job.loops[*loop].count % rounds_of_line(job) == 0) take_lines(*loop, job);
  const std::uint64_t total = job.elems;
  for (job.first_elem = 0; job.first_elem < total; job.first_elem += job_elems) {
    job.elems = std::min(job_elems, total - job.first_elem);
    run_dequantize_job(job);
  }
}

struct SideOffsets {
  std::size_t source = 0;
  std::size_t target = 0;
};

void expect_dequantized_as_on_host(const quantized::Made& made, std::uint64_t job_elems, const SideOffsets& offsets) {
  quantized::Bytes source(offsets.source + made.source.size());
  std::copy(made.source.begin(), made.source.end(), source.begin() + static_cast<std::ptrdiff_t>(offsets.source));
  quantized::Bytes wanted(offsets.target + made.target_bytes + 16, kUnwritten);
  quantized::Bytes found = wanted;
  dequantize_on_host(quantized::MadeMove(made, source.data() + offsets.source, wanted.data() + offsets.target).get());
  dequantize_by_jobs(quantized::MadeMove(made, source.data() + offsets.source, found.data() + offsets.target).get(),
                     job_elems);
  ASSERT_TRUE(found == wanted) << quantized::text(made) << ", jobs of " << job_elems << ", offsets " << offsets.source
                               << " and " << offsets.target;
}

// `From` is a dtype or a kind of codes.
template <class From>
void expect_all_dequantized_as_on_host(quantized::Random& random, From from) {
  for (const DType to : quantized::kResultTypes) {
    for (int i = 0; i < 150; ++i) {
      const quantized::Made made = quantized::Maker(random, from, to).make(20000, random() % (kMaxJobLoops + 1));
      if (made.loops.size() > kMaxJobLoops) continue;
      const SideOffsets offsets{quantized::one_of(random, {0, 0, 0, 1, 4, 8, 13}),
                                quantized::one_of(random, {0, 0, 0, 1, 2, 8, 12, 16})};
      ASSERT_NO_FATAL_FAILURE(
          expect_dequantized_as_on_host(made, quantized::one_of(random, {64, 1000, 1001, 1 << 20}), offsets));
    }
  }
}

TEST(DequantizeBody, AllPairsAsOnTheHost) {
  quantized::Random random(1);
  for (const DType from : quantized::kPayloadTypes) {
    ASSERT_NO_FATAL_FAILURE(expect_all_dequantized_as_on_host(random, from));
  }
}

TEST(DequantizeBody, AllCodesAsOnTheHost) {
  quantized::Random random(5);
  for (const CodeType code : quantized::kCodeTypes) {
    ASSERT_NO_FATAL_FAILURE(expect_all_dequantized_as_on_host(random, code));
  }
}

TEST(DequantizeBody, UnitsAreTakenWhereTheyFit) {
  quantized::Random random(2);
  quantized::Made made = quantized::make_whole(random, {256, 512}, {128, 128});
  // Addresses are those of no memory: nothing runs.
  const auto unit_of_job = [&](std::uint64_t source, std::uint64_t target) {
    return unit_elems_of(job_of(
        quantized::MadeMove(made, reinterpret_cast<const std::byte*>(source), reinterpret_cast<std::byte*>(target))
            .get()));
  };
  EXPECT_EQ(unit_of_job(4096, 8192), 8U);
  EXPECT_EQ(unit_of_job(4097, 8192), 8U);
  EXPECT_EQ(unit_of_job(4096, 8208), 8U);
  EXPECT_EQ(unit_of_job(4096, 8194), 1U);  // units in the target are none of the tensor
  made.first_elem = 1;
  made.run_elems = 1000;
  EXPECT_EQ(unit_of_job(4097, 8194), 8U);
  made.to = DType::kF32;
  EXPECT_EQ(unit_of_job(4097, 8196), 4U);
  made.to = DType::kF64;
  EXPECT_EQ(unit_of_job(4097, 8200), 1U);
  made.to = DType::kBF16;
  made.first_elem = 64;
  made.run_elems = 64;
  made.loops = {{200, 64, 128}};
  made.strides_elems = {512};
  EXPECT_EQ(unit_of_job(4099, 8192), 8U);
  made.strides_elems = {516};
  EXPECT_EQ(unit_of_job(4099, 8192), 1U);
  made.strides_elems = {512};
  made.scales.block = {128, 100};
  EXPECT_EQ(unit_of_job(4099, 8192), 1U);
  made.scales.block = {256, 512};
  EXPECT_EQ(unit_of_job(4099, 8192), 8U);
}

TEST(DequantizeBody, UnitsOfCodes) {
  quantized::Random random(6);
  quantized::Made made = quantized::make_whole(random, {256, 512}, {128, 32}, CodeType::kF4);
  const auto unit_of_job = [&](std::uint64_t source, std::uint64_t target) {
    return unit_elems_of(job_of(
        quantized::MadeMove(made, reinterpret_cast<const std::byte*>(source), reinterpret_cast<std::byte*>(target))
            .get()));
  };
  EXPECT_EQ(unit_of_job(4097, 8192), 8U);
  made.first_code = 1;
  EXPECT_EQ(unit_of_job(4096, 8192), 8U);
  made.scales.tensor_scale = 3;
  EXPECT_EQ(unit_of_job(4096, 8192), 8U);
  made.scales.tensor_scale_is = TensorScale::kDivisor;
  EXPECT_EQ(unit_of_job(4096, 8192), 8U);
  made.scales.zero = 1;
  EXPECT_EQ(unit_of_job(4096, 8192), 1U);  // each product is divided
  made.scales.tensor_scale_is = TensorScale::kFactor;
  EXPECT_EQ(unit_of_job(4096, 8192), 8U);
  made.scales.zero = 8;
  EXPECT_EQ(unit_of_job(4096, 8192), 1U);  // products have more bits than F64
}

// As the loads of common checkpoints are.
TEST(DequantizeBody, CodesOfWeightsAsOnTheHost) {
  quantized::Random random(7);
  struct Weights {
    CodeType code;
    DType scales;
    Shape shape;
    Shape block;
    double tensor_scale = 1;
  };
  const Weights weights[] = {
      {CodeType::kF4, DType::kF8E8M0, {300, 16, 16, 2}, {1, 1, 16, 2}},
      {CodeType::kF4, DType::kF8E4M3, {300, 256, 2}, {1, 8, 2}, 1.0 / 3 * 0x1p-2},
      {CodeType::kU4, DType::kBF16, {300, 64, 8}, {1, 16, 8}},
      {CodeType::kU4, DType::kF16, {64, 300, 8}, {16, 1, 8}},
      {CodeType::kU4, DType::kF16, {300, 64, 8}, {100, 1, 1}},
      {CodeType::kU8, DType::kF32, {300, 128, 4}, {1, 128, 4}},
      {CodeType::kU2, DType::kBF16, {300, 128, 4}, {1, 16, 4}},
  };
  for (const Weights& one : weights) {
    quantized::Made made = quantized::make_whole(random, one.shape, one.block, one.code);
    made.scales.dtype = one.scales;
    made.scales.tensor_scale = double{static_cast<float>(one.tensor_scale)};
    made.scales.tensor_scale_is = TensorScale::kDivisor;
    quantized::make_scales(random, quantized::block_count(one.shape, one.block), made.scales);
    ASSERT_NO_FATAL_FAILURE(expect_dequantized_as_on_host(made, 1 << 16, {0, 0}));
    ASSERT_NO_FATAL_FAILURE(expect_dequantized_as_on_host(made, 1 << 12, {3, 32}));
    // Without the first codes: the target is aligned where the tensor's units are, but codes are not where bytes are.
    made.first_elem = 5;
    made.first_code = static_cast<std::uint8_t>(8 / made.element_bits() - 1);
    made.run_elems -= 13;
    ASSERT_NO_FATAL_FAILURE(expect_dequantized_as_on_host(made, 1 << 16, {5, 10}));
  }
}

// A transpose of codes, at all places of a byte: some loops can be taken in lines, some end within a block.
TEST(DequantizeBody, LinesOfTransposesAsOnTheHost) {
  quantized::Random random(9);
  int lines = 0;
  for (int i = 0; i < 400; ++i) {
    const CodeType code = quantized::kCodeTypes[random() % quantized::kCodeTypes.size()];
    const std::uint64_t rows = 8 * (1 + random() % 12);
    const std::uint64_t columns = quantized::one_of(random, {64, 96, 160, 256});
    const std::uint64_t planes = 1 + random() % 3;
    const Shape block = {quantized::one_of(random, {1, 1, planes}), quantized::one_of(random, {1, 1, 8, 12, 16, 128}),
                         quantized::one_of(random, {1, 8, 12, 32, 64, 128, columns})};
    quantized::Made made = quantized::make_whole(random, {planes, rows, columns}, block, code);
    made.to = quantized::kResultTypes[random() % quantized::kResultTypes.size()];
    const std::uint64_t in_byte = 8 / made.element_bits();
    const std::uint64_t width = bits(made.to) / 8;
    made.first_code = static_cast<std::uint8_t>(random() % in_byte);
    made.first_elem = made.first_code + in_byte * quantized::one_of(random, {0, 0, 0, 1, 8});
    made.run_elems = 1;
    const std::uint64_t across = (columns - made.first_elem) / in_byte / 8 * 8;
    made.loops = {{planes, rows * columns / in_byte, rows * columns * width},
                  {across, 1, rows * in_byte * width},
                  {rows, columns / in_byte, width}};
    made.strides_elems = {rows * columns, in_byte, columns};
    made.target_bytes = planes * rows * columns * width;
    const std::size_t swapped = random() % 3;
    std::swap(made.loops[2], made.loops[swapped]);
    std::swap(made.strides_elems[2], made.strides_elems[swapped]);
    if (loop_of_lines(job_of(quantized::MadeMove(made, nullptr, nullptr).get()))) ++lines;
    ASSERT_NO_FATAL_FAILURE(expect_dequantized_as_on_host(made, quantized::one_of(random, {64, 1000, 1 << 20}),
                                                          {random() % 9, quantized::one_of(random, {0, 2, 16})}));
  }
  EXPECT_GT(lines, 150);
  EXPECT_LT(lines, 350);
}

// Where a processor's division would be exact, what is multiplied in its place is it too.
TEST(DequantizeBody, QuotientsAreRoundedOnce) {
  quantized::Random random(8);
  for (int i = 0; i < 200000; ++i) {
    const double by = quantized::make_tensor_scale(random);
    const double number = quantized::make_scale(random) * static_cast<double>(random() % 131072);
    const double found = quotient(number, by, 1 / by);
    ASSERT_EQ(__builtin_bit_cast(std::uint64_t, found), __builtin_bit_cast(std::uint64_t, number / by))
        << number << " / " << by;
  }
}

TEST(DequantizeBody, WeightsAsOnTheHost) {
  quantized::Random random(3);
  for (const auto& block : {Shape{128, 128}, Shape{1, 520}, Shape{1, 104}, Shape{300, 520}, Shape{300, 1}}) {
    quantized::Made made = quantized::make_whole(random, {300, 520}, block);
    ASSERT_NO_FATAL_FAILURE(expect_dequantized_as_on_host(made, 1 << 16, {0, 0}));
    ASSERT_NO_FATAL_FAILURE(expect_dequantized_as_on_host(made, 1 << 12, {3, 32}));
    // From the middle of a row on, so that the target is aligned where the tensor's units are.
    made.first_elem = 13;
    made.run_elems -= 13;
    ASSERT_NO_FATAL_FAILURE(expect_dequantized_as_on_host(made, 1 << 16, {5, 26}));
  }
}

// Numbers beyond 32 bits: rows that stand far from each other, of which the buffer has a little.
TEST(DequantizeBody, LargeNumbersAsOnTheHost) {
  quantized::Random random(4);
  constexpr std::uint64_t kRow = (std::uint64_t{1} << 33) + 24;
  for (const std::uint64_t block : {std::uint64_t{1} << 31, (std::uint64_t{1} << 32) + 1, kRow}) {
    for (const DType to : {DType::kBF16, DType::kF32}) {
      quantized::Made made;
      made.to = to;
      made.scales.shape = {3, kRow};
      made.scales.block = {1, block};
      quantized::make_scales(random, 3 * ((kRow + block - 1) / block), made.scales);
      made.first_elem = block - 40;
      made.run_elems = 80;
      made.loops = {{2, 100, 400}};
      made.strides_elems = {kRow};
      made.source.resize(180);
      for (std::byte& byte : made.source) byte = static_cast<std::byte>(random());
      made.target_bytes = 400 + 80 * 4;
      EXPECT_FALSE(is_small(job_of(quantized::MadeMove(made, nullptr, nullptr).get())));
      ASSERT_NO_FATAL_FAILURE(expect_dequantized_as_on_host(made, 1 << 20, {0, 0}));
      ASSERT_NO_FATAL_FAILURE(expect_dequantized_as_on_host(made, 64, {0, 0}));
    }
  }
}

}  // namespace
}  // namespace lading::device::cuda
