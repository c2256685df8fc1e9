// For tests: changes to the reads of a plan, as a wrong schedule would make them, and to scales. Totals are kept right,
// so that no sum gives a change away.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "checker/tests/check_mutations_for_tests.h"

namespace lading::checker::naive {

inline void Mutator::add_up(RankPlan& rank) {
  rank.read_bytes = 0;
  for (const Read& read : rank.reads) rank.read_bytes += read.total_bytes();
  for (const ScaleRead& read : rank.scale_reads) rank.read_bytes += bytes_of_scale_read(plan_, read);
}
inline bool Mutator::shrink_read() {
  RankPlan* r = rank();
  Read* one = read(r);
  if (one == nullptr) return false;
  --one->size_bytes;
  if (dice_.once_in(2)) ++one->begin_bytes;
  add_up(*r);
  return true;
}
inline bool Mutator::drop_read() {
  RankPlan* r = rank();
  if (r == nullptr || r->reads.empty()) return false;
  r->reads.pop_back();
  add_up(*r);
  return true;
}
inline bool Mutator::change_read() {
  RankPlan* r = rank();
  Read* one = read(r);
  if (one == nullptr) return false;
  std::uint64_t* const fields[] = {&one->begin_bytes, &one->size_bytes, &one->count, &one->stride_bytes};
  nudge(*fields[dice_.below(4)]);
  add_up(*r);
  return true;
}
inline bool Mutator::extend_read() {
  RankPlan* r = rank();
  Read* one = read(r);
  if (one == nullptr) return false;
  ++one->size_bytes;
  if (one->begin_bytes > 0 && dice_.once_in(2)) --one->begin_bytes;
  add_up(*r);
  return true;
}
inline bool Mutator::double_read() {
  RankPlan* r = rank();
  Read* one = read(r);
  if (one == nullptr) return false;
  Read copy = *one;
  if (dice_.once_in(3)) copy.transfers.clear();
  r->reads.push_back(std::move(copy));
  add_up(*r);
  return true;
}
inline bool Mutator::move_read() {
  Read* one = read(rank());
  return nudge(one == nullptr ? nullptr : &one->begin_bytes);
}
inline bool Mutator::join_reads() {  // across whatever is between them
  RankPlan* r = rank();
  if (r == nullptr || r->reads.size() < 2) return false;
  const std::size_t i = dice_.below(r->reads.size() - 1);
  Read& one = r->reads[i];
  const Read next = r->reads[i + 1];
  one.size_bytes = std::max(one.begin_bytes + one.size_bytes, next.begin_bytes + next.size_bytes) - one.begin_bytes;
  for (const TransferRef& ref : next.transfers) one.transfers.push_back(ref);
  r->reads.erase(r->reads.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  add_up(*r);
  return true;
}
inline bool Mutator::change_read_file() {
  Read* one = read(rank());
  if (one != nullptr) one->file = FileId(dice_.below(plan_.files.size() + 1));
  return one != nullptr;
}
inline bool Mutator::change_gap() {
  std::uint64_t* const gap = any(plan_.read_limits.gap_bytes);
  if (gap == nullptr) return false;
  *gap = dice_.below(*gap + 1);
  return true;
}
inline bool Mutator::drop_ref() {
  Read* one = read(rank());
  if (one != nullptr) one->transfers.pop_back();
  return one != nullptr;
}
inline bool Mutator::double_ref() {
  RankPlan* r = rank();
  Read* from = read(r);
  if (from == nullptr || from->transfers.empty()) return false;
  read(r)->transfers.push_back(from->transfers.back());
  return true;
}
inline bool Mutator::move_ref() {
  RankPlan* r = rank();
  Read* from = read(r);
  if (from == nullptr || from->transfers.empty()) return false;
  const TransferRef ref = from->transfers.back();
  from->transfers.pop_back();
  read(r)->transfers.push_back(ref);
  return true;
}
inline bool Mutator::change_ref() {
  Read* one = read(rank());
  if (one == nullptr || one->transfers.empty()) return false;
  TransferRef& ref = one->transfers[dice_.below(one->transfers.size())];
  const std::uint64_t field = dice_.below(3);
  const std::uint64_t number = dice_.below(4);
  if (field == 0) ref.destination = DestinationId(number);
  if (field == 1) ref.list = static_cast<std::uint32_t>(number);
  if (field == 2) ref.transfer = static_cast<std::uint32_t>(number);
  return true;
}

// Scales, and what they are of.
inline ScaleRead* Mutator::scale_read(RankPlan*& of) {
  for (int i = 0; i < 8; ++i) {
    of = rank();
    if (of != nullptr && !of->scale_reads.empty()) return any(of->scale_reads);
  }
  return nullptr;
}
inline Source* Mutator::scaled_source() {
  for (int i = 0; i < 8; ++i) {
    Source* s = any(plan_.sources);
    if (s != nullptr && s->scaling) return s;
  }
  return nullptr;
}
inline bool Mutator::drop_scale_read() {
  RankPlan* r = nullptr;
  if (scale_read(r) == nullptr) return false;
  r->scale_reads.pop_back();
  add_up(*r);
  return true;
}
inline bool Mutator::double_scale_read() {
  RankPlan* r = nullptr;
  const ScaleRead* one = scale_read(r);
  if (one == nullptr) return false;
  r->scale_reads.push_back(ScaleRead(*one));
  add_up(*r);
  return true;
}
inline bool Mutator::resize_scale_read() {
  RankPlan* r = nullptr;
  ScaleRead* one = scale_read(r);
  if (one == nullptr) return false;
  nudge(dice_.once_in(2) ? one->bytes.begin : one->bytes.end);
  if (one->bytes.begin < one->bytes.end) add_up(*r);
  return true;
}
inline bool Mutator::move_scale_read() {
  RankPlan* r = nullptr;
  ScaleRead* one = scale_read(r);
  if (one == nullptr) return false;
  const std::uint64_t size = one->bytes.size_bytes();
  nudge(one->bytes.begin);
  one->bytes.end = one->bytes.begin + size;
  return true;
}
inline bool Mutator::retarget_scale_read() {
  RankPlan* r = nullptr;
  ScaleRead* one = scale_read(r);
  if (one != nullptr) one->source = SourceId(dice_.below(plan_.sources.size() + 1));
  return one != nullptr;
}
inline bool Mutator::borrow_scale_read() {  // of another rank
  RankPlan* r = nullptr;
  RankPlan* other = nullptr;
  if (scale_read(r) == nullptr || scale_read(other) == nullptr) return false;
  r->scale_reads = std::vector<ScaleRead>(other->scale_reads);
  add_up(*r);
  return true;
}
inline bool Mutator::drop_scaling() {
  Source* s = scaled_source();
  if (s == nullptr) return false;
  s->scaling.reset();
  for (RankPlan& r : plan_.ranks) {
    std::erase_if(r.scale_reads, [&](const ScaleRead& read) { return &plan_.sources[read.source] == s; });
    add_up(r);
  }
  return true;
}
inline bool Mutator::change_scaling() {
  Source* s = scaled_source();
  if (s == nullptr) return false;
  std::vector<std::uint64_t> block(s->scaling->block.begin(), s->scaling->block.end());
  const std::optional<DType> products[] = {std::nullopt, DType::kF32, DType::kF8E4M3, DType::kI32};
  switch (dice_.below(5)) {
    case 0: s->scaling->scales = SourceId(dice_.below(plan_.sources.size() + 1)); break;
    case 3: s->scaling->product = products[dice_.below(4)]; break;
    case 1: block.push_back(1 + dice_.below(2)); break;
    case 2:
      if (block.size() > 1) std::swap(block.front(), block.back());
      break;
    default:
      if (block.empty()) return false;
      nudge(block[dice_.below(block.size())]);
  }
  s->scaling->block = Shape(block);
  return true;
}
// Of a source that has none, or those of another one.
inline bool Mutator::give_scaling() {
  const Source* from = scaled_source();
  Source* to = any(plan_.sources);
  if (from == nullptr || to == nullptr) return false;
  to->scaling = plan::Scaling(*from->scaling);
  return true;
}
inline bool Mutator::reshape_scales() {  // or zero points
  Source* s = scaled_source();
  if (s == nullptr || !plan_.sources.has(s->scaling->scales)) return false;
  const bool has_zeros = plan_.sources.has(s->scaling->zeros);
  Shape& shape = plan_.sources[has_zeros && dice_.once_in(2) ? s->scaling->zeros : s->scaling->scales].shape;
  std::vector<std::uint64_t> dims(shape.begin(), shape.end());
  switch (dice_.below(3)) {
    case 0: dims.insert(dims.begin(), 1); break;
    case 1: std::reverse(dims.begin(), dims.end()); break;
    default: dims = {*shape.num_elems()}; break;
  }
  shape = Shape(dims);
  return true;
}
inline bool Mutator::shrink_staging() {
  RankPlan* r = nullptr;
  if (scale_read(r) == nullptr) return false;
  r->staging_bytes = dice_.below(2 * memory_of_scales(plan_, r->scale_reads));
  return true;
}
// Another cut of the reads: sound or not, and perhaps with scales in memory that there is no room for.
inline bool Mutator::change_batches() {
  RankPlan* r = rank();
  if (r == nullptr || r->reads.empty()) return false;
  const std::vector<std::uint32_t> before = r->batch_ends;
  const auto number = [&] { return static_cast<std::uint32_t>(dice_.below(r->reads.size() + 2)); };
  if (r->batch_ends.empty() || dice_.once_in(3)) {
    r->batch_ends = {number(), static_cast<std::uint32_t>(r->reads.size())};
  } else if (dice_.once_in(2)) {
    *any(r->batch_ends) = number();
  } else {
    r->batch_ends.erase(r->batch_ends.begin() + static_cast<std::ptrdiff_t>(dice_.below(r->batch_ends.size())));
  }
  return r->batch_ends != before;
}
// In the expression: other scales, another block, or none.
inline bool Mutator::change_dequantize() {
  Statement* s = statement();
  if (s == nullptr || s->provenance != Provenance::kFile) return false;
  mapping::Expression* e = &s->expression;
  while (!e->parts.empty()) e = any(e->parts);
  std::vector<std::uint64_t> block(e->shape.begin(), e->shape.end());
  switch (dice_.below(5)) {
    case 3: e->product = e->product ? std::nullopt : std::optional(DType::kF32); break;
    case 0: e->op = e->op == mapping::Op::kSource ? mapping::Op::kDequantize : mapping::Op::kSource; break;
    case 1: e->scales = any(plan_.sources)->key; break;
    case 2: std::swap(e->scales, e->key); break;
    default:
      if (block.empty()) return false;
      nudge(block[dice_.below(block.size())]);
      e->shape = Shape(block);
  }
  return true;
}

}  // namespace lading::checker::naive
