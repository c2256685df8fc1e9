// The executor: turns a checked plan into bytes in place.
//
// One call, one load. Its threads live as long as the call, so loads at the same time, and in a forked child, do not
// know of each other. Memory beside the destinations: a few staging buffers per thread, within the plan's figure (R64).
// After an error everything that was begun is finished before the call returns, and the outcome says which
// destinations are complete: those whose bytes were all written. Nobody is told "loaded" who is not.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/device.h"
#include "io/choose.h"
#include "io/file.h"
#include "lading/result.h"
#include "plan/plan.h"

namespace lading::exec {

/// The memory of a destination, contiguous, of buffer_bytes, on the destination's device. Borrowed. Destinations of one
/// flat parameter name the same memory.
struct DestinationMemory {
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  bool received = false;  ///< Inputs::receive writes all of it, nobody else does
};

/// A whole tensor, row-major, in host memory. Borrowed while the call that asked for it runs.
struct HostValue {
  const std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  DType dtype = DType::kF32;

  /// It has a size and no bytes yet: Inputs::deferred_value has them.
  [[nodiscard]] bool is_deferred() const { return data == nullptr && size_bytes > 0; }
};

/// The error of a value that is asked for where nobody can answer.
Error nobody_hands_in();

struct Progress {
  std::uint64_t done_bytes = 0;  ///< of the destinations
  std::uint64_t total_bytes = 0;
  std::uint64_t read_bytes = 0;  ///< from files
};

enum class Verify : std::uint8_t { kOff, kDigest };
enum class Poison : std::uint8_t { kOff, kOn };

struct Options {
  std::uint32_t threads = 0;               ///< 0: as many as help
  std::uint64_t staging_buffer_bytes = 0;  ///< 0: what suits the device
  Verify verify = Verify::kDigest;
  Poison poison = Poison::kOff;  ///< kOn: every byte that the plan defines is overwritten with kPoison first (R3)
  ReadMethod method = ReadMethod::kAuto;
  io::ReadBackend* backend = nullptr;             ///< for tests: instead of what is chosen
  const std::atomic<bool>* cancelled = nullptr;   ///< looked at between reads
  std::function<void(const Progress&)> progress;  ///< called by the calling thread, a few times a second
};
inline constexpr std::uint8_t kPoison = 0xA5;

struct Inputs {
  const plan::Plan& plan;                              ///< checked
  std::vector<std::vector<DestinationMemory>> memory;  ///< by Plan::ranks and their destinations
  std::function<Result<io::File>(plan::FileId file)> open;
  /// Values of kHost statements, by name, before anything is written; of kCall statements, once their inputs are
  /// complete. Of kCall, the bytes are borrowed until the next value is asked for.
  std::function<Result<HostValue>(const plan::Statement& statement, std::uint64_t rank)> value;
  /// Hands over to other loads what they receive from this one, and takes what is received. Called once by the calling
  /// thread, when everything that this load reads is written, and before calls and digests of what was received.
  std::function<Result<void>()> receive = nullptr;
  /// The bytes of a kHost value that `value` deferred, so that the caller need not have all of them at once. Each is
  /// written before the next one is asked for, and borrowed until then.
  std::function<Result<HostValue>(const plan::Statement& statement, std::uint64_t rank, const HostValue& deferred)>
      deferred_value = nullptr;
};

/// One memory to be filled: a destination of a rank.
struct DestinationRef {
  std::uint32_t rank = 0;  ///< into Plan::ranks
  plan::DestinationId destination = 0;
};

/// All destinations of all ranks, in order.
[[nodiscard]] std::vector<DestinationRef> destinations_of(const plan::Plan& plan);

struct DestinationOutcome {
  std::uint64_t written_bytes = 0;
  std::uint64_t expected_bytes = 0;  ///< padding that the plan defines included
  device::Digest digest;             ///< of the owned elements, padding aside; zero without Verify::kDigest

  [[nodiscard]] bool complete() const { return written_bytes == expected_bytes; }
};

struct Outcome {
  std::vector<DestinationRef> destinations;
  std::vector<DestinationOutcome> outcomes;  ///< by destination
  std::uint64_t read_bytes = 0;
  std::uint64_t staging_bytes = 0;
  std::uint32_t threads = 0;
  double opening_seconds = 0;      ///< of devices and lanes, before the first read
  double closing_seconds = 0;      ///< of lanes, after the last write
  std::vector<std::string> notes;  ///< what was done in another way than wanted, each once
  bool begun = false;              ///< false: refused before a byte was written
  Errors errors;                   ///< empty: every destination is complete
};

/// Does not throw.
[[nodiscard]] Outcome execute(const Inputs& inputs, const Options& options);

}  // namespace lading::exec
