// Compares what a load left in memory with the files it came from: `lading::verify(request)`.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lading/checkpoint.h"
#include "lading/document.h"
#include "lading/export.h"
#include "lading/refusal.h"
#include "lading/result.h"

namespace lading {

struct VerifyRequest {
  CheckpointRef checkpoint = {};
  std::vector<CheckpointRef> adapters = {};  ///< one for each adapter of the ledgers, in their order
  std::vector<Document> ledgers = {};        ///< of one load: one, or one per process
  std::uint32_t threads = 0;                 ///< 0: as many as help
  const std::atomic<bool>* cancelled = nullptr;
};

struct Verification {
  std::uint64_t tensors_verified = 0;
  std::uint64_t tensors_partly_verified = 0;  ///< the ledger has not all ranks: what it has agrees
  std::uint64_t records_verified = 0;         ///< parts of tensors on ranks
  std::uint64_t read_bytes = 0;
  Errors differences;                                             ///< empty: memory and files agree
  std::vector<std::pair<std::string, std::string>> not_verified;  ///< tensors that no file holds, and why

  [[nodiscard]] Exit exit_code() const { return differences.empty() ? Exit::kOk : Exit::kDiffers; }
};

/// The digests in the ledger were taken from memory, part by part; here they are worked out from the files alone,
/// without plan or layout. The error says why that could not be done.
LADING_API Result<Verification, Refusal> verify(const VerifyRequest& request);

}  // namespace lading
