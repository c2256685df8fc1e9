// What a ledger says about itself: the digest of each whole tensor, put together from the ranks' parts, whether
// replicas agree, and whether anything is missing. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ledger/ledger.h"

namespace lading::ledger {

/// The records of a tensor in one slot that have the same region: replicas of each other.
struct Share {
  std::vector<std::uint32_t> records;    ///< into Ledger::records; at least one
  std::optional<device::Digest> digest;  ///< of the first that has one
  bool agree = true;                     ///< false: not all digests that are there are equal
};

enum class Coverage : std::uint8_t {
  kWhole,    ///< the shares tile the tensor
  kPartial,  ///< they do not, or it could not be shown
};

struct SlotDigest {
  std::string slot;
  std::vector<Share> shares;  ///< by region
  Coverage coverage = Coverage::kPartial;
  /// Of the whole tensor: kWhole, every share has a digest, and all agree.
  std::optional<device::Digest> digest;
};

/// By tensor and slot; a tensor that has no record has no slot here.
using TensorDigests = std::vector<std::vector<SlotDigest>>;

[[nodiscard]] TensorDigests tensor_digests(const Ledger& ledger);

/// Replicas that differ, and slots of a tensor that differ as a whole: one error each, with the ranks.
[[nodiscard]] Errors disagreements(const Ledger& ledger, const TensorDigests& digests);

struct RecordAudit {
  Errors errors;
  /// By tensor: a record claims another part, or more bytes, than the rest of the ledger allows. What it says of the
  /// values means nothing then.
  std::vector<bool> misfits;
};

/// Memory that the placements give a rank of the ledger and that has no record (R1), records of memory that they do not
/// give it, records whose region is another one than the placement's, and records that are not complete (R11).
[[nodiscard]] RecordAudit check_records(const Ledger& ledger);

/// "0, 1, 2 and 5 more": for messages.
[[nodiscard]] std::string ranks_text(const Ledger& ledger, const std::vector<std::uint32_t>& records);

}  // namespace lading::ledger
