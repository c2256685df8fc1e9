// For tests: changes to the reads of a plan, as a wrong schedule would make them. Totals are kept right, so that no sum
// gives a change away.
#pragma once

#include "checker/check_mutations_for_tests.h"

namespace lading::checker::naive {

inline void Mutator::add_up(RankPlan& rank) {
  rank.read_bytes = 0;
  for (const Read& read : rank.reads) rank.read_bytes += read.total_bytes();
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

}  // namespace lading::checker::naive
