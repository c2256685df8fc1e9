// Rules against small models and checkpoints, by number of the contract's rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "mapping/pattern.h"
#include "mapping/resolve.h"
#include "mapping/resolve_for_tests.h"

namespace lading::mapping {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using testing::UnorderedElementsAre;

const Shape kSmall = {2, 3};

TEST(Resolve, R38_EqualNamesNeedNoRule) {
  const World world{{{"a", kSmall}, {"b", kSmall}}, {{"a", kSmall}, {"c", kSmall}}};
  const auto resolved = world.resolve({});
  ASSERT_TRUE(resolved);
  EXPECT_THAT(resolved->decided_by, ElementsAre(Pair("a", "")));
  EXPECT_EQ(resolved->expressions.at("a"), Expression::source("a"));
  EXPECT_THAT(resolved->unread, ElementsAre(Pair("c", "")));
}

TEST(Resolve, PatternsThatAreLargeTogetherAreRefused) {
  const World world{{{"a", kSmall}}, {{"a", kSmall}}};
  std::vector<Rule> rules;
  for (int i = 0; i < 100; ++i) {
    rules.push_back(Rule::ignore(fmt::format("r{}", i), fmt::format("x{}(abcdefghij{{9}}){{9}}", i)).make_optional());
  }
  EXPECT_TRUE(world.resolve(rules));
  rules.clear();
  for (int i = 0; i < 400; ++i) {
    const std::string pattern = fmt::format("x{}(?:abcdefghij){{1000}}", i);
    rules.push_back(Rule::ignore(fmt::format("r{}", i), pattern).make_optional());
  }
  const auto refused = world.resolve(rules);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().front().message, HasSubstr("too large together"));
}

TEST(Resolve, R38_EveryKeyIsReadOrUnreadAndNeverBoth) {
  World world;
  for (int i = 0; i < 4; ++i) {
    world.model.emplace(fmt::format("layers.{}.fused", i), Shape{4, 3});
    world.checkpoint.emplace(fmt::format("layers.{}.a", i), kSmall);
    world.checkpoint.emplace(fmt::format("layers.{}.b", i), kSmall);
    world.checkpoint.emplace(fmt::format("layers.{}.inv_freq", i), Shape{2});
    world.checkpoint.emplace(fmt::format("old.{}", i), kSmall);
    if (i != 3) world.model.emplace(fmt::format("new.{}", i), kSmall);
  }
  const auto resolved = world.resolve(
      {Rule::ignore("freq", ".*inv_freq"), Rule::rename_pattern("old", "old\\.(\\d+)", "new.\\1"),
       Rule::build("fuse", "layers.{l}.fused",
                   expression_of(R"({"concat": {"dim": 0, "parts": ["layers.{l}.a", "layers.{l}.b"]}})"))});
  ASSERT_TRUE(resolved);
  std::set<std::string> read;
  for (const auto& [target, expression] : resolved->expressions) {
    for (const std::string& key : expression.keys()) EXPECT_TRUE(read.insert(key).second) << key;
  }
  for (const auto& [key, shape] : world.checkpoint) EXPECT_NE(read.count(key), resolved->unread.count(key)) << key;
  EXPECT_EQ(resolved->expressions.size(), world.model.size());
}

TEST(Resolve, R38_ARenameOutOfTheModelLeavesTheKeyUnreadAndSaysWhy) {
  const World world{{{"b", kSmall}}, {{"a", kSmall}}};
  const auto resolved = world.resolve({Rule::rename("mine", "a", "elsewhere")});
  ASSERT_TRUE(resolved);
  EXPECT_THAT(resolved->unread, ElementsAre(Pair("a", "")));
  EXPECT_THAT(resolved->key_notes.at("a"), AllOf(HasSubstr("mine"), HasSubstr("elsewhere")));
}

TEST(Resolve, R43_TwoKeysRenamedOntoOneTensorIsAnError) {
  const World world{{{"t", kSmall}}, {{"a", kSmall}, {"b", kSmall}}};
  const auto resolved = world.resolve({Rule::rename("first", "a", "t"), Rule::rename("second", "b", "t")});
  ASSERT_FALSE(resolved);
  ASSERT_EQ(resolved.error().size(), 1U);
  const Error& error = resolved.error().front();
  EXPECT_EQ(error.code, Code::kMapping);
  EXPECT_EQ(error.rule, "R43");
  EXPECT_EQ(error.tensor, "t");
  EXPECT_THAT(error.message, AllOf(HasSubstr("\"a\""), HasSubstr("\"b\""), HasSubstr("first"), HasSubstr("second")));
}

