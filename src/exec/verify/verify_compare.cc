#include "exec/verify/verify_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "device/digest.h"

namespace lading::exec {
namespace {

using ledger::RegionCursor;
using ledger::Share;
using ledger::SlotDigest;

Result<std::vector<device::Digest>> digest_all(std::vector<RegionCursor> cursors, const GroupComparison& comparison,
                                               Values& values) {
  const DType storage = comparison.group.storage;
  std::vector<device::Digest> digests(cursors.size());
  for (;;) {
    std::optional<std::uint64_t> next;
    for (const RegionCursor& cursor : cursors) {
      if (!cursor.done() && (!next || cursor.begin() < *next)) next = cursor.begin();
    }
    if (!next) return digests;
    if (comparison.stopped()) return fail(Error(Code::kCancelled, "the verification stopped"));
    LADING_ASSIGN_OR_RETURN(const Window window, values.at(*next));
    const std::uint64_t end = window.begin_elem + window.elems;
    for (std::size_t i = 0; i < cursors.size(); ++i) {
      RegionCursor& cursor = cursors[i];
      while (!cursor.done() && cursor.begin() < end) {
        const std::uint64_t elems = std::min(cursor.elems(), end - cursor.begin());
        const auto bytes = window.bytes.subspan(bytes_of_elems(cursor.begin() - window.begin_elem, storage),
                                                bytes_of_elems(elems, storage));
        digests[i] += device::digest_of(bytes, bytes_of_elems(cursor.begin(), storage));
        cursor.advance(elems);
      }
    }
  }
}

// False if a record of the share has another digest than the files.
bool compare_share(const GroupComparison& comparison, const Share& share, const device::Digest& right,
                   GroupOutcome& outcome) {
  const ledger::Ledger& ledger = comparison.ledger;
  const mapping::Expression* const other = comparison.other;
  std::map<std::string, std::vector<std::uint32_t>> wrong;  // by digest
  std::uint64_t known = 0;
  for (const std::uint32_t r : share.records) {
    const auto& digest = ledger.records[r].digest;
    if (!digest) continue;
    ++known;
    if (*digest != right) wrong[digest->text()].push_back(r);
  }
  if (other == nullptr && wrong.empty()) outcome.records += known;
  for (const auto& [digest, records] : wrong) {
    const ledger::Record& first = ledger.records[records.front()];
    const std::string message =
        other == nullptr ? fmt::format("{} and the files have different values", ranks_text(ledger, records))
                         : fmt::format("{} and {} have different values", other->text(), ranks_text(ledger, records));
    outcome.differences.add(Error(Code::kValuesDiffer, message)
                                .of_tensor(ledger.tensors[first.tensor].name)
                                .on_rank(static_cast<int>(first.rank))
                                .by_rule(other == nullptr ? "" : "R50")
                                .wanted(right.text())
                                .got(digest)
                                .try_this(comparison.remedy));
  }
  return wrong.empty() && known == share.records.size();
}

}  // namespace

Result<void> compare_group(const GroupComparison& comparison, Values& values, GroupOutcome& outcome) {
  const Group& group = comparison.group;
  std::map<std::string, std::size_t> numbers;  // by region
  std::vector<RegionCursor> cursors;
  std::vector<std::vector<std::size_t>> number_of;  // by member and share, in order
  const Shape& shape = comparison.ledger.tensors[group.root].shape;
  for (const std::uint32_t t : group.members) {
    auto& of_member = number_of.emplace_back();
    for (const SlotDigest& slot : comparison.digests[t]) {
      for (const Share& share : slot.shares) {
        const ledger::RecordedRegion& region = comparison.ledger.records[share.records.front()].region;
        const auto [place, is_new] = numbers.try_emplace(ledger::code_of(region), cursors.size());
        if (is_new) cursors.emplace_back(region, shape);
        of_member.push_back(place->second);
      }
    }
  }
  LADING_ASSIGN_OR_RETURN(const std::vector<device::Digest> found, digest_all(std::move(cursors), comparison, values));
  for (std::size_t m = 0; m < group.members.size(); ++m) {
    std::size_t i = 0;
    for (const SlotDigest& slot : comparison.digests[group.members[m]]) {
      for (const Share& share : slot.shares) {
        const bool agrees = compare_share(comparison, share, found[number_of[m][i++]], outcome);
        outcome.agrees[m] = outcome.agrees[m] && agrees;
      }
    }
  }
  return {};
}

void check_digests(const ledger::Ledger& ledger, const ledger::TensorDigests& digests, const Group& group,
                   GroupOutcome& outcome) {
  if (ledger.tensors[group.root].provenance == Provenance::kKept) return;
  for (const std::uint32_t t : group.members) {
    std::vector<std::uint32_t> without;
    for (const SlotDigest& slot : digests[t]) {
      for (const Share& share : slot.shares) {
        for (const std::uint32_t r : share.records) {
          if (!ledger.records[r].digest) without.push_back(r);
        }
      }
    }
    if (without.empty()) continue;
    outcome.differences.add(
        Error(Code::kUnverified, fmt::format("no digest was taken on {}", ranks_text(ledger, without)))
            .of_tensor(ledger.tensors[t].name)
            .on_rank(static_cast<int>(ledger.records[without.front()].rank))
            .try_this("Load with digests: without --no-digests, or in Python with verify=True."));
  }
}

}  // namespace lading::exec
