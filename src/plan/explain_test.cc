#include "plan/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/text.h"
#include "plan/plan_for_tests.h"

namespace lading::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string told(const Plan& plan, std::string_view name) {
  std::string text;
  for (const ExplainedFact& fact : explain(plan, *plan.find(name), &plan.ranks.front())) {
    text += fact.topic + ": " + fact.text + "\n";
  }
  return text;
}

TEST(Explain, AFileTensorSaysItsExpressionBytesRuleAndPlacement) {
  const std::string text = told(plan_of_everything(), "a.built");
  for (const char* part :
       {"value: file: because [R1]", "expression: pad(", "mapping: rule \"fuse\"",
        "\"k.0\" BF16 [4, 6], bytes 100 to 148 of \"a.safetensors\"", "BF16 in the checkpoint, stored as F32",
        "placement: dim 0 in 2 chunks over tp\n",
        "slot \"secondary\": dim 0 in 2 chunks over tp, then flattened, padded and cut into 2 equal parts over dp",
        "FSDP2 unit \"layers\"", "rank 3: rows 4 to 8 of 8, all indices of dim 1", "ties: none"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(Explain, AnAliasSaysWhoseStorageItSharesAndWhereThatComesFrom) {
  const std::string text = told(plan_of_everything(), "g.alias");
  for (const char* part : {"alias: because", "file: because", "\"k.2\" F32", "rank 3: all rows", "device: cuda:3",
                           "2 runs of 12 elements from byte 148 of \"b.safetensors\" to byte 0",
                           "4 elements of 0.5 at byte 96", "one storage with \"f.tied\"", "k.3 must have the same"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(told(plan_of_everything(), "f.tied"), HasSubstr("one storage with \"g.alias\""));
}

TEST(Explain, OneElementIsNotPlural) {
  Plan plan = plan_of_everything();
  for (Destination& d : plan.ranks.front().destinations) {
    for (Transfer& t : d.transfers) t.run_elems = 1;
  }
  const std::string text = told(plan, "g.alias");
  EXPECT_THAT(text, HasSubstr("2 runs of 1 element from byte 148"));
  EXPECT_THAT(text, Not(HasSubstr(" 1 elements")));
}

TEST(Explain, EveryProvenanceHasItsOwnFact) {
  const Plan plan = plan_of_everything();
  EXPECT_THAT(told(plan, "b.call"), HasSubstr("inputs: \"a.built\""));
  EXPECT_THAT(told(plan, "c.fill"), HasSubstr("every element is 0.1"));
  EXPECT_THAT(told(plan, "d.kept"), HasSubstr("on cuda:1 before the load"));
  EXPECT_THAT(told(plan, "e.random"), HasSubstr("seed 5"));
  EXPECT_THAT(told(plan, "c.fill"), HasSubstr("rank 3 does not have it"));
}

TEST(Explain, NamesFromFilesAreEscaped) {
  Plan plan = plan_of_everything();
  plan.statements[5].name = "f.\x1b[2J";
  plan.statements[6].alias_of = plan.statements[5].name;
  plan.sources[2].key = plan.files[1].name = "\u202e\n";
  plan.statements[5].expression.key = plan.sources[2].key;
  for (const ExplainedFact& fact : explain(plan, plan.statements[6], &plan.ranks.front())) {
    EXPECT_THAT(fact.text, Not(HasSubstr("\x1b")));
    EXPECT_THAT(fact.text, Not(HasSubstr("\n")));
    EXPECT_THAT(fact.text, Not(HasSubstr("\u202e")));
  }
}

TEST(NearNames, TheLikeliestFirst) {
  const Plan plan = plan_of_everything();
  EXPECT_THAT(near_names(plan, "c.fil"), ElementsAre("c.fill"));
  EXPECT_THAT(near_names(plan, "random"), ElementsAre("e.random"));
  EXPECT_THAT(near_names(plan, "nothing.like.it.at.all"), IsEmpty());
  EXPECT_THAT(near_names(plan, std::string(1'000'000, 'a')), IsEmpty());
}

}  // namespace
}  // namespace lading::plan
