// For tests: one small random change to a plan. Most make it wrong; whether one does is for the oracle to say.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "checker/check_random_plan_for_tests.h"

namespace lading::checker::naive {

class Mutator {
 public:
  Mutator(Plan& plan, PlanMaker& dice) : plan_(plan), dice_(dice) {}

  struct Kind {
    std::string_view name;
    bool (Mutator::*apply)();  ///< false: there is nothing in this plan to change so
  };
  static const std::vector<Kind>& kinds();
  bool apply(const Kind& kind) { return (this->*kind.apply)(); }

 private:
  template <class T>
  T* any(std::vector<T>& list) {
    return list.empty() ? nullptr : &list[dice_.below(list.size())];
  }
  RankPlan* rank() { return any(plan_.ranks); }
  Destination* destination() { return rank() == nullptr ? nullptr : any(rank()->destinations); }
  // A few tries: many destinations have no transfers.
  Destination* with_transfers() {
    for (int i = 0; i < 8; ++i) {
      Destination* d = destination();
      if (d != nullptr && !d->transfers.empty()) return d;
    }
    return nullptr;
  }
  Transfer* transfer() {
    Destination* d = with_transfers();
    return d == nullptr ? nullptr : any(d->transfers);
  }
  ByteLoop* loop() {
    for (int i = 0; i < 8; ++i) {
      Transfer* t = transfer();
      if (t != nullptr && !t->loops.empty()) return any(t->loops);
    }
    return nullptr;
  }
  Statement* statement() { return any(plan_.statements); }
  void nudge(std::uint64_t& value) {
    const std::uint64_t steps[] = {1, 2, 4, 8};
    const std::uint64_t step = steps[dice_.below(4)];
    value = value >= step && dice_.once_in(2) ? value - step : value + step;
  }
  bool nudge(std::uint64_t* value) {
    if (value != nullptr) nudge(*value);
    return value != nullptr;
  }