TEST(Resolve, R43_OnePatternThatFoldsTwoKeysIntoOneIsAnError) {
  const World world{{{"x.weight", kSmall}}, {{"a.x.weight", kSmall}, {"b.x.weight", kSmall}}};
  const auto resolved = world.resolve({Rule::rename_pattern("strip", "[a-z]\\.(.*)", "\\1")});
  ASSERT_FALSE(resolved);
  EXPECT_THAT(all_text(resolved.error()), AllOf(HasSubstr("a.x.weight"), HasSubstr("b.x.weight")));
}

TEST(Resolve, R43_AKeyOfTheTensorsOwnNameBesideARenameIsASecondSource) {
  const World world{{{"t", kSmall}}, {{"t", kSmall}, {"a", kSmall}}};
  const auto resolved = world.resolve({Rule::rename("mine", "a", "t")});
  ASSERT_FALSE(resolved);
  EXPECT_THAT(all_text(resolved.error()), AllOf(HasSubstr("\"a\""), HasSubstr("\"t\""), HasSubstr("mine")));
  EXPECT_TRUE(world.resolve({Rule::rename("mine", "a", "t"), Rule::ignore("drop", "t")}));
}

TEST(Resolve, R43_ASwapIsNoConflict) {
  const World world{{{"a", kSmall}, {"b", kSmall}}, {{"a", kSmall}, {"b", kSmall}}};
  const auto resolved = world.resolve({Rule::rename("ab", "a", "b"), Rule::rename("ba", "b", "a")});
  ASSERT_TRUE(resolved);
  EXPECT_EQ(resolved->expressions.at("a"), Expression::source("b"));
  EXPECT_EQ(resolved->expressions.at("b"), Expression::source("a"));
}

TEST(Resolve, R43_TwoRulesForOneKeyIsAnErrorUnlessTheyAgree) {
  const World world{{{"s", kSmall}, {"t", kSmall}}, {{"a", kSmall}}};
  const auto resolved = world.resolve({Rule::rename("one", "a", "s"), Rule::rename_pattern("two", "a", "t")});
  ASSERT_FALSE(resolved);
  EXPECT_THAT(all_text(resolved.error()), AllOf(HasSubstr("one"), HasSubstr("two"), HasSubstr("\"a\"")));
  const auto agreed = world.resolve({Rule::rename("one", "a", "s"), Rule::rename_pattern("two", "a", "s")});
  ASSERT_TRUE(agreed);
  EXPECT_EQ(agreed->decided_by.at("s"), "one");
}

TEST(Resolve, R43_AUsersRuleThatMatchesNothingIsAnError) {
  const World world{{{"t", kSmall}}, {{"t", kSmall}}};
  const std::vector<Rule> rules = {
      Rule::rename("exact", "missing", "t"), Rule::rename_pattern("pattern", "missing.*", "t"),
      Rule::ignore("ignore", "missing.*"), Rule::build("target", "none.{i}", expression_of(R"("t")")),
      Rule::build("source", "t", expression_of(R"("missing")"))};
  for (const Rule& rule : rules) {
    const auto resolved = world.resolve({rule});
    ASSERT_FALSE(resolved) << rule.id;
    EXPECT_EQ(resolved.error().front().rule, "R43");
    EXPECT_THAT(all_text(resolved.error()), AllOf(HasSubstr(rule.id), HasSubstr("matches nothing")));
    EXPECT_TRUE(world.resolve({Rule(rule).make_optional()})) << rule.id;
  }
}

TEST(Resolve, R43_LayersIsNotModelLayers) {
  const World world{{{"model.layers.0.w", kSmall}}, {{"model.layers.0.w", kSmall}}};
  const auto resolved = world.resolve({Rule::rename_pattern("prefix", "layers\\.(.*)", "model.layers.\\1")});
  ASSERT_FALSE(resolved);
  EXPECT_THAT(all_text(resolved.error()), AllOf(HasSubstr("matches nothing"), HasSubstr("model.layers.0.w")));
}

TEST(Resolve, R43_AKeyCannotBeBothBuiltFromAndRenamedOrTaken) {
  const World world{{{"a", kSmall}, {"t", kSmall}}, {{"a", kSmall}}};
  const Rule build = Rule::build("make", "t", expression_of(R"("a")"));
  const auto taken = world.resolve({build});
  ASSERT_FALSE(taken);
  EXPECT_THAT(all_text(taken.error()), AllOf(HasSubstr("make"), HasSubstr("\"a\"")));
  const auto renamed = world.resolve({build, Rule::rename("name", "a", "a")});
  ASSERT_FALSE(renamed);
  EXPECT_THAT(all_text(renamed.error()), AllOf(HasSubstr("make"), HasSubstr("name")));
  EXPECT_TRUE(world.resolve({build, Rule::build("make too", "a", expression_of(R"("a")"))}));
}

