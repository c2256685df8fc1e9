// What a plan says that it reads is what a load reads, whatever the strategy.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "lading/load.h"
#include "layout/region.h"
#include "support/by_strategy.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

struct Case {
  std::string mesh;
  std::string strategy;
  std::vector<layout::TpRule> tp_plan;
};

// Many small tensors, wide ones with columns far apart and near each other, and one larger than a staging slot.
std::string checkpoint() {
  std::string header = "{";
  std::uint64_t begin = 0;
  const auto add = [&](const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    const std::uint64_t end = begin + rows * columns * 4;
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[{},{}],"data_offsets":[{},{}]}})",
                          header.size() > 1 ? "," : "", name, rows, columns, begin, end);
    begin = end;
  };
  for (int i = 0; i < 40; ++i) add(fmt::format("layers.{:02}.small", i), 3, 5);
  add("wide.far", 64, 16'384);
  add("wide.near", 700, 1'000);
  add("wide.odd", 333, 77);
  add("tall", 5'001, 64);
  std::string data(begin, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 131 >> 3);
  return test::safetensors_bytes(header + "}", data);
}

TEST(ReadBytes, R64_PlanAndLoadReportTheSameBytesOverAllStrategies) {
  test::TempDir dir;
  dir.write("model.safetensors", checkpoint());
  using layout::TpStyle;
  const std::vector<layout::TpRule> cut = {{"wide.*", TpStyle::kColwise}, {"tall", TpStyle::kRowwise}};
  const std::vector<layout::TpRule> other = {{"wide.*", TpStyle::kRowwise}, {"tall", TpStyle::kColwise}};
  const std::vector<Case> cases = {
      {"", "single", {}},
      {"dp=3", "ddp", {}},
      {"dp=4", "fsdp2", {}},
      {"replicate=2,shard=2", "hsdp", {}},
      {"dp=3", "zero3", {}},
      {"tp=4", "tp", cut},
      {"tp=4", "tp", other},
      {"tp=3", "tp", other},
      {"dp=2,tp=2", "fsdp2+tp", cut},
      {"dp=2,tp=2", "fsdp2+tp", other},
  };
  for (const Case& one : cases) {
    LoadRequest request;
    request.plan.checkpoint.path = dir.path("");
    layout::ByStrategy wanted = test::by_strategy(one.strategy, one.mesh);
    wanted.tp_plan = one.tp_plan;
    request.plan.layout = wanted;
    request.plan.ranks.reset();
    const auto report = materialize(request);
    ASSERT_TRUE(report) << one.strategy << ": " << report.error().problems.front().text();
    std::uint64_t planned = 0;
    for (const RankTotals& rank : report->plan.ranks) planned += rank.read_bytes;
    EXPECT_EQ(report->read_bytes, planned) << one.strategy << " over " << one.mesh;
    EXPECT_GT(planned, 0U);
  }
}

// Planning, loading and the ledger together ask once per shape, placement and rank.
TEST(ReadBytes, R53_ARegionIsWorkedOutOnce) {
  test::TempDir dir;
  dir.write("model.safetensors", checkpoint());
  LoadRequest request;
  request.plan.checkpoint.path = dir.path("");
  request.plan.layout = test::by_strategy("fsdp2", "dp=4");
  request.plan.ranks.reset();
  const std::uint64_t before = layout::regions_worked_out();
  const auto report = materialize(request);
  ASSERT_TRUE(report);
  EXPECT_FALSE(ledger_json(*report).empty());
  constexpr std::uint64_t kShapes = 5;
  EXPECT_EQ(layout::regions_worked_out() - before, kShapes * 4) << "of 44 tensors on 4 ranks";
}

}  // namespace
}  // namespace lading
