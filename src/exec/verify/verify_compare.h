// The digests in a ledger's records against those of the values that the files make. For verify.cc only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "exec/verify/verify_groups.h"
#include "exec/verify/verify_values.h"
#include "ledger/audit.h"
#include "ledger/ledger.h"

namespace lading::exec {

/// What became of a group. Each is written by one thread.
struct GroupOutcome {
  Errors differences;
  std::string reason;  ///< not empty: the group could not be verified, and why
  std::uint64_t records = 0;
  std::vector<bool> agrees;  ///< by member
};

/// Borrowed.
struct GroupComparison {
  const ledger::Ledger& ledger;
  const ledger::TensorDigests& digests;
  const Group& group;
  const mapping::Expression* other = nullptr;  ///< a key of the tie class that must hold the same (R50)
  const std::string& remedy;                   ///< told with values that differ
  const std::function<bool()>& stopped;        ///< looked at between windows
};

/// Each part that some record holds is digested once, however many hold it. Fails if the values cannot be had, or when
/// it was stopped (kCancelled).
Result<void> compare_group(const GroupComparison& comparison, Values& values, GroupOutcome& outcome);

/// Every record has a digest, unless its value was only kept.
void check_digests(const ledger::Ledger& ledger, const ledger::TensorDigests& digests, const Group& group,
                   GroupOutcome& outcome);

}  // namespace lading::exec