TEST(Resolve, R43_TwoBuildsOfOneTensorIsAnError) {
  const World world{{{"t", kSmall}}, {{"a", kSmall}, {"b", kSmall}}};
  const auto resolved = world.resolve(
      {Rule::build("one", "t", expression_of(R"("a")")), Rule::build("two", "t", expression_of(R"("b")"))});
  ASSERT_FALSE(resolved);
  EXPECT_THAT(all_text(resolved.error()), AllOf(HasSubstr("one"), HasSubstr("two")));
}

TEST(Resolve, R46_LegacyBuffersAreIgnoredByANamedRule) {
  const World world{{{"layers.0.w", kSmall}},
                    {{"layers.0.w", kSmall},
                     {"layers.0.rotary_emb.inv_freq", {4}},
                     {"embeddings.position_ids", {1, 8}},
                     {"surprise", kSmall}}};
  const auto resolved = world.resolve({Rule::ignore("legacy.inv_freq", ".*\\.rotary_emb\\.inv_freq").make_optional(),
                                       Rule::ignore("legacy.position_ids", "(.*\\.)?position_ids").make_optional()});
  ASSERT_TRUE(resolved);
  EXPECT_THAT(resolved->unread,
              UnorderedElementsAre(Pair("layers.0.rotary_emb.inv_freq", "legacy.inv_freq"),
                                   Pair("embeddings.position_ids", "legacy.position_ids"), Pair("surprise", "")));
}

TEST(Resolve, R46_AKeyIsIgnoredByItsNameWhateverIsInIt) {
  for (const std::string key : {"w.*", "a?", "[a]", "{x}", "a\\b", "\u00e9", "a\nb"}) {
    World world;
    world.model = {{"wxx", {1}}};
    world.checkpoint = {{key, {1}}, {"wxx", {1}}};
    const auto resolved = world.resolve({Rule::ignore_key("by name", key)});
    ASSERT_TRUE(resolved.has_value()) << all_text(resolved.error());
    EXPECT_EQ(resolved->unread.at(key), "by name");
    EXPECT_TRUE(resolved->expressions.contains("wxx"));
  }
  World world;
  world.checkpoint = {{"b", {1}}};
  EXPECT_FALSE(world.resolve({Rule::ignore_key("r", "a")}).has_value());
  EXPECT_TRUE(world.resolve({Rule::ignore_key("r", "a").make_optional()}).has_value());
  const std::string longest(5000, '.');
  world.checkpoint = {{longest, {1}}};
  EXPECT_TRUE(world.resolve({Rule::ignore_key("r", longest)}).has_value());
}

TEST(Resolve, R46_AnIgnoredKeyIsNeverLoaded) {
  const World world{{{"r.inv_freq", {4}}, {"w", kSmall}},
                    {{"r.inv_freq", {4}}, {"m.r.inv_freq", {4}}, {"m.w", kSmall}}};
  const Rule ignore = Rule::ignore("legacy", ".*inv_freq");
  const auto resolved = world.resolve({ignore, Rule::rename_pattern("strip", "m\\.(.*)", "\\1")});
  ASSERT_TRUE(resolved);
  EXPECT_THAT(resolved->decided_by, ElementsAre(Pair("w", "strip")));
  EXPECT_THAT(resolved->unread, ElementsAre(Pair("m.r.inv_freq", "legacy"), Pair("r.inv_freq", "legacy")));
  const auto renamed = world.resolve({ignore, Rule::rename("name", "m.r.inv_freq", "r.inv_freq")});
  ASSERT_FALSE(renamed);
  EXPECT_THAT(all_text(renamed.error()), AllOf(HasSubstr("name"), HasSubstr("legacy")));
  const auto built = world.resolve({ignore, Rule::build("make", "r.inv_freq", expression_of(R"("m.r.inv_freq")"))});
  ASSERT_FALSE(built);
  EXPECT_THAT(all_text(built.error()), AllOf(HasSubstr("make"), HasSubstr("legacy")));
}

