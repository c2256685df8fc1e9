#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layout/layout.h"

namespace lading::layout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Mesh, RanksAreRowMajor) {
  const Mesh mesh({{"dp", 4}, {"tp", 2}});
  EXPECT_EQ(mesh.ranks(), 8U);
  EXPECT_THAT(mesh.coordinate(0), ElementsAre(0, 0));
  EXPECT_THAT(mesh.coordinate(1), ElementsAre(0, 1));
  EXPECT_THAT(mesh.coordinate(6), ElementsAre(3, 0));
  EXPECT_THAT(mesh.coordinate(7), ElementsAre(3, 1));
}

TEST(Mesh, WithoutAxesThereIsOneRank) {
  EXPECT_EQ(Mesh().ranks(), 1U);
  EXPECT_TRUE(Mesh().coordinate(0).empty());
  EXPECT_TRUE(check_mesh(Mesh()).empty());
  EXPECT_EQ(Mesh().seat({}, 0), (Seat{0, 1}));
}

TEST(Mesh, SeatsFlattenAxesInTheOrderGiven) {
  const Mesh mesh({{"a", 2}, {"b", 3}, {"c", 5}});
  const std::uint64_t rank = (1 * 3 + 2) * 5 + 4;  // (1, 2, 4)
  EXPECT_EQ(mesh.seat({0}, rank), (Seat{1, 2}));
  EXPECT_EQ(mesh.seat({1}, rank), (Seat{2, 3}));
  EXPECT_EQ(mesh.seat({2}, rank), (Seat{4, 5}));
  EXPECT_EQ(mesh.seat({0, 2}, rank), (Seat{1 * 5 + 4, 10}));
  EXPECT_EQ(mesh.seat({2, 0}, rank), (Seat{4 * 2 + 1, 10}));
  EXPECT_EQ(mesh.seat({0, 1, 2}, rank), (Seat{rank, 30}));
  EXPECT_EQ(mesh.group_size({0, 2}), 10U);
}

TEST(Mesh, LargestMeshWorks) {
  const auto mesh = parse_mesh("a=65536,b=65536");
  ASSERT_TRUE(mesh.has_value());
  EXPECT_EQ(mesh->ranks(), Mesh::kMaxRanks);
  EXPECT_THAT(mesh->coordinate(Mesh::kMaxRanks - 1), ElementsAre(65535, 65535));
}

TEST(ParseMesh, ReadsWhatTextWrites) {
  const auto mesh = parse_mesh("dp=4,tp=2,ep_shard-2=1");
  ASSERT_TRUE(mesh.has_value());
  EXPECT_EQ(mesh->text(), "dp=4,tp=2,ep_shard-2=1");
  EXPECT_EQ(mesh->find("tp"), std::optional<std::size_t>(1));
  EXPECT_EQ(mesh->find("pp"), std::nullopt);
}

TEST(ParseMesh, RefusesEverythingElse) {
  for (const char* const text : {"",
                                 ",",
                                 "dp",
                                 "dp=",
                                 "=4",
                                 "dp=4,",
                                 ",dp=4",
                                 "dp=-1",
                                 "dp=+1",
                                 "dp=4.0",
                                 "dp=0x4",
                                 "dp= 4",
                                 "dp =4",
                                 "dp=4 ",
                                 "dp=0",
                                 "dp=4,dp=2",
                                 "dp=99999999999999999999",
                                 "dp=4294967297",
                                 "a=65536,b=65537",
                                 "dp==4",
                                 "dp=4=4",
                                 "d p=4",
                                 "dp=4;tp=2",
                                 "a=18446744073709551615,b=18446744073709551615"}) {
    const auto mesh = parse_mesh(text);
    ASSERT_FALSE(mesh.has_value()) << text;
    EXPECT_EQ(mesh.error().code, Code::kLayout) << text;
  }
  std::string many = "a0=1";
  for (int i = 1; i < 100'000; ++i) many += ",a" + std::to_string(i) + "=1";
  EXPECT_THAT(parse_mesh(many).error().message, HasSubstr("too many axes"));
}

TEST(CheckMesh, FindsEveryProblem) {
  const Errors errors = check_mesh(Mesh({{"dp", 0}, {"dp", 2}, {"", 1}, {"x", std::uint64_t{1} << 33}}));
  ASSERT_EQ(errors.size(), 4U);
  for (const Error& error : errors) EXPECT_EQ(error.code, Code::kLayout);
}

}  // namespace
}  // namespace lading::layout
