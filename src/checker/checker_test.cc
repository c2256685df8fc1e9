// The checker on plans made by hand: what each rule refuses, and what a check costs. Random plans and changes
// to them are in check_mutation_test.cc.
#include "checker/checker.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "layout/region.h"
#include "mapping/expression.h"

namespace lading::checker {
namespace {

using layout::Cut;
using layout::CutKind;
using mapping::Expression;

// One read for all transfers, from the first byte that they take to the last.
void read_what_is_taken(const Plan& plan, RankPlan& r) {
  Read read{0, ~std::uint64_t{0}, 0, 1, 0, {}};
  std::uint64_t end = 0;
  const auto add = [&](const TransferRef& ref, const Transfer& t) {
    if (t.is_fill()) return;
    std::uint64_t last = t.source_begin_bytes + t.run_elems * bits(plan.sources[t.source].dtype) / 8;
    for (const ByteLoop& loop : t.loops) last += (loop.count - 1) * loop.source_stride_bytes;
    read.begin_bytes = std::min(read.begin_bytes, t.source_begin_bytes);
    end = std::max(end, last);
    read.transfers.push_back(ref);
  };
  for (const DestinationId d : r.destinations.ids()) {
    for (std::uint32_t t = 0; t < r.destinations[d].transfers.size(); ++t) {
      add({d, 0, t}, r.destinations[d].transfers[t]);
    }
  }
  r.reads.clear();
  if (!read.transfers.empty()) read.size_bytes = r.read_bytes = end - read.begin_bytes, r.reads = {read};
}

// One file, one source "key" at byte 100, one tensor "w" made of it, one rank, nothing moved yet.
struct OneTensor {
  Shape source = {4, 3};
  Shape shape = {4, 3};
  DType dtype = DType::kF32;
  DType storage = DType::kF32;
  Expression expression = Expression::source("key");
  std::vector<Cut> cuts = {};
  layout::Mesh mesh = {};
  std::uint64_t rank = 0;