TEST(Resolve, R65_BaseKeysFindTheirPlaceUnderPeftNames) {
  const World world{{{"base_model.model.q_proj.base_layer.weight", kSmall},
                     {"base_model.model.q_proj.lora_A.default.weight", kSmall},
                     {"base_model.model.norm.weight", {3}}},
                    {{"q_proj.weight", kSmall}, {"norm.weight", {3}}}};
  // A library's two renames: for each key, the model has one of the two names.
  const auto resolved =
      world.resolve({Rule::rename_pattern("peft.plain", "(.*)", "base_model.model.\\1").make_optional(),
                     Rule::rename_pattern("peft.wrapped", "(.*)\\.(weight|bias)", "base_model.model.\\1.base_layer.\\2")
                         .make_optional()});
  ASSERT_TRUE(resolved) << all_text(resolved.error());
  EXPECT_THAT(resolved->decided_by,
              UnorderedElementsAre(Pair("base_model.model.norm.weight", "peft.plain"),
                                   Pair("base_model.model.q_proj.base_layer.weight", "peft.wrapped")));
  EXPECT_THAT(resolved->unread, IsEmpty());
}

TEST(Resolve, AnOptionalRenameOutOfTheModelLeavesTheKeyItsName) {
  const World world{{{"a", kSmall}}, {{"a", kSmall}}};
  const auto resolved = world.resolve({Rule::rename("library", "a", "converted.a").make_optional()});
  ASSERT_TRUE(resolved);
  EXPECT_THAT(resolved->decided_by, ElementsAre(Pair("a", "")));
  EXPECT_THAT(resolved->key_notes, IsEmpty());
}

