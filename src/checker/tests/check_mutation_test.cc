// Thousands of random changes to random good plans: the checker must say what an oracle says that looks at
// every element (check_naive_verdict_for_tests.h), in both directions.
#include "checker/tests/check_mutations_for_tests.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>

#include "checker/check_naive_verdict_for_tests.h"
#include "checker/checker.h"
#include "checker/tests/check_decoding_mutations_for_tests.h"
#include "checker/tests/check_read_mutations_for_tests.h"
#include "support/sanitizers.h"

namespace lading::checker::naive {

bool Mutator::change_buffer_size() {
  Destination* d = destination();
  return nudge(d == nullptr ? nullptr : &d->buffer_bytes);
}
bool Mutator::change_owned_elems() {
  Destination* d = destination();
  return nudge(d == nullptr ? nullptr : &d->owned_elems);
}
bool Mutator::change_unit() {
  Destination* d = destination();
  if (d != nullptr) d->flat_parameter = d->flat_parameter.empty() ? "block" : "";
  return d != nullptr;
}
bool Mutator::change_region() {
  RankPlan* r = rank();
  layout::Region* region = r == nullptr ? nullptr : any(r->regions);
  if (region == nullptr || region->owned_elems() == 0) return false;
  std::vector<std::uint64_t*> fields = {&region->buffer_elems};
  for (auto& runs : region->runs) {
    for (layout::Run& run : runs) fields.insert(fields.end(), {&run.begin, &run.local_begin, &run.size});
  }
  if (region->flat) {
    fields.insert(fields.end(), {&region->flat->begin, &region->flat->end, &region->flat->buffer_begin});
  }
  nudge(**any(fields));
  return true;
}
bool Mutator::change_region_number() {
  RankPlan* r = rank();
  Destination* d = r == nullptr ? nullptr : any(r->destinations);
  if (d != nullptr) d->region = plan::RegionId(dice_.below(r->regions.size() + 1));
  return d != nullptr;
}
bool Mutator::change_root() {
  Destination* d = destination();
  if (d != nullptr) d->root = StatementId(dice_.below(plan_.statements.size() + 1));
  return d != nullptr;
}
bool Mutator::change_totals() {
  RankPlan* r = rank();
  if (r == nullptr) return false;
  std::uint64_t* const totals[] = {&r->owned_bytes, &r->read_bytes, &r->staging_bytes};
  nudge(*totals[dice_.below(3)]);
  if (dice_.once_in(3)) r->staging_bytes = plan_.budget_bytes + dice_.below(2);
  return true;
}
bool Mutator::change_call_order() {
  if (plan_.call_order.empty()) return false;
  switch (dice_.below(3)) {
    case 0: std::swap(plan_.call_order.front(), plan_.call_order.back()); break;
    case 1: plan_.call_order.pop_back(); break;
    default: plan_.call_order.push_back(StatementId(dice_.below(plan_.statements.size() + 1))); break;
  }
  return true;
}
bool Mutator::change_call_inputs() {
  if (plan_.call_order.empty()) return false;
  plan_.statements[plan_.call_order.front()].recipe.inputs.push_back(dice_.once_in(3) ? "nobody" : statement()->name);
  return true;
}
bool Mutator::change_shape() {
  Statement* s = statement();
  if (s == nullptr) return false;
  std::vector<std::uint64_t> dims(s->shape.begin(), s->shape.end());
  if (dims.empty() || dice_.once_in(6)) {
    dims.push_back(1 + dice_.below(2));
  } else if (dims.size() > 1 && dice_.once_in(2)) {
    std::swap(dims.front(), dims.back());
  } else {
    nudge(dims[dice_.below(dims.size())]);
  }
  s->shape = Shape(dims);
  return true;
}
bool Mutator::change_expression() {
  Statement* s = statement();
  if (s == nullptr || s->provenance != Provenance::kFile) return false;
  mapping::Expression* e = &s->expression;
  while (!e->parts.empty() && !dice_.once_in(3)) e = any(e->parts);
  switch (dice_.below(6)) {
    case 0: nudge(e->begin); break;
    case 1: nudge(e->end); break;
    case 2: e->fill += 1; break;
    case 3: e->dim = dice_.below(4); break;
    case 4:
      if (e->order.size() > 1) std::swap(e->order.front(), e->order.back());
      break;
    default:
      if (e->parts.size() > 1) std::swap(e->parts.front(), e->parts.back());
      if (e->parts.empty()) e->key = any(plan_.sources)->key;
  }
  return true;
}
bool Mutator::change_cut() {
  Statement* s = statement();
  layout::Slot* slot = s == nullptr ? nullptr : any(s->placement.slots);
  layout::Cut* cut = slot == nullptr ? nullptr : any(slot->cuts);
  if (cut == nullptr) return false;
  switch (dice_.below(7)) {
    case 0: cut->dim = dice_.below(3); break;
    case 1: cut->split_factor = dice_.below(4); break;
    case 2: cut->pad_multiple = dice_.below(7); break;
    case 3: nudge(cut->group_offset_elems); break;
    case 4: cut->owners = {dice_.below(3)}; break;
    case 5: cut->even = true; break;
    default: cut->kind = static_cast<layout::CutKind>(dice_.below(5)); break;
  }
  return true;
}
bool Mutator::change_placement() {
  Statement* s = statement();
  layout::Slot* slot = s == nullptr ? nullptr : any(s->placement.slots);
  if (slot == nullptr) return false;
  switch (dice_.below(4)) {
    case 0:
      if (!slot->cuts.empty()) slot->cuts.pop_back();
      break;
    case 1:
      if (slot->cuts.size() > 1) std::swap(slot->cuts.front(), slot->cuts.back());
      break;
    case 2: s->placement.device = layout::DeviceRule::kCpu; break;
    default: slot->name = "third"; break;
  }
  return true;
}
bool Mutator::change_source() {
  Source* s = any(plan_.sources);
  if (s == nullptr) return false;
  switch (dice_.below(5)) {
    case 0: nudge(s->bytes.end); break;
    case 1: s->file = FileId(dice_.below(4)); break;
    case 2: s->key = any(plan_.sources)->key; break;
    case 3: s->bytes = any(plan_.sources)->bytes; break;
    default: nudge(s->bytes.begin); break;
  }
  return true;
}
bool Mutator::change_file() {
  PlannedFile* f = any(plan_.files);
  if (f == nullptr) return false;
  if (dice_.once_in(3)) {
    f->name = any(plan_.files)->name;
  } else {
    nudge(f->size_bytes);
  }
  return true;
}
bool Mutator::change_checkpoint() {
  PlannedFile* f = any(plan_.files);
  Statement* s = statement();
  if (dice_.once_in(2)) {
    if (f != nullptr) f->checkpoint = 1 - f->checkpoint;
    return f != nullptr;
  }
  if (s == nullptr || s->provenance != Provenance::kFile) return false;
  s->checkpoint = 1 - s->checkpoint;
  return true;
}
// Two checkpoints have the key, and a transfer takes the bytes of the wrong one.
bool Mutator::read_the_key_of_another_checkpoint() {
  Transfer* t = transfer();
  if (t == nullptr || t->is_fill()) return false;
  const Source& own = plan_.sources[t->source];
  for (const SourceId i : plan_.sources.ids()) {
    const Source& other = plan_.sources[i];
    if (i == t->source || other.key != own.key || other.file == own.file) continue;
    t->source_begin_bytes = other.bytes.begin + (t->source_begin_bytes - own.bytes.begin);
    t->source = i;
    return true;
  }
  return false;
}
bool Mutator::change_provenance() {
  Statement* s = statement();
  if (s != nullptr) s->provenance = static_cast<Provenance>(dice_.below(7));
  return s != nullptr;
}
bool Mutator::change_recipe() {
  Statement* s = statement();
  if (s == nullptr) return false;
  switch (dice_.below(3)) {
    case 0: s->recipe.value += 1; break;
    case 1: s->recipe.zero_row = dice_.below(4); break;
    default: s->recipe.kind = static_cast<model::RecipeKind>(dice_.below(6)); break;
  }
  return true;
}
bool Mutator::rename_statement() {
  Statement* s = statement();
  if (s != nullptr) s->name = dice_.once_in(2) ? "another" : statement()->name;
  return s != nullptr;
}
bool Mutator::drop_statement() {
  if (plan_.statements.empty()) return false;
  plan_.statements.pop_back();
  return true;
}
bool Mutator::change_mesh() {
  std::vector<layout::Axis> axes = plan_.mesh.axes();
  if (axes.empty()) return false;
  if (dice_.once_in(2)) {
    any(axes)->size = dice_.below(4);
  } else {
    std::swap(axes.front(), axes.back());
  }
  plan_.mesh = layout::Mesh(axes);
  return true;
}

const std::vector<Mutator::Kind>& Mutator::kinds() {
#define LADING_MUTATION(name) \
  Kind { #name, &Mutator::name }
  static const std::vector<Kind> all = {
      LADING_MUTATION(drop_transfer),
      LADING_MUTATION(double_transfer),
      LADING_MUTATION(drop_comparison),
      LADING_MUTATION(borrow_comparison),
      LADING_MUTATION(change_comparison),
      LADING_MUTATION(borrow_transfer),
      LADING_MUTATION(shift_target),
      LADING_MUTATION(shift_source),
      LADING_MUTATION(resize_run),
      LADING_MUTATION(change_source_stride),
      LADING_MUTATION(change_target_stride),
      LADING_MUTATION(change_count),
      LADING_MUTATION(swap_loops),
      LADING_MUTATION(swap_strides),
      LADING_MUTATION(fold_run_into_loop),
      LADING_MUTATION(split_transfer),
      LADING_MUTATION(swap_sources),
      LADING_MUTATION(swap_transfers_of_ranks),
      LADING_MUTATION(change_fill),
      LADING_MUTATION(fill_instead),
      LADING_MUTATION(change_storage),
      LADING_MUTATION(change_source_dtype),
      LADING_MUTATION(change_recorded_dtype),
      LADING_MUTATION(change_device),
      LADING_MUTATION(change_rank),
      LADING_MUTATION(break_tie),
      LADING_MUTATION(untie_statement),
      LADING_MUTATION(add_alias),
      LADING_MUTATION(drop_destination),
      LADING_MUTATION(double_destination),
      LADING_MUTATION(shuffle_destinations),
      LADING_MUTATION(retarget_destination),
      LADING_MUTATION(change_buffer_size),
      LADING_MUTATION(change_owned_elems),
      LADING_MUTATION(change_unit),
      LADING_MUTATION(change_region),
      LADING_MUTATION(change_region_number),
      LADING_MUTATION(change_root),
      LADING_MUTATION(change_totals),
      LADING_MUTATION(shrink_read),
      LADING_MUTATION(drop_read),
      LADING_MUTATION(change_read),
      LADING_MUTATION(extend_read),
      LADING_MUTATION(double_read),
      LADING_MUTATION(move_read),
      LADING_MUTATION(join_reads),
      LADING_MUTATION(change_read_file),
      LADING_MUTATION(change_gap),
      LADING_MUTATION(drop_ref),
      LADING_MUTATION(double_ref),
      LADING_MUTATION(move_ref),
      LADING_MUTATION(change_ref),
      LADING_MUTATION(drop_scale_read),
      LADING_MUTATION(double_scale_read),
      LADING_MUTATION(resize_scale_read),
      LADING_MUTATION(move_scale_read),
      LADING_MUTATION(retarget_scale_read),
      LADING_MUTATION(borrow_scale_read),
      LADING_MUTATION(drop_scaling),
      LADING_MUTATION(change_scaling),
      LADING_MUTATION(give_scaling),
      LADING_MUTATION(reshape_scales),
      LADING_MUTATION(shift_first_code),
      LADING_MUTATION(change_decoding_of_source),
      LADING_MUTATION(change_decoding_of_expression),
      LADING_MUTATION(change_companions),
      LADING_MUTATION(change_companion_keys),
      LADING_MUTATION(change_scaling_everywhere),
      LADING_MUTATION(change_packing),
      LADING_MUTATION(resize_zeros_read),
      LADING_MUTATION(drop_tensor_scale_bytes),
      LADING_MUTATION(shrink_staging),
      LADING_MUTATION(change_batches),
      LADING_MUTATION(change_dequantize),
      LADING_MUTATION(change_call_order),
      LADING_MUTATION(change_call_inputs),
      LADING_MUTATION(change_shape),
      LADING_MUTATION(change_expression),
      LADING_MUTATION(change_cut),
      LADING_MUTATION(change_placement),
      LADING_MUTATION(change_source),
      LADING_MUTATION(change_file),
      LADING_MUTATION(change_checkpoint),
      LADING_MUTATION(read_the_key_of_another_checkpoint),
      LADING_MUTATION(change_provenance),
      LADING_MUTATION(change_recipe),
      LADING_MUTATION(rename_statement),
      LADING_MUTATION(drop_statement),
      LADING_MUTATION(change_mesh),
      LADING_MUTATION(change_kind),
  };
#undef LADING_MUTATION
  return all;
}

namespace {

std::string reasons(const Result<CheckReport, Errors>& verdict) {
  if (verdict) return "accepted";
  std::string text;
  for (const Error& error : verdict.error()) text += error.text() + "\n";
  return text;
}

TEST(CheckMutation, R1_R11_R41_R48_random_good_plans_pass) {
  PlanMaker maker(1);
  std::uint64_t transfers = 0;
  std::uint64_t within_bytes = 0;
  for (int i = 0; i < 2000; ++i) {
    const Plan plan = maker.make_plan();
    const auto verdict = check_plan(plan);
    ASSERT_TRUE(verdict.has_value()) << "plan " << i << ": " << reasons(verdict);
    ASSERT_TRUE(is_good(plan)) << "plan " << i;
    for (const RankPlan& rank : plan.ranks) {
      for (const Destination& d : rank.destinations) {
        transfers += d.transfers.size();
        for (const Transfer& t : d.transfers) within_bytes += t.first_code > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(transfers, 10'000U);  // the plans are not hollow
  EXPECT_GT(within_bytes, 1'000U);
}

TEST(CheckMutation, R11_R41_R48_random_changes_are_refused_exactly_if_the_oracle_refuses_them) {
  struct Tally {
    std::size_t wrong = 0;
    std::size_t harmless = 0;
  };
  std::map<std::string_view, Tally> tally;
  PlanMaker maker(2);
  std::size_t wrong = 0;
  std::size_t harmless = 0;
  for (int i = 0; wrong < test::random_cases(20'000); ++i) {
    const Plan plan = maker.make_plan();
    for (int m = 0; m < 20; ++m) {
      Plan mutant = plan;
      Mutator mutator(mutant, maker);
      const Mutator::Kind& kind = Mutator::kinds()[maker.below(Mutator::kinds().size())];
      if (!mutator.apply(kind)) continue;
      const bool good = is_good(mutant);
      const auto verdict = check_plan(mutant);
      ASSERT_EQ(verdict.has_value(), good) << kind.name << " of plan " << i << ": " << reasons(verdict);
      if (!good) {
        for (const Error& error : verdict.error()) ASSERT_EQ(error.rule.substr(0, 1), "R") << error.text();
      }
      ++(good ? harmless : wrong);
      ++(good ? tally[kind.name].harmless : tally[kind.name].wrong);
    }
  }
  EXPECT_GT(harmless, test::random_cases(500));  // so that "refuse everything" would not pass
  for (const Mutator::Kind& kind : Mutator::kinds()) {
    if (kind.name == "shuffle_destinations" || kind.name == "swap_loops" || kind.name == "split_transfer") continue;
    EXPECT_GT(tally[kind.name].wrong, test::random_cases(10)) << kind.name;
  }
  RecordProperty("wrong", std::to_string(wrong));
  RecordProperty("harmless", std::to_string(harmless));
}

}  // namespace
}  // namespace lading::checker::naive
