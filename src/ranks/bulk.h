// Bulk: great pieces of memory from rank to rank, in place. Entries tell, Bulk carries.
//
// Nothing here blocks: a transfer is begun, and looked at until it is over. Two ranks meet in the order in which they
// begin: the first that one sends to the other is the first that the other receives from it. One thread uses it.
#pragma once

#include <cstdint>
#include <span>

#include "lading/result.h"
#include "ranks/channel.h"

namespace lading::ranks {

/// A send or a receive that was begun.
using BulkTransfer = void*;

class Bulk {
 public:
  /// No single transfer is larger.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;

  Bulk() = default;
  Bulk(const Bulk&) = delete;
  Bulk& operator=(const Bulk&) = delete;
  virtual ~Bulk() = default;

  /// The memory is used until is_over() says that it is not.
  virtual Result<BulkTransfer> send(std::uint64_t to, std::span<const std::byte> memory) = 0;
  virtual Result<BulkTransfer> receive(std::uint64_t from, std::span<std::byte> memory) = 0;
  /// True, once: the transfer is over and gone. An error: it is gone too, and its bytes did not come.
  virtual Result<bool> is_over(BulkTransfer transfer) = 0;
  /// Asks for the end of a transfer whose other side may never come. is_over() says when its memory is free again.
  virtual void take_back(BulkTransfer transfer) = 0;
};

}  // namespace lading::ranks
