// Offers: what a destination's transfers really write, in the order of the buffer. The checker compares them
// with what expression and placement demand.
#pragma once

#include <cstdint>
#include <vector>

#include "checker/plan_types.h"
#include "checker/trace.h"
#include "lading/result.h"

namespace lading::checker {

/// Consecutive elements of a buffer, and where a transfer takes them from.
struct Offer {
  std::uint64_t target = 0;
  Origin origin;
};

/// Transfers to one buffer, and what that is like. A comparison is of the same form: it is compared, not written.
struct OfferedTransfers {
  const Plan& plan;
  const std::vector<Transfer>& transfers;
  std::uint64_t buffer_bytes = 0;
  DType storage = DType::kF32;
};

/// Merges transfers whose targets may interleave. Memory: one odometer per transfer, whatever it moves;
/// more where its own loops interleave in the buffer.
class Offers {
 public:
  /// Refuses transfers that leave their tensor, the file or the buffer, move nothing, stand still in the buffer, or cut
  /// inside a byte or an element.
  Result<void> reset(const OfferedTransfers& offered);

  /// The next elements by target; false if there are none left. Overlaps come out as a target below the
  /// previous one's end.
  bool pull(Offer& offer);

  /// Passes over elements that go on just like those pulled last: as many, next in the buffer, `source_step` behind in
  /// the source. At most `most` times; says how often.
  std::uint64_t pass(const Offer& last, std::uint64_t source_step, std::uint64_t most);

 private:
  struct Level {
    std::uint64_t count = 1;
    std::uint64_t target_step = 0;
    std::uint64_t source_step = 0;
    std::uint64_t done = 0;
  };
  // A transfer as an odometer: the innermost `origin.count` elements are contiguous in the buffer.
  struct Stream {
    std::uint64_t target = 0;
    Origin origin;
    std::vector<Level> levels;  // innermost first; the target grows with every tick
  };
  struct Place {
    std::uint64_t target = 0;
    std::size_t stream = 0;
  };

  Result<void> add(const OfferedTransfers& offered, const Transfer& transfer);
  Result<void> untangle(Stream stream);
  static bool advance(Stream& stream);

  std::vector<Stream> streams_;  // by first target
  std::size_t next_ = 0;         // the first that is not active yet
  std::vector<Place> active_;    // a heap, the lowest target on top
  std::size_t last_ = 0;         // the stream that was pulled last
};

}  // namespace lading::checker