// Fault 28 (docs/how-it-works/faults.md): patterns that backtrack for ever elsewhere.
TEST(Resolve, CatastrophicPatternsFinishAtOnce) {
  World world{{{"t", kSmall}}, {{"t", kSmall}}};
  world.checkpoint.emplace(std::string(100'000, 'a'), kSmall);
  const auto begin = std::chrono::steady_clock::now();
  for (const char* pattern : {"(a+)+b", "(a|aa)+$b", "(a*)*c", "(.*)(.*)(.*)(.*)(.*)x", "((a{0,30}){0,30})b"}) {
    EXPECT_TRUE(world.resolve({Rule::rename_pattern("evil", pattern, "t").make_optional()})) << pattern;
    EXPECT_TRUE(world.resolve({Rule::ignore("evil", pattern).make_optional()})) << pattern;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(Resolve, BadPatternsAreErrorsAndStayOffTheTerminal) {
  const World world{{{"t", kSmall}}, {{"a", kSmall}}};
  testing::internal::CaptureStderr();
  for (const char* pattern : {"(", "(?=a)", "a{100000}", "((a{100}){100}){100}"}) {
    const auto resolved = world.resolve({Rule::ignore("bad", pattern)});
    ASSERT_FALSE(resolved) << pattern;
    EXPECT_THAT(all_text(resolved.error()), HasSubstr("bad"));
  }
  EXPECT_FALSE(world.resolve({Rule::ignore("bad", std::string(5000, 'a'))}));
  EXPECT_FALSE(world.resolve({Rule::rename_pattern("bad", "(a)", "\\2")}));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Resolve, APatternMatchesTheWholeNameOrNot) {
  const World world{{{"x", kSmall}}, {{"ab", kSmall}, {"abc", kSmall}}};
  const auto resolved = world.resolve({Rule::rename_pattern("whole", "ab", "x")});
  ASSERT_TRUE(resolved);
  EXPECT_THAT(resolved->unread, ElementsAre(Pair("abc", "")));
}

// Of the processor, so that a busy machine does not count.
double seconds_of(const std::function<void()>& work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

TEST(Resolve, AHundredThousandKeysResolveInWellUnderASecond) {
  World world;
  std::vector<Rule> explicit_rules;
  for (int i = 0; i < 100'000; ++i) {
    const std::string name = fmt::format("layers.{}.experts.{}.w", i / 256, i % 256);
    world.model.emplace("model." + name, kSmall);
    world.checkpoint.emplace("language_model." + name, kSmall);
    explicit_rules.push_back(Rule::build(
        fmt::format("front.{}", i), "model." + name,
        ExpressionTemplate::literal(Expression::slice(Expression::source("language_model." + name), 0, 0, 2))));
  }
  const auto resolves = [&](const std::vector<Rule>& rules) {
    const auto resolved = world.resolve(rules);
    ASSERT_TRUE(resolved);
    EXPECT_EQ(resolved->expressions.size(), 100'000U);
  };
  const double by_pattern = seconds_of([&] {
    resolves({Rule::rename_pattern("p", "language_model\\.(.*)", "model.\\1"),
              Rule::ignore("q", ".*\\.inv_freq").make_optional()});
  });
  const double by_rule = seconds_of([&] { resolves(explicit_rules); });
  RecordProperty("by_pattern_ms", static_cast<int>(by_pattern * 1000));
  RecordProperty("by_rule_ms", static_cast<int>(by_rule * 1000));
  fmt::print("100,000 keys: {:.3f} s by pattern, {:.3f} s by as many rules\n", by_pattern, by_rule);
  // Sanitizers take their share; what must not happen is a square of the number.
  EXPECT_LT(by_pattern, 10);
  EXPECT_LT(by_rule, 10);
  for (Rule& rule : explicit_rules) rule.to += ".not";
  EXPECT_LT(seconds_of([&] { EXPECT_FALSE(world.resolve(explicit_rules)); }), 10);
}

// A model of a, b and a table that is never in a file; keys as given.
Resolution resolved_partly(const std::vector<Rule>& rules, const std::vector<std::string_view>& keys) {
  const Shape shape = {2};
  const std::vector<Target> targets = {{"a", &shape}, {"b", &shape}, {"table", &shape, false}};
  return resolve_partly({rules}, targets, keys, [&](std::string_view) { return &shape; });
}

TEST(ResolvePartly, R46_KeysOfATargetThatIsNeverInAFileAreLeftAlone) {
  const Resolution out = resolved_partly({Rule::rename("old", "x", "table")}, {"a", "b", "table", "x"});
  EXPECT_TRUE(out.problems.empty()) << all_text(out.problems);
  EXPECT_EQ(out.resolved.unread.at("table"), kNonPersistent);
  EXPECT_EQ(out.resolved.unread.at("x"), kNonPersistent);
  EXPECT_TRUE(out.resolved.key_notes.empty()) << "the model does have it";
  EXPECT_FALSE(out.resolved.expressions.contains("table"));
}

TEST(ResolvePartly, R43_WhatIsDisputedIsLeftOutAndTheRestIsThere) {
  const Resolution out =
      resolved_partly({Rule::rename("one", "x", "a"), Rule::rename("two", "y", "a")}, {"b", "odd", "x", "y"});
  EXPECT_EQ(out.problems.size(), 1U) << all_text(out.problems);
  EXPECT_EQ(out.disputed, (std::set<std::string, std::less<>>{"a"}));
  EXPECT_TRUE(out.settled) << "nothing else depends on these keys";
  EXPECT_EQ(out.resolved.expressions.size(), 1U);
  EXPECT_EQ(out.resolved.unread.size(), 1U) << "odd; x and y are disputed";
}

TEST(ResolvePartly, R43_APatternThatMatchesNothingLeavesItsNamesUnsettled) {
  const auto strip = resolved_partly({Rule::rename_pattern("strip", "m\\.(.*)", "\\1")}, {"a", "b"});
  EXPECT_TRUE(strip.settled);
  EXPECT_TRUE(strip.resolved.unread.empty()) << "any key may have been meant";
  EXPECT_TRUE(resolved_partly({Rule::ignore("unmatched", "zzz")}, {"a", "b"}).settled);
  EXPECT_FALSE(resolved_partly({Rule::ignore("bad", "(")}, {"a", "b"}).settled);
  EXPECT_TRUE(resolved_partly({Rule::rename("named", "typo", "a")}, {"b"}).settled) << "it is about one tensor";
}

// What a pattern begins and ends with only leaves out keys that it does not match.
TEST(Resolve, R43_EveryKeyThatAPatternMatchesIsFound) {
  const std::vector<std::string> keys = {"a",  "a.b", "a.b.c", "ab",  "abc",    "abcd", "a-b", "b",      "b.c",
                                         "ba", "c.w", "l1.w",  "l11", "o.l1.w", "o.w",  "x",   "x.l1.w", "xx"};
  for (const char* text :
       {"a.*", "ab?c*", "a(b|c)", "a|b.*", "(a)?b", "(?i)A.*", "o\\.(.*l1\\.w)", ".*w", "[abx]+", "x{1,2}",
        "l\\d+(\\.w)?", "a\\.b.*", "^a.*$", ".*", "x", "a+b", "\\x61b", "a[.-]b", "\\Qa.b\\E"}) {
    const auto pattern = Pattern::compile(text);
    ASSERT_TRUE(pattern) << text;
    for (const std::string& key : keys) {
      if (!pattern->matches(key)) continue;
      EXPECT_TRUE(key.starts_with(pattern->prefix())) << text << " " << key << " " << pattern->prefix();
      EXPECT_TRUE(key.ends_with(pattern->suffix())) << text << " " << key << " " << pattern->suffix();
    }
  }
  EXPECT_EQ(Pattern::compile("o\\.(.*l1\\.w)")->suffix(), "l1.w");
  EXPECT_EQ(Pattern::compile("o\\.(.*l1\\.w)")->prefix(), "o.");
}

}  // namespace
}  // namespace lading::mapping
