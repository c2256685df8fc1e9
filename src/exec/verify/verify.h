// Verify: says from the files alone what a ledger's digests must be, and compares.
//
// It goes another way than the load did: no plan, no schedule, no layout. A tensor's expression is expanded into
// pieces, its elements are cast once, and the parts that the records name are digested where they stand in the whole
// tensor. Tensors that are a key as it stands, constants and random values stream through a few megabytes per thread.
// Others are put together in memory, a window of rows at a time: window_bytes, or one row of dim 0 if that is more,
// beside one source; all threads together stay within memory_bytes, as long as a single tensor does. One call; its
// threads (exec/crew.h) end with it. A file that changes meanwhile is refused as in a load (exec/file_table.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/catalog.h"
#include "io/file.h"
#include "lading/result.h"
#include "ledger/ledger.h"

namespace lading::exec {

struct VerifyInputs {
  const checkpoint::Catalog& catalog;
  /// Into Catalog::files. Called from several threads, for different files.
  std::function<Result<io::File>(std::uint32_t file)> open;
  /// By Catalog::files. Where values differ, they tell whether the file is the one that the load read. They refuse
  /// nothing: a checkpoint that was copied is the same checkpoint.
  std::vector<io::FileIdentity> identities = {};
};

struct VerifyOptions {
  std::uint32_t threads = 0;  ///< 0: as many as help
  std::uint64_t window_bytes = std::uint64_t{256} << 20;
  std::uint64_t memory_bytes = std::uint64_t{2} << 30;  ///< for tensors that are put together, at the same time
  /// A tensor that needs more memory than this, or more bytes that no file holds, is not verified.
  std::uint64_t most_tensor_bytes = std::uint64_t{64} << 30;
  std::uint64_t most_made_bytes = std::uint64_t{128} << 30;  ///< values that no file holds, of all tensors together
  const std::atomic<bool>* cancelled = nullptr;
};

struct NotVerified {
  std::string tensor;
  std::string reason;
};

struct VerifyReport {
  std::uint64_t tensors_verified = 0;         ///< every record of them, and the records are all of the tensor
  std::uint64_t tensors_partly_verified = 0;  ///< every record, but other ranks have more of it
  std::uint64_t records_verified = 0;
  std::uint64_t read_bytes = 0;
  /// values_differ, incomplete, unverified (a digest is not there), file_changed: where ledger and files, or the ledger
  /// and itself, disagree. In the order of the ledger.
  Errors differences;
  std::vector<NotVerified> not_verified;  ///< what no file can tell, and why; in the order of the ledger

  [[nodiscard]] bool agrees() const { return differences.empty(); }
};

/// The error is that it could not be found out: files that cannot be read, no memory, cancelled. Does not throw.
[[nodiscard]] Result<VerifyReport, Errors> verify(const ledger::Ledger& ledger, const VerifyInputs& inputs,
                                                  const VerifyOptions& options = {});

}  // namespace lading::exec