  bool drop_transfer() {
    Destination* d = with_transfers();
    if (d == nullptr) return false;
    d->transfers.erase(d->transfers.begin() + static_cast<std::ptrdiff_t>(dice_.below(d->transfers.size())));
    return true;
  }
  bool double_transfer() {
    Destination* d = with_transfers();
    if (d == nullptr) return false;
    const std::size_t i = dice_.below(d->transfers.size());
    d->transfers.insert(d->transfers.begin() + static_cast<std::ptrdiff_t>(i), Transfer(d->transfers[i]));
    return true;
  }
  bool borrow_transfer() {
    Destination* d = with_transfers();
    Transfer* t = transfer();
    if (d == nullptr || t == nullptr) return false;
    d->transfers.push_back(Transfer(*t));
    std::sort(d->transfers.begin(), d->transfers.end(),
              [](const Transfer& a, const Transfer& b) { return a.target_begin_bytes < b.target_begin_bytes; });
    return true;
  }
  Destination* with_comparisons() {
    for (int i = 0; i < 8; ++i) {
      Destination* d = destination();
      if (d != nullptr && !d->comparisons.empty()) return d;
    }
    return nullptr;
  }
  bool drop_comparison() {
    Destination* d = with_comparisons();
    if (d != nullptr) d->comparisons.pop_back();
    return d != nullptr;
  }
  bool borrow_comparison() {
    Destination* d = with_comparisons();
    if (d != nullptr) d->comparisons.front() = dice_.once_in(2) ? d->transfers : d->comparisons.back();
    return d != nullptr;
  }
  bool change_comparison() {
    Destination* d = with_comparisons();
    Transfer* t = d == nullptr ? nullptr : any(*any(d->comparisons));
    if (t == nullptr) return false;
    std::uint64_t* fields[] = {&t->source_begin_bytes, &t->target_begin_bytes, &t->run_elems};
    return nudge(fields[dice_.below(3)]);
  }
  bool shift_target() {
    Transfer* t = transfer();
    return nudge(t == nullptr ? nullptr : &t->target_begin_bytes);
  }
  bool shift_source() {
    Transfer* t = transfer();
    return nudge(t == nullptr ? nullptr : &t->source_begin_bytes);
  }
  bool resize_run() {
    Transfer* t = transfer();
    return nudge(t == nullptr ? nullptr : &t->run_elems);
  }
  bool change_source_stride() {
    ByteLoop* l = loop();
    return nudge(l == nullptr ? nullptr : &l->source_stride_bytes);
  }
  bool change_target_stride() {
    ByteLoop* l = loop();
    return nudge(l == nullptr ? nullptr : &l->target_stride_bytes);
  }
  bool change_count() {
    ByteLoop* l = loop();
    return nudge(l == nullptr ? nullptr : &l->count);
  }
  bool swap_loops() {
    Transfer* t = transfer();
    if (t == nullptr || t->loops.size() < 2) return false;
    std::swap(t->loops.front(), t->loops.back());
    return true;
  }
  bool swap_strides() {
    ByteLoop* l = loop();
    if (l != nullptr) std::swap(l->source_stride_bytes, l->target_stride_bytes);
    return l != nullptr;
  }
  bool fold_run_into_loop() {  // the same elements said otherwise, if all goes well
    Transfer* t = transfer();
    if (t == nullptr || t->run_elems % 2 != 0) return false;
    const std::uint64_t half = t->run_elems / 2;
    t->run_elems = half;
    t->loops.push_back({2, half * (1 + dice_.below(8)), half * (1 + dice_.below(8))});
    return true;
  }
  bool split_transfer() {  // into two that do the same
    RankPlan* r = rank();
    Destination* d = r == nullptr ? nullptr : any(r->destinations);
    if (d == nullptr || d->transfers.empty()) return false;
    Transfer& t = *any(d->transfers);
    if (t.loops.empty() || t.loops.front().count < 2) return false;
    Transfer rest = t;
    const std::uint64_t first = 1 + dice_.below(t.loops.front().count - 1);
    t.loops.front().count = first;
    rest.loops.front().count -= first;
    rest.target_begin_bytes += first * t.loops.front().target_stride_bytes;
    rest.source_begin_bytes += first * t.loops.front().source_stride_bytes;
    d->transfers.push_back(rest);
    std::sort(d->transfers.begin(), d->transfers.end(),
              [](const Transfer& a, const Transfer& b) { return a.target_begin_bytes < b.target_begin_bytes; });
    serve_again(dice_, plan_, *r);
    return true;
  }
  bool swap_sources() {
    Transfer* t = transfer();
    if (t == nullptr || plan_.sources.size() < 2) return false;
    t->source = SourceId(dice_.below(plan_.sources.size()));
    return true;
  }
  bool swap_transfers_of_ranks() {
    Destination* a = with_transfers();
    Destination* b = with_transfers();
    if (a == nullptr || b == nullptr) return false;
    std::swap(a->transfers, b->transfers);
    return true;
  }
  bool change_fill() {
    Transfer* t = transfer();
    if (t != nullptr) t->fill = dice_.once_in(2) ? -0.0 : 3;
    return t != nullptr;
  }
  bool fill_instead() {
    Transfer* t = transfer();
    if (t != nullptr) t->source = SourceId::none();
    return t != nullptr;
  }
  bool change_storage() {
    Statement* s = statement();
    if (s != nullptr) s->storage = all_dtypes()[dice_.below(all_dtypes().size())];
    return s != nullptr;
  }
  bool change_source_dtype() {
    Source* s = any(plan_.sources);
    if (s != nullptr) s->dtype = all_dtypes()[dice_.below(all_dtypes().size())];
    return s != nullptr;
  }
  bool change_recorded_dtype() {
    Statement* s = statement();
    if (s != nullptr) s->checkpoint_dtype = DType::kC64;
    return s != nullptr;
  }
  bool change_kind() {
    Statement* s = statement();
    const model::Kind kinds[] = {model::Kind::kParameter, model::Kind::kBuffer, model::Kind::kAttribute};
    if (s != nullptr) s->kind = kinds[dice_.below(3)];
    return s != nullptr;
  }
  bool change_device() {
    Destination* d = destination();
    if (d != nullptr) d->device = dice_.once_in(2) ? "cpu" : "cuda:" + std::to_string(dice_.below(8));
    return d != nullptr;
  }
  bool change_rank() {
    RankPlan* r = rank();
    if (r != nullptr) r->rank = dice_.below(28);
    return r != nullptr;
  }
  bool break_tie() {
    for (int i = 0; i < 8; ++i) {
      Destination* d = destination();
      if (d == nullptr || d->aliases.empty()) continue;
      d->aliases.pop_back();
      return true;
    }
    return false;
  }
  bool untie_statement() {
    Statement* s = statement();
    if (s == nullptr || s->provenance != Provenance::kAlias) return false;
    s->alias_of = statement()->name;
    return true;
  }
  bool add_alias() {
    Destination* d = destination();
    if (d != nullptr) d->aliases.push_back(StatementId(dice_.below(plan_.statements.size() + 1)));
    return d != nullptr;
  }
  bool drop_destination() {
    RankPlan* r = rank();
    if (r == nullptr || r->destinations.empty()) return false;
    const std::size_t i = dice_.below(r->destinations.size());
    r->owned_bytes -= r->destinations[DestinationId(i)].buffer_bytes;
    r->destinations.erase(r->destinations.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  }
  bool double_destination() {
    RankPlan* r = rank();
    if (r == nullptr || r->destinations.empty()) return false;
    const Destination copy = *any(r->destinations);
    r->owned_bytes += copy.buffer_bytes;
    r->destinations.push_back(copy);
    return true;
  }
  bool shuffle_destinations() {  // no order is promised
    RankPlan* r = rank();
    if (r == nullptr || r->destinations.empty()) return false;
    std::swap(r->destinations.front(), *any(r->destinations));
    serve_again(dice_, plan_, *r);
    return true;
  }
  bool retarget_destination() {
    Destination* d = destination();
    if (d != nullptr) d->statement = StatementId(dice_.below(plan_.statements.size()));
    return d != nullptr;
  }
  bool change_buffer_size();
  bool change_owned_elems();
  bool change_unit();
  bool change_region();
  bool change_region_number();
  bool change_root();
  bool change_totals();
  // Of reads: check_read_mutations_for_tests.h.
  Read* read(RankPlan* of) { return of == nullptr ? nullptr : any(of->reads); }
  void add_up(RankPlan& rank);
  bool shrink_read();
  bool drop_read();
  bool change_read();
  bool extend_read();
  bool double_read();
  bool move_read();
  bool join_reads();
  bool change_read_file();
  bool change_gap();
  bool drop_ref();
  bool double_ref();
  bool move_ref();
  bool change_ref();
  ScaleRead* scale_read(RankPlan*& of);
  Source* scaled_source();
  bool drop_scale_read();
  bool double_scale_read();
  bool resize_scale_read();
  bool move_scale_read();
  bool retarget_scale_read();
  bool borrow_scale_read();
  bool drop_scaling();
  bool change_scaling();
  bool give_scaling();
  bool reshape_scales();
  // Of decodings: check_decoding_mutations_for_tests.h.
  bool change_decoding(Decoding& decoding);
  SourceId& any_companion(plan::Scaling& scaling);
  mapping::Expression* any_leaf();
  void retell(mapping::Expression& e, const Source& source);
  bool shift_first_code();
  bool change_decoding_of_source();
  bool change_decoding_of_expression();
  bool change_companions();
  bool change_companion_keys();
  bool change_scaling_everywhere();
  bool change_packing();
  bool resize_zeros_read();
  bool drop_tensor_scale_bytes();
  bool shrink_staging();
  bool change_batches();
  bool change_dequantize();
  bool change_call_order();
  bool change_call_inputs();
  bool change_shape();
  bool change_expression();
  bool change_cut();
  bool change_placement();
  bool change_source();
  bool change_file();
  bool change_checkpoint();
  bool read_the_key_of_another_checkpoint();
  bool change_provenance();
  bool change_recipe();
  bool rename_statement();
  bool drop_statement();
  bool change_mesh();

  Plan& plan_;
  PlanMaker& dice_;
};

}  // namespace lading::checker::naive
