// Whether ranks hand bytes to each other instead of reading them all: the facts, and the choice
// (docs/guides/exchange.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lading {

/// Between which ranks bytes are handed over.
enum class ExchangeScope : std::uint8_t {
  kNever,
  kNode,  ///< ranks of one machine
  kJob,   ///< all ranks
  kAuto,  ///< all ranks, if measured speeds say that it is clearly faster
};

/// What the ranks have told each other. Lists are by rank of the mesh.
struct ExchangeFacts {
  ExchangeScope scope = ExchangeScope::kNode;
  std::vector<std::string> nodes;  ///< names of the ranks' machines
  /// Bytes per second, of kAuto: from files while all ranks read at once, and in a broadcast to all ranks. Empty: not
  /// measured yet.
  std::vector<double> read_speeds;
  std::vector<double> sent_speeds;
  /// Of kAuto: a checkpoint with fewer bytes is not worth a measurement.
  std::uint64_t least_bytes = 64ULL << 20;
};

/// Follows from the plan and the facts alone, so all ranks come to the same one.
struct ExchangeChoice {
  enum class Verdict : std::uint8_t { kNo, kYes, kMeasure };
  Verdict verdict = Verdict::kNo;  ///< kMeasure: ask again with speeds
  std::vector<std::string> nodes;  ///< kYes, by rank: between ranks of one name bytes are handed over
  std::string note;                ///< why, for the report; "" if the caller's word decided
};

}  // namespace lading
