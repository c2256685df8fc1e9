// Fills memory from a checkpoint: `lading::materialize(request)`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lading/dtype.h"
#include "lading/export.h"
#include "lading/plan.h"
#include "lading/provenance.h"
#include "lading/read_method.h"
#include "lading/result.h"
#include "lading/shape.h"

namespace lading {

struct Loaded;

/// One memory that a load fills: a tensor's part on a rank.
struct DestinationInfo {
  std::uint64_t rank = 0;
  std::string name;
  std::string slot;            ///< "", or the name of a second memory of the tensor ("secondary")
  std::string flat_parameter;  ///< "", or the buffer that it shares with other tensors (FSDP1)
  layout::Device device;
  Provenance provenance = Provenance::kFile;  ///< never kAlias: those are `aliases`
  std::uint32_t checkpoint = 0;               ///< kFile: 0 is the base checkpoint, n the n-th of PlanRequest::adapters
  DType dtype = DType::kF32;                  ///< of the memory
  Shape shape;                                ///< of the whole tensor
  Shape local_shape;                          ///< of this part; of a flat partition: one dim, padding included
  std::uint64_t size_bytes = 0;  ///< of the memory, padding included; of the whole flat parameter, if it lies in one
  std::vector<std::string> aliases;  ///< other names of the same storage
  /// The ranks that hold the same bytes under the same name, ascending, this one among them.
  std::shared_ptr<const std::vector<std::uint64_t>> replicas;
};

/// By destination: the rank that reads it for all that hold the same bytes; nothing: every rank reads it for itself.
using Owners = std::vector<std::optional<std::uint64_t>>;

/// A tensor's whole value in host memory, row-major, that the caller has and no file holds.
struct HostTensor {
  std::span<const std::byte> bytes;  ///< valid until materialize() returns
  DType dtype = DType::kF32;
  std::optional<Shape> shape = {};   ///< if it is known: it must be the tensor's
  std::uint64_t deferred_bytes = 0;  ///< not 0: how many `bytes` LoadRequest::deferred_value will have; here are none
};

struct LoadProgress {
  std::uint64_t done_bytes = 0;  ///< of all destinations
  std::uint64_t total_bytes = 0;
  std::uint64_t read_bytes = 0;  ///< from files
};

enum class Digests : std::uint8_t { kOn, kOff };
enum class PoisonFirst : std::uint8_t { kNo, kYes };

struct LoadReport;

struct LoadRequest {
  PlanRequest plan;  ///< what to load, and the ranks that this process fills

  /// The memory of a destination: contiguous, at least size_bytes, on its device (of a GPU: a device address), borrowed
  /// until materialize() returns. lading asks for each destination once, before it reads anything. Return the same
  /// memory for all tensors of a flat parameter. lading first waits for the caller's pending GPU work; when the call
  /// returns, the data is visible to all streams. If empty, lading allocates the memory (LoadReport::owned).
  std::function<Result<std::span<std::byte>>(const DestinationInfo&)> memory;
  /// Values of "host" and "call" tensors; a call is made when its inputs are complete. Of a call, the bytes must be
  /// valid only until the next value is asked for.
  std::function<Result<HostTensor>(const std::string& name, std::uint64_t rank)> value;
  /// The bytes of a "host" value that `value` deferred, so that not all of them need be in memory at once: each is
  /// written before the next one is asked for, and must be valid until then. `deferred` is what `value` returned.
  std::function<Result<HostTensor>(const std::string& name, std::uint64_t rank, const HostTensor& deferred)>
      deferred_value;

  /// Who reads what, as owners_of() has it; empty: this load reads everything. What another rank reads is not read
  /// here.
  Owners owners;
  /// Hands over all bytes of the destinations that a rank of this load reads for others, and takes all bytes of those
  /// that others read for it. Called once on the calling thread, when what is read here is in place and before anything
  /// is computed from it; not at all if the load has failed by then. Nothing may be written to a destination before, or
  /// after it has returned. It has to look at `cancelled` by itself. The report has its plan, tensors and `owned`.
  std::function<Result<void>(const LoadReport& so_far)> receive;

