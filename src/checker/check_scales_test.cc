// Scales of quantized sources, on plans made by hand. Plans of the planner with planted mistakes:
// src/planner/tests/dequantize_checked_test.cc; random ones: check_mutation_test.cc.
#include "checker/check_scales.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checker/cast_rules.h"
#include "checker/check_decoding.h"
#include "checker/check_reads.h"

namespace lading::checker {
namespace {

// A payload at byte 100 of a file, its scales at byte 1000 of another one, and nothing else.
Plan scaled_plan(const Shape& shape, const Shape& block, const Shape& scales, DType dtype = DType::kF32) {
  Plan plan;
  plan.files = {{"a.safetensors", 100'000}, {"b.safetensors", 100'000}};
  plan.sources = {{"p", 0, {100, 100 + *shape.num_elems()}, DType::kF8E4M3, shape, plan::Scaling{1, block, {}}},
                  {"s", 1, {1000, 1000 + *scales.size_bytes(dtype)}, dtype, scales, {}}};
  return plan;
}

std::string scaling_verdict(const Plan& plan) {
  const auto problem = find_scaling_problem(plan, plan.sources[SourceId(0)]);
  return problem ? problem->rule + " " + problem->message : "good";
}

// What the checker says of a rank that takes these elements, and reads these of its scales.
std::string reads_verdict(const Plan& plan, std::vector<Transfer> transfers, const std::vector<ByteRange>& reads) {
  RankPlan rank;
  Destination destination;
  destination.transfers = std::move(transfers);
  rank.destinations = {destination};
  for (const ByteRange& bytes : reads) rank.scale_reads.push_back({0, bytes});
  const Errors errors = check_scale_reads(plan, rank);
  std::string text;
  for (const Error& error : errors) {
    EXPECT_EQ(error.rule, "R48");
    text += fmt::format("{}{}", error.expected, error.expected.empty() ? error.message : "");
  }
  return text.empty() ? "good" : text;
}

Transfer elements(std::uint64_t first, std::uint64_t count, std::vector<ByteLoop> loops = {}) {
  return {0, 100 + first, 0, count, std::move(loops), 0};
}

TEST(CheckScales, R48_ThereIsOneForEachBlock) {
  EXPECT_EQ(scaling_verdict(scaled_plan({5, 7}, {4, 3}, {2, 3})), "good");
  EXPECT_EQ(scaling_verdict(scaled_plan({5, 7}, {4, 3}, {1, 2, 3, 1})), "good");
  EXPECT_EQ(scaling_verdict(scaled_plan({5, 7}, {5, 7}, {})), "good");
  EXPECT_EQ(scaling_verdict(scaled_plan({5, 7}, {1ULL << 62, 1}, {7})), "good");
  EXPECT_EQ(scaling_verdict(scaled_plan({}, {}, {})), "good");
  EXPECT_EQ(scaling_verdict(scaled_plan({0, 7}, {4, 3}, {0, 3})), "good");
  const std::string uneven = "R48 the scales of \"p\" are not one for each block";
  EXPECT_EQ(scaling_verdict(scaled_plan({5, 7}, {4, 3}, {3, 2})), uneven);
  EXPECT_EQ(scaling_verdict(scaled_plan({5, 7}, {4, 3}, {6})), uneven);
  EXPECT_EQ(scaling_verdict(scaled_plan({5, 7}, {4, 3}, {1, 2})), uneven);
  EXPECT_EQ(scaling_verdict(scaled_plan({5, 7}, {4, 3}, {2, 3, 2})), uneven);
  EXPECT_EQ(scaling_verdict(scaled_plan({5, 7}, {4, 3}, {})), uneven);
  EXPECT_EQ(scaling_verdict(scaled_plan({0, 7}, {4, 3}, {1, 3})), uneven);
  EXPECT_EQ(scaling_verdict(scaled_plan({5, 7}, {4}, {2})),
            "R48 the scales of \"p\" have blocks with another number of dims");
  EXPECT_EQ(scaling_verdict(scaled_plan({5, 7}, {4, 0}, {2})), "R48 the scales of \"p\" have empty blocks");
}

TEST(CheckScales, R48_TheyAreOfTheCheckpointAndNotScaledThemselves) {
  Plan plan = scaled_plan({5, 7}, {4, 3}, {2, 3});
  plan.files[FileId(1)].checkpoint = 1;
  EXPECT_EQ(scaling_verdict(plan), "R48 the scales of \"p\" belong to another checkpoint");
  plan = scaled_plan({5, 7}, {4, 3}, {2, 3});
  plan.sources[SourceId(1)].scaling = plan::Scaling{0, {1, 1}, {}};
  EXPECT_EQ(scaling_verdict(plan), "R48 the scales of \"p\" have scales themselves");
  plan.sources.pop_back();
  EXPECT_EQ(scaling_verdict(plan), "R48 the scales of \"p\" are not in the plan");
  plan = scaled_plan({5, 7}, {4, 3}, {2, 3});
  plan.sources[SourceId(0)].scaling->product = DType::kI32;
  EXPECT_EQ(scaling_verdict(plan), "R48 the scales of \"p\" have products whose dtype is not a float");
}

TEST(CheckScales, R48_ARankReadsTheRowsOfBlocksThatItTakes) {
  const Plan plan = scaled_plan({9, 7}, {4, 3}, {3, 3});  // 12 bytes a row of scales
  const auto verdict = [&](std::vector<Transfer> transfers, std::uint64_t begin, std::uint64_t end) {
    return reads_verdict(plan, std::move(transfers), {{1000 + begin, 1000 + end}});
  };
  EXPECT_EQ(verdict({elements(0, 63)}, 0, 36), "good");
  EXPECT_EQ(verdict({elements(27, 1)}, 0, 12), "good") << "the last of row 3";
  EXPECT_EQ(verdict({elements(28, 1)}, 12, 24), "good") << "the first of row 4";
  EXPECT_EQ(verdict({elements(27, 2)}, 0, 24), "good");
  EXPECT_EQ(verdict({elements(62, 1)}, 24, 36), "good");
  EXPECT_EQ(verdict({elements(0, 1), elements(62, 1)}, 0, 36), "good") << "what is between is read too";
  EXPECT_EQ(verdict({elements(0, 1, {{5, 7, 1}})}, 0, 24), "good") << "a column of five rows";
  EXPECT_EQ(verdict({elements(0, 1, {{4, 7, 1}})}, 0, 12), "good");
  EXPECT_EQ(verdict({elements(1, 2, {{2, 28, 1}, {2, 3, 1}})}, 0, 24), "good");
  EXPECT_EQ(verdict({elements(27, 2)}, 0, 12), "bytes 1000 to 1024");
  EXPECT_EQ(verdict({elements(27, 1)}, 0, 24), "bytes 1000 to 1012");
  EXPECT_EQ(verdict({elements(28, 1)}, 0, 12), "bytes 1012 to 1024");
  EXPECT_EQ(verdict({elements(28, 1)}, 13, 24), "bytes 1012 to 1024");
  EXPECT_EQ(reads_verdict(plan, {elements(0, 1)}, {}), "the rank takes elements of \"p\" but reads no scales for them");
  const std::string twice = "the rank reads the scales of a source that it takes nothing of, or reads them twice";
  EXPECT_EQ(reads_verdict(plan, {elements(0, 1)}, {{1000, 1012}, {1000, 1012}}), twice);
  EXPECT_EQ(reads_verdict(plan, {elements(0, 0)}, {{1000, 1012}}), twice);
  EXPECT_EQ(reads_verdict(plan, {}, {{1000, 1012}}), twice);
  EXPECT_EQ(reads_verdict(plan, {}, {}), "good");
}

TEST(CheckScales, R48_OfTensorsOfAnyRank) {
  const Plan stacked = scaled_plan({3, 9, 8}, {1, 4, 3}, {3, 3, 3}, DType::kBF16);
  EXPECT_EQ(reads_verdict(stacked, {elements(72, 72)}, {{1018, 1036}}), "good") << "the second of three";
  EXPECT_EQ(reads_verdict(stacked, {elements(143, 2)}, {{1018, 1054}}), "good");
  const Plan pairs = scaled_plan({3, 9, 8}, {2, 9, 8}, {2}, DType::kF8E8M0);
  EXPECT_EQ(reads_verdict(pairs, {elements(72, 72)}, {{1000, 1001}}), "good");
  EXPECT_EQ(reads_verdict(pairs, {elements(144, 1)}, {{1001, 1002}}), "good");
  const Plan number = scaled_plan({}, {}, {});
  EXPECT_EQ(reads_verdict(number, {elements(0, 1)}, {{1000, 1004}}), "good");
  const Plan vector = scaled_plan({10}, {1ULL << 62}, {1});
  EXPECT_EQ(reads_verdict(vector, {elements(9, 1)}, {{1000, 1004}}), "good");
}

TEST(CheckScales, R48_ComparisonsNeedScalesToo) {
  const Plan plan = scaled_plan({9, 7}, {4, 3}, {3, 3});
  RankPlan rank;
  Destination destination;
  destination.transfers = {elements(0, 1)};
  destination.comparisons = {{elements(62, 1)}};
  rank.destinations = {destination};
  rank.scale_reads = {{0, {1000, 1012}}};
  EXPECT_FALSE(check_scale_reads(plan, rank).empty());
  rank.scale_reads = {{0, {1000, 1036}}};
  EXPECT_TRUE(check_scale_reads(plan, rank).empty());
}

// Codes of U4, `together` to an element of the key, at byte 100 of a file, their scales at byte 1000 of another one,
// zero points at byte 2000.
struct PackedSources {
  std::uint64_t together = 2;
  Shape shape;
  Shape block;
  Shape scales;
  Shape zeros;
  std::size_t zeros_dim = 0;
};

Plan packed_plan(const PackedSources& of) {
  const DType dtype = of.together == 2 ? DType::kU8 : DType::kI32;
  Plan plan = scaled_plan(of.shape, of.block, of.scales, DType::kBF16);
  Source& source = plan.sources[SourceId(0)];
  source.dtype = dtype;
  source.bytes.end = 100 + *of.shape.num_elems() / 2;
  source.scaling->decoding.code = CodeType::kU4;
  source.scaling->decoding.per_element = of.together;
  source.scaling->decoding.zeros_dim = of.zeros_dim;
  source.scaling->zeros = SourceId(2);
  plan.sources.push_back({"z", 1, {2000, 2000 + *of.zeros.size_bytes(dtype)}, dtype, of.zeros});
  EXPECT_EQ(scaling_verdict(plan), "good");
  return plan;
}

// Code `first` and following, in a plan of U4.
Transfer codes(std::uint64_t first, std::uint64_t count, std::vector<ByteLoop> loops = {}) {
  Transfer transfer = elements(first / 2, count, std::move(loops));
  transfer.first_code = first % 2;
  return transfer;
}

std::string packed_verdict(const Plan& plan, std::vector<Transfer> transfers, ByteRange scales, ByteRange zeros) {
  RankPlan rank;
  Destination destination;
  destination.transfers = std::move(transfers);
  rank.destinations = {destination};
  rank.scale_reads = {{0, {1000 + scales.begin, 1000 + scales.end}, {2000 + zeros.begin, 2000 + zeros.end}}};
  std::string text;
  const Errors errors = check_scale_reads(plan, rank);
  for (const Error& error : errors) text += fmt::format("{} {}; ", error.message, error.expected);
  return text.empty() ? "good" : text;
}

TEST(CheckScales, R48_RowsAreCountedInCodes) {
  // Rows of 6 codes are 3 bytes; rows of blocks have 4 rows and 3 scales, or zero points, of which 2 share a byte.
  const Plan plan = packed_plan({2, {9, 3, 2}, {4, 1, 2}, {3, 3}, {3, 2}, 1});
  EXPECT_EQ(packed_verdict(plan, {codes(0, 54)}, {0, 18}, {0, 6}), "good");
  EXPECT_EQ(packed_verdict(plan, {codes(23, 1)}, {0, 6}, {0, 2}), "good") << "the last of row 3";
  EXPECT_EQ(packed_verdict(plan, {codes(24, 1)}, {6, 12}, {2, 4}), "good") << "the first of row 4";
  EXPECT_EQ(packed_verdict(plan, {codes(23, 2)}, {0, 12}, {0, 4}), "good") << "half of two bytes";
  EXPECT_EQ(packed_verdict(plan, {codes(23, 1, {{2, 3, 2}})}, {0, 12}, {0, 4}), "good");
  EXPECT_EQ(packed_verdict(plan, {codes(53, 1)}, {12, 18}, {4, 6}), "good");
  EXPECT_EQ(packed_verdict(plan, {codes(24, 1)}, {6, 12}, {2, 3}),
            "the rank does not read the zero points of \"p\" that it needs bytes 2002 to 2004; ");
  EXPECT_EQ(packed_verdict(plan, {codes(24, 1)}, {6, 12}, {0, 4}),
            "the rank does not read the zero points of \"p\" that it needs bytes 2002 to 2004; ");
  EXPECT_EQ(packed_verdict(plan, {codes(23, 1)}, {6, 12}, {2, 4}),
            "the rank does not read the scales of \"p\" that it needs bytes 1000 to 1006; "
            "the rank does not read the zero points of \"p\" that it needs bytes 2000 to 2002; ");
}

TEST(CheckScales, R48_ZeroPointsPackedAlongRows) {
  // 20 rows of 2 groups of 8; an element of 4 bytes has the zero points of 8 rows.
  const Plan plan = packed_plan({8, {20, 2, 8}, {1, 1, 8}, {20, 2}, {3, 2}, 0});
  const auto rows = [&](std::uint64_t first, std::uint64_t end, ByteRange zeros) {
    return packed_verdict(plan, {codes(first * 16, (end - first) * 16)}, {first * 4, end * 4}, zeros);
  };
  EXPECT_EQ(rows(0, 20, {0, 24}), "good");
  EXPECT_EQ(rows(0, 8, {0, 8}), "good");
  EXPECT_EQ(rows(0, 9, {0, 16}), "good");
  EXPECT_EQ(rows(7, 9, {0, 16}), "good");
  EXPECT_EQ(rows(8, 16, {8, 16}), "good");
  EXPECT_EQ(rows(19, 20, {16, 24}), "good") << "in an element that is not full";
  EXPECT_NE(rows(8, 17, {8, 16}), "good");
  EXPECT_NE(rows(8, 16, {0, 16}), "good");
}

TEST(CheckScales, R48_ZeroPointsWhereDimsWereMerged) {
  const Plan awq = packed_plan({8, {8, 3, 8}, {4, 1, 1}, {2, 24}, {2, 3}, 1});
  EXPECT_EQ(packed_verdict(awq, {codes(95, 1)}, {0, 48}, {0, 12}), "good");
  EXPECT_EQ(packed_verdict(awq, {codes(96, 1)}, {48, 96}, {12, 24}), "good");
  // The first dim of the grid is but a part of the scales': three rows of blocks of 4 scales, 8 to an element.
  const Plan merged = packed_plan({8, {3, 4, 8}, {1, 1, 8}, {12}, {2}, 0});
  EXPECT_EQ(packed_verdict(merged, {codes(0, 32)}, {0, 8}, {0, 4}), "good");
  EXPECT_EQ(packed_verdict(merged, {codes(32, 32)}, {8, 16}, {0, 4}), "good");
  EXPECT_EQ(packed_verdict(merged, {codes(64, 1)}, {16, 24}, {4, 8}), "good");
  // One row of blocks, whose scales lack that dim: all of them are read.
  const Plan row = packed_plan({8, {4, 12, 8}, {4, 1, 8}, {12}, {2}, 0});
  EXPECT_EQ(packed_verdict(row, {codes(0, 1)}, {0, 24}, {0, 8}), "good");
}

TEST(CheckScales, R48_R64_WhatIsReadAndHeldInMemory) {
  Plan plan = packed_plan({8, {20, 2, 8}, {1, 1, 8}, {20, 2}, {3, 2}, 0});
  plan.sources.push_back({"t", 1, {3000, 3004}, DType::kF32, {}});
  plan.sources[SourceId(0)].scaling->tensor_scale = SourceId(3);
  RankPlan rank;
  rank.scale_reads = {{0, {1000, 1036}, {2000, 2016}}};
  rank.staging_bytes = 36 + 16 * 2;
  EXPECT_TRUE(check_scale_memory(plan, rank).empty());
  --rank.staging_bytes;
  EXPECT_FALSE(check_scale_memory(plan, rank).empty());
  rank.read_bytes = 36 + 16 + 4;
  const auto read = bytes_read(plan, rank);
  ASSERT_TRUE(read.has_value());
  for (const std::uint64_t bytes : {36U + 16U, 36U + 4U, 16U + 4U}) {
    rank.read_bytes = bytes;
    EXPECT_FALSE(bytes_read(plan, rank).has_value());
  }
  rank.scale_reads = {{0, {1000, 1036}, {2000, 2028}}};
  rank.read_bytes = 36 + 28 + 4;
  EXPECT_FALSE(bytes_read(plan, rank).has_value()) << "beyond the zero points";
  rank.scale_reads = {{0, {1000, 1036}, {}}};
  rank.read_bytes = 36 + 4;
  EXPECT_FALSE(bytes_read(plan, rank).has_value()) << "none of them";
}

TEST(CheckScales, R23_WhatIsMultipliedAndRounded) {
  for (const DType one : all_dtypes()) {
    const std::string from(name(one));
    EXPECT_EQ(is_eight_bit_float(one),
              from == "F8_E4M3" || from == "F8_E5M2" || from == "F8_E4M3FNUZ" || from == "F8_E5M2FNUZ");
    const bool is_scale = from == "F32" || from == "BF16" || from == "F16" || from == "F8_E8M0" || from == "F8_E4M3";
    for (const DType to : all_dtypes()) {
      const std::string result(name(to));
      const bool is_wide = result == "BF16" || result == "F16" || result == "F32" || result == "F64";
      EXPECT_EQ(scaling_is_sound(one, to), is_scale && is_wide) << from << " to " << result;
    }
  }
}

}  // namespace
}  // namespace lading::checker
