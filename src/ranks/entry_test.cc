#include "ranks/entry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace lading::ranks {
namespace {

RankReport sample_report() {
  RankReport report;
  report.ranks = RankSet({0, 1, 2, 7});
  report.fields["layout"] = {Field::Mode::kSame, {{"a", RankSet({0, 1})}, {"b", RankSet({2, 7})}}};
  Error error(Code::kReadFailed, "the disk is gone");
  error.tensor = "w";
  error.bytes = ByteRange{3, 900};
  error.rank = 2;
  report.problems.push_back({{error, "one_of_pythons"}, RankSet(2)});
  report.exit_code = Exit::kLoad;
  report.begun = true;
  return report;
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

TEST(Entry, WhatIsWrittenIsRead) {
  const std::string report = encode(sample_report());
  ASSERT_TRUE(decode_report(report).has_value());
  EXPECT_EQ(encode(*decode_report(report)), report);
  const auto verdict = decode_verdict(encode(sample_verdict()));
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(encode(*verdict), encode(sample_verdict()));
  EXPECT_EQ(verdict->id.size(), 8U);
  EXPECT_THAT(verdict->text(), ::testing::HasSubstr("error id " + verdict->id));
}

TEST(Entry, Fault55_AStrangersEntryIsRefusedAndNothingWorse) {
  EXPECT_FALSE(decode_report("").has_value());
  EXPECT_FALSE(decode_verdict("GET / HTTP/1.1\r\n").has_value());
  EXPECT_FALSE(decode_verdict(encode(sample_report())).has_value());
  std::mt19937 random(1);
  for (const std::string& whole : {encode(sample_report()), encode(sample_verdict())}) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(decode_report(whole.substr(0, size)).has_value());
      EXPECT_FALSE(decode_verdict(whole.substr(0, size)).has_value());
    }
    for (int i = 0; i < 20000; ++i) {
      std::string changed = whole;
      for (int n = 0; n < 3; ++n) changed[random() % changed.size()] = static_cast<char>(random());
      static_cast<void>(decode_report(changed));
      static_cast<void>(decode_verdict(changed));
    }
  }
}

TEST(Entry, AThousandRanksThatSayTheSameTakeAsMuchAsOne) {
  RankReport all = sample_report();
  const std::size_t one = encode(all).size();
  for (std::uint64_t rank = 0; rank < 1024; ++rank) {
    RankReport more = sample_report();
    for (auto& [name, shares] : more.fields) shares.list = {{"a", RankSet(rank)}};
    more.ranks = RankSet(rank);
    more.problems[0].ranks = RankSet(rank);
    all.merge(std::move(more));
  }
  EXPECT_LT(encode(all).size(), one + 20);
}

RankSet speakers_of(const RankSet& at_fault, std::uint64_t size) {
  Verdict verdict;
  verdict.at_fault = at_fault;
  return verdict.speakers(size);
}

TEST(Verdict, R44_TheLowestRankAndThoseAtFaultSpeak) {
  EXPECT_EQ(speakers_of(RankSet(3), 512).text(), "ranks 0, 3");
  EXPECT_EQ(speakers_of(RankSet(0), 512).text(), "ranks 0-1") << "rank 0 may be dead";
  EXPECT_EQ(speakers_of(RankSet({0, 1, 4}), 512).text(), "ranks 0-2, 4");
  RankSet many;
  many.add(RankSet::Run{100, 400});
  EXPECT_EQ(speakers_of(many, 512).text(), "ranks 0, 100") << "300 ranks at fault do not print 300 copies";
  RankSet all;
  all.add(RankSet::Run{0, 512});
  EXPECT_EQ(speakers_of(all, 512).text(), "rank 0");
  EXPECT_EQ(speakers_of({}, 3).text(), "ranks 0-2") << "each has lost the store by itself";
}

TEST(Verdict, R44_TheLabelIsTheSameForAll) {
  Verdict verdict;
  verdict.exit_code = Exit::kCheckpoint;
  EXPECT_TRUE(verdict.is_refusal());
  verdict.begun = true;
  EXPECT_FALSE(verdict.is_refusal());
  verdict = {};
  for (const Exit code : {Exit::kLoad, Exit::kRanks}) {
    verdict.exit_code = code;
    EXPECT_FALSE(verdict.is_refusal());
  }
}

}  // namespace
}  // namespace lading::ranks
