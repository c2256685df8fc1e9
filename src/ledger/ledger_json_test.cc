#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "ledger/ledger_for_tests.h"

namespace lading::ledger {
namespace {

using test::all_text;
using test::ledger_of;
using test::parse;
using testing::HasSubstr;

const std::string& good_text() {
  static const std::string text = ledger_json(ledger_of(test::world_of_everything()));
  return text;
}

// The text with one thing in it changed, which must be there.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = good_text();
  const std::size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  if (place != std::string::npos) text.replace(place, from.size(), to);
  return text;
}

// Refused, and the first problem is said to be at this path.
void expect_refused(const std::string& text, const std::string& path) {
  const auto parsed = parse(text);
  ASSERT_FALSE(parsed) << path;
  const Code code = parsed.error().front().code;
  EXPECT_TRUE(code == Code::kSchema || code == Code::kMapping) << path;
  EXPECT_THAT(parsed.error().front().message, HasSubstr(path)) << all_text(parsed.error());
}
void expect_refused(const std::string& from, const std::string& to, const std::string& path) {
  SCOPED_TRACE(from + " -> " + to);
  expect_refused(changed(from, to), path);
}

TEST(LedgerJson, RoundTrip) {
  const Ledger ledger = ledger_of(test::world_of_everything());
  const auto parsed = parse(ledger_json(ledger));
  ASSERT_TRUE(parsed) << all_text(parsed.error());
  EXPECT_EQ(*parsed, ledger);
  EXPECT_EQ(ledger_json(*parsed), ledger_json(ledger));
}

TEST(LedgerJson, RoundTripOfPartsWithoutDigests) {
  const auto plan = test::world_of_everything().plan({1, 3});
  ASSERT_TRUE(plan);
  const Ledger ledger = make_ledger(*plan, {"", {}, {}});
  const auto parsed = parse(ledger_json(ledger));
  ASSERT_TRUE(parsed) << all_text(parsed.error());
  EXPECT_EQ(*parsed, ledger);
}

TEST(LedgerJson, WhatWasReceivedIsSaidAndComesBack) {
  const auto plan = test::world_of_everything().plan();
  ASSERT_TRUE(plan);
  LedgerFacts facts = test::good_facts(*plan);
  for (DestinationFacts& found : facts.destinations) {
    const auto& d = plan->ranks[found.rank].destinations[found.destination];
    if (found.rank != 1 || plan->statements[d.statement].name != "tied") continue;
    found.received_from = 3;
  }
  const Ledger ledger = make_ledger(*plan, facts);
  const std::string text = ledger_json(ledger);
  const auto parsed = parse(text);
  ASSERT_TRUE(parsed) << all_text(parsed.error());
  EXPECT_EQ(*parsed, ledger);
  const std::size_t place = text.find(R"("received_from": 3)");
  ASSERT_NE(place, std::string::npos);
  EXPECT_EQ(text.find("received_from", place + 2), std::string::npos) << "an alias has nothing of its own";
  for (const char* bad : {"1", "99", "-1", "\"3\""}) {
    std::string wrong = text;
    wrong.replace(place, std::string(R"("received_from": 3)").size(), R"("received_from": )" + std::string(bad));
    expect_refused(wrong, "received_from");
  }
}

// Base and adapter have a key "w" in a file "model-0.safetensors"; another key of the adapter is handed in instead.
TEST(LedgerJson, R65_AdaptersAreSaidAndComeBack) {
  using namespace planner::world;
  World world{{{"w", {4}}}, {param("w", {4}), adapter(param("lora", {4})), adapter(param("mine", {4}))}};
  world.adapters = {{{{"w", {4}}, {"m", {4}}}, {{"w", "lora"}, {"m", "mine"}}}};
  world.policy.external = {"mine"};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << all_text(plan.error());
  LedgerFacts facts = test::good_facts(*plan);
  facts.adapters = {"adapters/a"};
  const Ledger ledger = make_ledger(*plan, facts);
  const Tensor& lora = ledger.tensors[*ledger.find("lora")];
  EXPECT_EQ(lora.checkpoint, 1U);
  ASSERT_EQ(lora.sources.size(), 1U);
  EXPECT_EQ(ledger.files[lora.sources[0].file].checkpoint, 1U);
  EXPECT_EQ(ledger.files[ledger.tensors[*ledger.find("w")].sources[0].file].checkpoint, 0U);
  const std::string text = ledger_json(ledger);
  const auto parsed = parse(text);
  ASSERT_TRUE(parsed) << all_text(parsed.error());
  EXPECT_EQ(*parsed, ledger);
  EXPECT_THAT(text, HasSubstr(R"({"key": "m", "rule": "external", "checkpoint": 1})"));
  for (const char* bad : {"0", "2", "-1", "\"1\""}) {
    std::string wrong = text;
    const std::string good = R"("checkpoint": 1)";
    for (std::size_t at = wrong.find(good); at != std::string::npos; at = wrong.find(good, at + 1)) {
      wrong.replace(at, good.size(), R"("checkpoint": )" + std::string(bad));
    }
    expect_refused(wrong, "checkpoint");
  }
  std::string without = text;
  const std::size_t place = without.find(R"("provenance": "file", "checkpoint": 1,)");
  ASSERT_NE(place, std::string::npos);
  without.replace(place, std::string(R"("provenance": "file", "checkpoint": 1,)").size(), R"("provenance": "file",)");
  expect_refused(without, "$.tensors[0].sources[0].bytes");  // the base's file of this name is shorter
}

TEST(LedgerJson, R62_TheSameLoadGivesTheSameBytes) {
  EXPECT_EQ(good_text(), ledger_json(ledger_of(test::world_of_everything(), {3, 1, 0, 2})));
}

TEST(LedgerJson, ARecordIsALine) {
  const Ledger ledger = ledger_of(test::world_of_everything());
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = good_text().find("\n    {\"rank\": ", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, ledger.records.size());
  EXPECT_THAT(good_text(), HasSubstr(R"("cast": "BF16 -> F32")"));
  EXPECT_THAT(good_text(), HasSubstr(R"({"key": "old", "rule": "legacy"})"));
  EXPECT_THAT(good_text(), HasSubstr(R"("expression": "odd {key}")"));
}

TEST(LedgerJson, InfinitiesComeBack) {
  planner::world::World world;
  world.tensors = {planner::world::init(planner::world::buffer("b", {2}),
                                        planner::world::fill(-std::numeric_limits<double>::infinity()))};
  world.policy.allow_missing = {"b"};
  const Ledger ledger = ledger_of(world);
  const auto parsed = parse(ledger_json(ledger));
  ASSERT_TRUE(parsed) << all_text(parsed.error());
  EXPECT_EQ(*parsed, ledger);
}

TEST(LedgerJson, RefusesOtherSchemasAndFields) {
  expect_refused("lading.ledger/1", "lading.ledger/2", "$.schema");
  expect_refused("\"seed\":", "\"clock\": 1, \"seed\":", "$.clock");
  expect_refused("\"seed\": 0,", "", "$.seed");
  expect_refused("\"complete\": true", "\"complete\": 1", "$.complete");
  expect_refused("\"slot\": \"\"", "\"slot\": \"\", \"more\": 1", "$.records[0].more");
  expect_refused("\"kind\": \"parameter\", \"shape\"", "\"kind\": \"param\", \"shape\"", "$.tensors[0].kind");
}

TEST(LedgerJson, RefusesFilesAndRanksThatCannotBe) {
  expect_refused("\"ranks\": [0, 1, 2, 3]", "\"ranks\": [0, 1, 3, 2]", "$.ranks");
  expect_refused("\"ranks\": [0, 1, 2, 3]", "\"ranks\": [0, 1, 2, 4]", "$.ranks");
  expect_refused("\"ranks\": [0, 1, 2, 3]", "\"ranks\": [0, 1, 2]", "$.records[");
  expect_refused("\"name\": \"model-0.safetensors\"", "\"name\": \"model-1.safetensors\"", "$.files[1]");
  expect_refused("\"mtime_ns\": 5", "\"mtime_ns\": 1000000000", "$.files[0].mtime_ns");
  expect_refused("\"inode\": 70, ", "", "$.files[0].inode");
  expect_refused("\"plan_digest\": \"", "\"plan_digest\": \"x", "$.plan_digest");
}

TEST(LedgerJson, RefusesTensorsThatCannotBe) {
  expect_refused("\"name\": \"built\"", "\"name\": \"z\"", "$.tensors[1].name");
  expect_refused("\"shape\": [10, 6]", "\"shape\": [4294967296, 4294967296]", "$.tensors[0].shape");
  expect_refused("\"file\": \"model-0.safetensors\"", "\"file\": \"model-2.safetensors\"",
                 "$.tensors[0].sources[0].file");
  expect_refused("\"bytes\": [100, 148]", "\"bytes\": [100, 147]", "$.tensors[0].sources[0].bytes");
  expect_refused("\"bytes\": [100, 148]", "\"bytes\": [148, 100]", "$.tensors[0].sources[0].bytes");
  expect_refused("\"bytes\": [100, 148]", "\"bytes\": [1000, 1048]", "$.tensors[0].sources[0].bytes");
  expect_refused("\"parts\": [\"a\", \"b\"]", "\"parts\": [\"a\", \"c\"]", "$.tensors[0].sources");
  expect_refused("\"concat\"", "\"interleave\"", "$.tensors[0].expression");
  expect_refused("\"alias_of\": \"tied\"", "\"alias_of\": \"plain\"", "$.tensors[8].alias_of");
  expect_refused("\"alias_of\": \"tied\"", "\"alias_of\": \"twin\"", "$.tensors[8].alias_of");
  expect_refused("\"zero_row\": 2", "\"zero_row\": 5", "$.tensors[4].recipe");
  expect_refused("\"kind\": \"normal\"", "\"kind\": \"host\"", "$.tensors[4].recipe");
  expect_refused("\"shard\": 0", "\"shard\": 2", "$.tensors[0].placement");
  expect_refused("\"axes\": [\"tp\"]", "\"axes\": [\"pp\"]", "$.tensors[0].placement");
}

TEST(LedgerJson, RefusesRecordsThatCannotBe) {
  expect_refused("\"tensor\": \"built\"", "\"tensor\": \"bu\"", "$.records[0].tensor");
  expect_refused("\"slot\": \"secondary\"", "\"slot\": \"third\"", "$.records[1].slot");
  expect_refused("\"rank\": 1, ", "\"rank\": 0, ", "$.records[");
  expect_refused("\"reads\": [[0, 100,", "\"reads\": [[2, 100,", "$.records[0].reads[0]");
  expect_refused("\"reads\": [[0, 100,", "\"reads\": [[0, 18446744073709551615,", "$.records[0].reads[0]");
  expect_refused("\"reads\": [[0, 100,", "\"reads\": [[0, 100, 0, 7,", "$.records[0].reads[0]");
  expect_refused("\"cast\": \"BF16 -> F32\"", "\"cast\": \"BF16 -> F16\"", "$.records[0].cast");
  expect_refused("\"cast\": \"BF16 -> F32\"", "\"cast\": \"F16, BF16 -> F32\"", "$.records[0].cast");
  expect_refused("\"runs\": [[[0, 5]], [[0, 6]]]", "\"runs\": [[[0, 5]], [[0, 7]]]", "$.records[0].region");
  expect_refused("\"runs\": [[[0, 5]], [[0, 6]]]", "\"runs\": [[[0, 5]]]", "$.records[0].region");
  expect_refused("\"runs\": [[[0, 5]], [[0, 6]]]", "\"runs\": [[[0, 4]], [[0, 6]]]", "$.records[0].owned_elems");
  expect_refused("\"flat\": [0, 15]", "\"flat\": [0, 61]", "$.records[1].region");
  expect_refused("\"bytes\": 120,", "\"bytes\": 121,", "$.records[0].bytes");
  expect_refused("\"written_bytes\": 120", "\"written_bytes\": 119", "$.records[0].complete");
  expect_refused("\"digest\": \"", "\"digest\": \"0", "$.records[0].digest");
}

TEST(LedgerJson, RefusesAnAliasThatSaysSomethingElse) {
  Ledger ledger = ledger_of(test::world_of_everything());
  for (Record& record : ledger.records) {
    if (record.provenance == Provenance::kAlias && record.rank == 2) record.digest->lanes[0] += 1;
  }
  const auto parsed = parse(ledger_json(ledger));
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().size(), 1U);
  EXPECT_EQ(parsed.error().front().tensor, "twin");
}

// Whatever is cut away or doubled, there is an answer and it is no.
TEST(LedgerJson, RefusesEveryTextThatIsShort) {
  for (std::size_t size = 0; size + 2 < good_text().size(); size += 97) {
    EXPECT_FALSE(parse(good_text().substr(0, size))) << size;
  }
}

}  // namespace
}  // namespace lading::ledger