  [[nodiscard]] Plan plan(std::uint64_t owned, std::uint64_t buffer_elems, std::vector<Transfer> transfers) const {
    Plan out;
    const std::uint64_t bytes = *source.size_bytes(dtype);
    out.files = {{"model.safetensors", 100 + bytes}};
    out.sources = {{"key", 0, {100, 100 + bytes}, dtype, source}};
    out.mesh = mesh;
    out.budget_bytes = 1000;
    Statement w;
    w.name = "w";
    w.shape = shape;
    w.expression = expression;
    w.checkpoint_dtype = dtype;
    w.storage = w.compute = storage;
    w.placement.slots.front().cuts = cuts;
    out.statements = {w};
    RankPlan r;
    r.rank = rank;
    Destination d;
    d.device = "cpu";
    d.buffer_bytes = *Shape({buffer_elems}).size_bytes(storage);
    d.owned_elems = owned;
    d.transfers = std::move(transfers);
    r.owned_bytes = d.buffer_bytes;
    r.destinations = {d};
    r.regions = {layout::region_of(shape, cuts, mesh, rank)};
    read_what_is_taken(out, r);
    out.ranks = {r};
    return out;
  }
};

// Positions in elements of four bytes, for tensors of F32.
Transfer run(std::uint64_t from, std::uint64_t to, std::uint64_t elems, std::vector<ByteLoop> loops = {}) {
  for (ByteLoop& loop : loops) {
    loop.source_stride_bytes *= 4;
    loop.target_stride_bytes *= 4;
  }
  return {0, 100 + from * 4, to * 4, elems, std::move(loops), 0};
}
Transfer zeros(std::uint64_t to, std::uint64_t elems) { return {SourceId::none(), 0, to * 4, elems, {}, 0}; }

Cut cut(CutKind kind, std::vector<std::size_t> axes, std::size_t dim = 0) {
  Cut c;
  c.kind = kind;
  c.axes = std::move(axes);
  c.dim = dim;
  return c;
}

std::string verdict(const Plan& plan) {
  const auto checked = check_plan(plan);
  if (checked) return "good";
  return checked.error().front().rule + ": " + checked.error().front().text();
}

void expect_refused(const Plan& plan, std::string_view rule, std::string_view words) {
  const auto checked = check_plan(plan);
  ASSERT_FALSE(checked.has_value()) << "accepted, though " << words;
  bool found = false;
  for (const Error& error : checked.error()) {
    EXPECT_EQ(error.code, Code::kPlanCheck);
    found = found || (error.rule == rule && error.message.find(words) != std::string::npos);
  }
  EXPECT_TRUE(found) << "wanted " << rule << " " << words << ", got " << verdict(plan);
}

const layout::Mesh kTwo({{"tp", 2}});
const layout::Mesh kFour({{"dp", 4}});

TEST(Checker, R1_whole_tensor_is_good_and_counted) {
  const Plan plan = OneTensor{}.plan(12, 12, {run(0, 0, 12)});
  const auto checked = check_plan(plan);
  ASSERT_TRUE(checked.has_value()) << verdict(plan);
  EXPECT_EQ(checked->bytes_proved, 48U);
  EXPECT_TRUE(checked->unread.empty());
}

TEST(Checker, R11_names_tensor_rank_and_bytes) {
  const Plan plan = OneTensor{.mesh = kTwo, .rank = 1}.plan(12, 12, {run(0, 0, 5), run(6, 6, 6)});
  const auto checked = check_plan(plan);
  ASSERT_FALSE(checked.has_value());
  const Error& error = checked.error().front();
  EXPECT_EQ(error.tensor, "w");
  EXPECT_EQ(error.rank, 1);
  EXPECT_EQ(error.rule, "R11");
  EXPECT_NE(error.found.find("20..24"), std::string::npos) << error.found;
}

TEST(Checker, R11_missing_double_and_foreign_bytes) {
  const OneTensor w;
  expect_refused(w.plan(12, 12, {}), "R11", "are not written");
  expect_refused(w.plan(12, 12, {run(0, 0, 11)}), "R11", "are not written");
  expect_refused(w.plan(12, 12, {run(0, 0, 6), run(5, 5, 7)}), "R11", "twice");
  expect_refused(w.plan(12, 12, {run(0, 0, 6, {{2, 3, 3}})}), "R11", "twice");
  expect_refused(w.plan(12, 12, {run(0, 0, 12), zeros(11, 1)}), "R11", "twice");
  expect_refused(w.plan(12, 12, {run(0, 0, 12), zeros(12, 1)}), "R11", "leaves the buffer");
  expect_refused(w.plan(12, 12, {run(0, 0, 12, {{2, 0, 0}})}), "R11", "again and again");
  expect_refused(w.plan(12, 12, {run(6, 6, 6), run(0, 0, 6)}), "R11", "sorted");
  expect_refused(w.plan(12, 12, {run(0, 0, 12), run(0, 11, 0)}), "R11", "nothing");
}

TEST(Checker, R41_shifted_swapped_and_misstrided_sources) {
  const OneTensor w;
  expect_refused(w.plan(12, 12, {run(0, 0, 4), run(3, 4, 8)}), "R41", "wrong place");
  expect_refused(w.plan(12, 12, {run(6, 0, 6), run(0, 6, 6)}), "R41", "wrong place");
  EXPECT_EQ(verdict(w.plan(12, 12, {run(0, 0, 3, {{4, 3, 3}})})), "good");
  expect_refused(w.plan(12, 12, {run(0, 0, 3, {{4, 2, 3}})}), "R41", "wrong place");
  expect_refused(w.plan(12, 12, {zeros(0, 12)}), "R41", "wrong place");
}

TEST(Checker, R41_global_shape_is_compared_before_anything_is_cut) {
  expect_refused(OneTensor{.source = {5, 3}}.plan(12, 12, {run(0, 0, 12)}), "R41", "another shape");
}

TEST(Checker, R45_transfers_and_reads_stay_inside) {
  Plan plan = OneTensor{}.plan(12, 12, {run(0, 0, 12)});
  plan.files[0].size_bytes -= 1;
  expect_refused(plan, "R45", "outside its file");
  expect_refused(plan, "R45", "beyond the end");
  expect_refused(OneTensor{}.plan(12, 12, {run(1, 0, 12)}), "R45", "outside its source");
  plan = OneTensor{}.plan(12, 12, {run(0, 0, 12)});
  plan.sources.push_back(plan.sources[0]);
  plan.sources[1].key = "other";
  expect_refused(plan, "R45", "shares bytes");
}

TEST(Checker, R41_transpose_in_any_order_of_loops) {
  const OneTensor w{.shape = {3, 4}, .expression = Expression::permute(Expression::source("key"), {1, 0})};
  EXPECT_EQ(verdict(w.plan(12, 12, {run(0, 0, 1, {{3, 1, 4}, {4, 3, 1}})})), "good");
  EXPECT_EQ(verdict(w.plan(12, 12, {run(0, 0, 1, {{4, 3, 1}, {3, 1, 4}})})), "good");
  expect_refused(w.plan(12, 12, {run(0, 0, 12)}), "R41", "wrong place");
  expect_refused(w.plan(12, 12, {run(0, 0, 1, {{3, 1, 4}, {4, 1, 1}})}), "R41", "wrong place");
}

TEST(Checker, R53_uneven_shard_is_torch_chunk) {
  // 5 rows over 4 ranks: 2, 2, 1, 0.
  OneTensor w{.source = {5, 3}, .shape = {5, 3}, .cuts = {cut(CutKind::kShard, {0})}, .mesh = kFour};
  w.rank = 2;
  EXPECT_EQ(verdict(w.plan(3, 3, {run(12, 0, 3)})), "good");
  w.rank = 3;
  EXPECT_EQ(verdict(w.plan(0, 0, {})), "good");
  w.rank = 1;
  expect_refused(w.plan(6, 6, {run(12, 0, 3), run(0, 3, 3)}), "R41", "wrong place");
}

TEST(Checker, R54_fsdp_over_tp_follows_storage_not_metadata) {
  // n = 25, dp = 4, tp = 2: rank (3, 0) holds row 12 and nothing else.
  OneTensor w{.source = {25}, .shape = {25}, .mesh = layout::Mesh({{"dp", 4}, {"tp", 2}}), .rank = 6};
  w.cuts = {cut(CutKind::kShard, {1}), cut(CutKind::kShard, {0})};
  EXPECT_EQ(verdict(w.plan(1, 1, {run(12, 0, 1)})), "good");
  w.rank = 7;
  EXPECT_EQ(verdict(w.plan(3, 3, {run(22, 0, 3)})), "good");
  // Read left to right, the same axes mean other rows.
  w.rank = 6;
  Cut strided = cut(CutKind::kStridedShard, {0});
  strided.split_factor = 2;
  w.cuts = {strided, cut(CutKind::kShard, {1})};
  EXPECT_NE(verdict(w.plan(1, 1, {run(12, 0, 1)})), "good");
}

TEST(Checker, R55_strided_shard_is_a_list_of_runs) {
  OneTensor w{.source = {8}, .shape = {8}, .cuts = {cut(CutKind::kStridedShard, {0})}, .mesh = kTwo};
  w.cuts[0].split_factor = 2;
  EXPECT_EQ(verdict(w.plan(4, 4, {run(0, 0, 2, {{2, 4, 2}})})), "good");
  expect_refused(w.plan(4, 4, {run(0, 0, 4)}), "R41", "wrong place");
}

TEST(Checker, R56_padding_is_zero_filled) {
  // 15 elements over 4 ranks: the last has 3, and one of padding.
  OneTensor w{.source = {5, 3}, .shape = {5, 3}, .cuts = {cut(CutKind::kFlat, {0})}, .mesh = kFour, .rank = 3};
  EXPECT_EQ(verdict(w.plan(3, 4, {run(12, 0, 3), zeros(3, 1)})), "good");
  expect_refused(w.plan(3, 4, {run(12, 0, 3)}), "R11", "are not written");
  Plan filled = w.plan(3, 4, {run(12, 0, 3), zeros(3, 1)});
  filled.ranks[0].destinations[0].transfers[1].fill = 1;
  expect_refused(filled, "R56", "wrong place");
  // ZeRO++'s second partition: 9 elements, world 4, groups of 2 hold 6 each, not 5.
  OneTensor h{.source = {9}, .shape = {9}, .cuts = {cut(CutKind::kFlat, {0})}, .mesh = kTwo, .rank = 1};
  h.cuts[0].pad_multiple = 4;
  EXPECT_EQ(verdict(h.plan(3, 6, {run(6, 0, 3), zeros(3, 3)})), "good");
}

TEST(Checker, R45_packed_elements_are_cut_at_bytes) {
  OneTensor w{.dtype = DType::kF4, .storage = DType::kF4};
  const auto nibbles = [](std::uint64_t from, std::uint64_t to, std::uint64_t elems) {
    return Transfer{0, 100 + from, to, elems, {}, 0};
  };
  EXPECT_EQ(verdict(w.plan(12, 12, {nibbles(0, 0, 12)})), "good");
  EXPECT_EQ(verdict(w.plan(12, 12, {nibbles(0, 0, 4), nibbles(2, 2, 8)})), "good");
  expect_refused(w.plan(12, 12, {nibbles(0, 0, 3), nibbles(2, 2, 8)}), "R11", "inside a byte");
  w.cuts = {cut(CutKind::kFlat, {0})};
  w.mesh = kFour;
  Plan cut_inside = OneTensor{.dtype = DType::kF4, .storage = DType::kF4, .cuts = w.cuts, .mesh = kFour}.plan(3, 4, {});
  expect_refused(cut_inside, "R64", "wrong size");
}

TEST(Checker, R23_casts) {
  const auto cast = [](DType from, DType to) {
    const OneTensor w{.dtype = from, .storage = to};
    return verdict(w.plan(12, 12, {{0, 100, 0, 12, {}, 0}})).substr(0, 3);
  };
  EXPECT_EQ(cast(DType::kBF16, DType::kF32), "goo");
  EXPECT_EQ(cast(DType::kF64, DType::kBF16), "goo");
  EXPECT_EQ(cast(DType::kF8E4M3, DType::kF8E4M3), "goo");
  EXPECT_EQ(cast(DType::kF8E4M3, DType::kBF16), "goo");
  EXPECT_EQ(cast(DType::kF32, DType::kF8E5M2), "goo");
  EXPECT_EQ(cast(DType::kF8E8M0, DType::kF32), "R23");
  EXPECT_EQ(cast(DType::kI32, DType::kI64), "goo");
  EXPECT_EQ(cast(DType::kU8, DType::kI16), "goo");
  EXPECT_EQ(cast(DType::kI8, DType::kU16), "R23");
  EXPECT_EQ(cast(DType::kU32, DType::kI32), "R23");
  EXPECT_EQ(cast(DType::kI64, DType::kF32), "R23");
  EXPECT_EQ(cast(DType::kBool, DType::kU8), "R23");
}

TEST(Checker, R34_R64_device_sizes_and_totals) {
  const auto changed = [](auto&& change) {
    Plan plan = OneTensor{}.plan(12, 12, {run(0, 0, 12)});
    change(plan, plan.ranks[0], plan.ranks[0].destinations[0]);
    return plan;
  };
  expect_refused(changed([](auto&, auto&, auto& d) { d.device = "cuda:0"; }), "R34", "wrong device");
  expect_refused(changed([](auto&, auto&, auto& d) { d.buffer_bytes = 52; }), "R64", "wrong size");
  expect_refused(changed([](auto&, auto& r, auto&) { r.owned_bytes = 0; }), "R64", "add up");
  expect_refused(changed([](auto&, auto& r, auto&) { r.read_bytes = 1; }), "R64", "add up");
  expect_refused(changed([](auto&, auto& r, auto&) { r.staging_bytes = 1001; }), "R64", "more memory");
  expect_refused(changed([](auto&, auto& r, auto&) { r.reads.clear(), r.read_bytes = 0; }), "R11", "are not read");
  expect_refused(changed([](auto&, auto& r, auto&) { r.rank = 1; }), "R53", "a rank that the mesh does not have");
  expect_refused(changed([](auto&, auto& r, auto&) { r.destinations.clear(); }), "R1", "no memory on this rank");
  expect_refused(changed([](auto&, auto& r, auto& d) { r.destinations.push_back(Destination(d)); }), "R49",
                 "two memories");
  expect_refused(changed([](auto& p, auto&, auto&) { p.ranks.push_back(RankPlan(p.ranks[0])); }), "R1", "a rank twice");
  expect_refused(changed([](auto& p, auto&, auto&) { p.statements.clear(); }), "R1", "does not state");
}

TEST(Checker, R49_R51_ties_share_memory_across_stages) {
  Plan plan = OneTensor{.mesh = layout::Mesh({{"pp", 2}})}.plan(12, 12, {run(0, 0, 12)});
  Statement head = plan.statements[0];
  head.name = "x";
  head.provenance = Provenance::kAlias;
  head.alias_of = "w";
  const auto owner = [](std::uint64_t stage) {
    Cut c = cut(CutKind::kOwner, {0});
    c.owners = {stage};
    return c;
  };
  plan.statements.push_back(head);
  plan.ranks[0].destinations[0].aliases = {1};
  EXPECT_EQ(verdict(plan), "good");
  plan.ranks[0].destinations[0].aliases = {};
  expect_refused(plan, "R49", "tie class");
  // The second stage has the head only, and loads it from the class's source.
  plan.statements[0].placement.slots[0].cuts = {owner(0)};
  plan.statements[1].placement.slots[0].cuts = {owner(1)};
  EXPECT_EQ(verdict(plan), "good");
  plan.ranks[0].rank = 1;
  expect_refused(plan, "R49", "tie class");
  plan.ranks[0].destinations[0].statement = 1;
  EXPECT_EQ(verdict(plan), "good");
  // Stages that never meet may place it differently; one that has both may not.
  plan.statements[1].placement.fsdp_group = "head";
  EXPECT_EQ(verdict(plan), "good");
  plan.statements[0].placement.slots[0].cuts[0].owners = {0, 1};
  expect_refused(plan, "R52", "placement");
}

// A registered name is a class's root before any plain attribute, whatever they are called.
TEST(Checker, R16_R49_the_root_is_the_first_registered_name) {
  Plan plan = OneTensor{}.plan(12, 12, {run(0, 0, 12)});
  Statement before = plan.statements[0];
  before.name = "a";
  before.kind = model::Kind::kAttribute;
  before.provenance = Provenance::kAlias;
  before.alias_of = "w";
  plan.statements.insert(plan.statements.begin(), before);
  Destination& memory = plan.ranks[0].destinations[0];
  memory.statement = memory.root = 1;
  memory.aliases = {0};
  EXPECT_EQ(verdict(plan), "good");
  plan.statements[0].kind = model::Kind::kNonPersistentBuffer;
  expect_refused(plan, "R16", "first registered name");
  plan.statements[1].kind = model::Kind::kAttribute;
  expect_refused(plan, "R16", "first registered name");
  plan.statements[0].kind = model::Kind::kAttribute;
  expect_refused(plan, "R16", "first registered name");
}

TEST(Checker, R11_members_of_a_flat_buffer_do_not_overlap) {
  // FSDP1: two tensors of 6 elements in a buffer of 16 that two ranks share; the first rank has 8.
  Plan plan = OneTensor{.source = {6}, .shape = {6}, .mesh = kTwo}.plan(6, 8, {run(0, 0, 6)});
  Cut c = cut(CutKind::kFlatGroup, {0});
  c.flat_parameter = "block";
  c.group_elems = 16;
  plan.statements[0].placement.slots[0].cuts = {c};
  plan.ranks[0].destinations[0].flat_parameter = "block";
  plan.ranks[0].regions = {layout::region_of(Shape({6}), {c}, kTwo, 0)};
  plan.statements.push_back(plan.statements[0]);
  plan.statements[1].name = "x";
  plan.ranks[0].destinations.push_back(plan.ranks[0].destinations[0]);
  Destination& second = plan.ranks[0].destinations[1];
  second.statement = second.root = 1;
  second.region = 1;
  // One buffer, counted once, in which the second tensor begins at 7 and goes on on the other rank.
  plan.ranks[0].regions.emplace_back();
  const auto move_second = [&](std::uint64_t offset) {
    plan.statements[1].placement.slots[0].cuts[0].group_offset_elems = offset;
    plan.ranks[0].regions[1] = layout::region_of(Shape({6}), plan.statements[1].placement.slots[0].cuts, kTwo, 0);
  };
  move_second(7);
  second.owned_elems = 1;
  second.transfers = {run(0, 7, 1)};
  read_what_is_taken(plan, plan.ranks[0]);
  EXPECT_EQ(verdict(plan).substr(0, 3), "R56") << "one element is nobody's, and the plan does not say so";
  plan.ranks[0].flat_parameter_gap_bytes = 4;
  EXPECT_EQ(verdict(plan), "good");
  move_second(5);
  second.owned_elems = 3;
  second.transfers = {run(0, 5, 3)};
  expect_refused(plan, "R11", "overlap in the flat buffer");
}

TEST(Checker, R66_calls_come_after_their_inputs) {
  Plan plan;
  for (const char* name : {"a", "b"}) {
    Statement s;
    s.name = name;
    s.provenance = Provenance::kCall;
    s.recipe.kind = model::RecipeKind::kCall;
    plan.statements.push_back(s);
  }
  plan.statements[0].recipe.inputs = {"b"};
  plan.call_order = {1, 0};
  EXPECT_EQ(verdict(plan), "good");
  plan.call_order = {0, 1};
  expect_refused(plan, "R66", "before one of its inputs");
  plan.call_order = {1};
  expect_refused(plan, "R66", "never computed");
}

TEST(Checker, R38_unread_bytes_are_reported) {
  OneTensor w{.cuts = {cut(CutKind::kShard, {0})}, .mesh = kTwo};
  Plan plan = w.plan(6, 6, {run(0, 0, 6)});
  const auto checked = check_plan(plan);
  ASSERT_TRUE(checked.has_value()) << verdict(plan);
  ASSERT_EQ(checked->unread.size(), 1U);
  EXPECT_EQ(checked->unread[0].key, "key");
  EXPECT_EQ(checked->unread[0].bytes, 24U);
}

TEST(Checker, hostile_numbers_are_refused_not_followed) {
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  expect_refused(OneTensor{}.plan(12, 12, {run(0, 0, 1, {{kHuge, 1, 1}})}), "R11", "leaves the buffer");
  Plan plan = OneTensor{}.plan(12, 12, {run(0, 0, 12)});
  plan.ranks[0].reads[0] = {0, 0, 1, kHuge, 1, {}};
  expect_refused(plan, "R45", "beyond the end");
  OneTensor w{.source = {8}, .shape = {8}, .cuts = {cut(CutKind::kStridedShard, {0})}, .mesh = kTwo};
  w.cuts[0].split_factor = kHuge;
  EXPECT_EQ(verdict(w.plan(8, 8, {run(0, 0, 8)})), "good");  // eight groups of one, each wholly the first rank's
}

}  // namespace
}  // namespace lading::checker