  std::uint32_t threads = 0;  ///< 0: as many as help
  ReadMethod read_method = ReadMethod::kAuto;
  Digests digests = Digests::kOn;
  PoisonFirst poison = PoisonFirst::kNo;              ///< kYes: what is not written is seen (0xA5)
  const std::atomic<bool>* cancelled = nullptr;       ///< set it from anywhere, a signal handler too
  std::function<void(const LoadProgress&)> progress;  ///< on the calling thread, a few times a second
};

/// What ledger_json() needs beside the plan. Cheap to copy.
class LoadHandle {
 public:
  LoadHandle() = default;

 private:
  friend struct Loaded;
  explicit LoadHandle(std::shared_ptr<const Loaded> loaded) : loaded_(std::move(loaded)) {}
  std::shared_ptr<const Loaded> loaded_;
};

struct LoadedTensor {
  DestinationInfo destination;
  std::span<std::byte> memory;  ///< on the destination's device: of a GPU's, only the address means something here
  std::string digest;           ///< of this part, 32 digits; "" without digests. Parts add up to the whole
                                ///< (docs/how-it-works/digests.md)
};

struct LoadReport {
  PlanReport plan;
  std::vector<LoadedTensor> tensors;  ///< by rank and name
  std::uint64_t read_bytes = 0;
  std::uint64_t staging_bytes = 0;
  std::uint32_t threads = 0;
  double planning_seconds = 0;
  double loading_seconds = 0;
  double opening_seconds = 0;         ///< of loading: taking devices and staging memory
  double closing_seconds = 0;         ///< of loading: giving them back
  std::vector<std::string> notes;     ///< fallbacks, such as a file system without O_DIRECT
  std::shared_ptr<const void> owned;  ///< the memory, where the request brought none
  LoadHandle handle;
};

struct LoadFailure {
  std::optional<Stage> refused;  ///< nothing: the plan was accepted and the load failed
  bool begun = false;            ///< destinations are incomplete, whatever they hold; false: nothing was written
  Errors problems;
  std::string ledger;  ///< what was written all the same; "" unless begun

  /// Returns 5, or the exit code of the refusal if planning failed.
  [[nodiscard]] LADING_API Exit exit_code() const;
};

/// The bill of lading: what each memory holds and which bytes of which files it came from (docs/schema/ledger.md).
LADING_API std::string ledger_json(const LoadReport& report);

/// Plans, checks the plan, and fills every destination of the ranks asked for; or says why not. May be called from
/// several threads at once. Nothing is written before the plan has been proved.
LADING_API Result<LoadReport, LoadFailure> materialize(const LoadRequest& request);

/// What a load of this plan fills, in the order in which it asks for memory.
LADING_API std::vector<DestinationInfo> destinations_of(const PlanReport& plan);

/// Who reads what, where ranks hold the same bytes (docs/guides/exchange.md): `nodes` names the node of each rank, and
/// a destination is read once on each node. In the order of destinations_of(). All ranks that hold the same bytes get
/// the same answer for them.
LADING_API Result<Owners> owners_of(const PlanReport& plan, const std::vector<std::string>& nodes);

/// How much memory of a device this process can still have.
struct AvailableMemory {
  std::optional<std::uint64_t> bytes;  ///< nothing: it cannot be found out
  std::string limit;                   ///< what sets it: "the machine's free memory", "the free memory of cuda:0", …
};
LADING_API Result<AvailableMemory> available_memory(const layout::Device& device);

/// Whether a device has so many bytes free. An error says how many it has, and what sets the limit (R64). For callers
/// that allocate destinations themselves: materialize() asks by itself for what it allocates, before it allocates
/// anything, and never for memory that the caller brings.
LADING_API Result<void> check_memory(const layout::Device& device, std::uint64_t needed_bytes);

/// The second half of materialize(), for callers that look at the plan first: fills the destinations of a plan that
/// make_plan() made. `request.plan` is not looked at.
LADING_API Result<LoadReport, LoadFailure> load_plan(const LoadRequest& request, PlanReport plan);

}  // namespace lading
