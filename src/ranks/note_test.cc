#include "ranks/note.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace lading::ranks {
namespace {

Statement sample_statement() {
  Statement statement;
  statement.ranks = RankSet({0, 1, 2, 7});
  statement.fields["layout"] = {Field::Mode::kSame, {{"a", RankSet({0, 1})}, {"b", RankSet({2, 7})}}};
  Error error(Code::kReadFailed, "the disk is gone");
  error.tensor = "w";
  error.bytes = ByteRange{3, 900};
  error.rank = 2;
  statement.problems.push_back({{error, "one_of_pythons"}, RankSet(2)});
  statement.exit_code = Exit::kLoad;
  statement.begun = true;
  return statement;
}

Verdict sample_verdict() {
  Verdict verdict;
  verdict.step = "the plan";
  verdict.problems.push_back({Error(Code::kRanksDiffer, "not the same").by_rule("R44").got("a; b"), ""});
  verdict.exit_code = Exit::kRanks;
  verdict.at_fault = RankSet(3);
  return verdict;
}

TEST(RankSet, TextAndRuns) {
  RankSet ranks({5, 1, 2, 9, 3});
  EXPECT_EQ(ranks.text(), "ranks 1-3, 5, 9");
  ranks.add(4);
  EXPECT_EQ(ranks.text(), "ranks 1-5, 9");
  ranks.add(RankSet({0, 6, 7, 8}));
  EXPECT_EQ(ranks.text(), "ranks 0-9");
  EXPECT_EQ(ranks.size(), 10U);
  EXPECT_EQ(RankSet(4).text(), "rank 4");
  EXPECT_TRUE(ranks.contains(9));
  EXPECT_FALSE(ranks.contains(10));
}

TEST(Note, WhatIsWrittenIsRead) {
  const std::string statement = encode(sample_statement());
  ASSERT_TRUE(decode_statement(statement).has_value());
  EXPECT_EQ(encode(*decode_statement(statement)), statement);
  const auto verdict = decode_verdict(encode(sample_verdict()));
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(encode(*verdict), encode(sample_verdict()));
  EXPECT_EQ(verdict->id.size(), 8U);
  EXPECT_THAT(verdict->text(), ::testing::HasSubstr("error id " + verdict->id));
}

TEST(Note, Fault55_AStrangersNoteIsRefusedAndNothingWorse) {
  EXPECT_FALSE(decode_statement("").has_value());
  EXPECT_FALSE(decode_verdict("GET / HTTP/1.1\r\n").has_value());
  EXPECT_FALSE(decode_verdict(encode(sample_statement())).has_value());
  std::mt19937 random(1);
  for (const std::string& whole : {encode(sample_statement()), encode(sample_verdict())}) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(decode_statement(whole.substr(0, size)).has_value());
      EXPECT_FALSE(decode_verdict(whole.substr(0, size)).has_value());
    }
    for (int i = 0; i < 20000; ++i) {
      std::string changed = whole;
      for (int n = 0; n < 3; ++n) changed[random() % changed.size()] = static_cast<char>(random());
      static_cast<void>(decode_statement(changed));
      static_cast<void>(decode_verdict(changed));
    }
  }
}

TEST(Note, AThousandRanksThatSayTheSameTakeAsMuchAsOne) {
  Statement all = sample_statement();
  const std::size_t one = encode(all).size();
  for (std::uint64_t rank = 0; rank < 1024; ++rank) {
    Statement more = sample_statement();
    for (auto& [name, shares] : more.fields) shares.list = {{"a", RankSet(rank)}};
    more.ranks = RankSet(rank);
    more.problems[0].ranks = RankSet(rank);
    all.merge(std::move(more));
  }
  EXPECT_LT(encode(all).size(), one + 20);
}

}  // namespace
}  // namespace lading::ranks
