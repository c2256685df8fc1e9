// One load by the processes of one `mpirun`, each of which fills its own rank: they agree on the plan before bytes
// move, and are done together or not at all (docs/how-it-works/reliability.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lading/export.h"
#include "lading/load.h"

namespace lading {

/// Who hands bytes over to whom, where several ranks hold the same.
enum class Exchange : std::uint8_t {
  kNever,  ///< every rank reads all that it holds
  kNode,   ///< ranks of one node
  kJob,    ///< all ranks
};

struct GroupLoadRequest {
  LoadRequest load;  ///< `plan.ranks` is ignored; with an exchange, `memory` must be empty
  Exchange exchange = Exchange::kNever;
  /// A reason of this rank's own not to load, such as a ledger that cannot be written. All ranks are told of it, and
  /// none loads.
  std::optional<Error> refusal = {};
};

struct GroupReport {
  LoadReport report;             ///< of this rank
  std::uint64_t read_bytes = 0;  ///< from files, by all ranks
};

struct GroupFailure {
  LoadFailure failure;            ///< the problems are the same on all ranks
  Exit exit_code = Exit::kRanks;  ///< kRanks if another rank failed, otherwise this rank's own
  std::string error_id;
};

/// The processes of one `mpirun`, of which this is one.
class MpiGroup {
 public:
  /// Nothing: this process was not started by MPI.
  LADING_API static Result<std::optional<MpiGroup>> join();

  LADING_API MpiGroup(MpiGroup&&) noexcept;
  LADING_API MpiGroup& operator=(MpiGroup&&) noexcept;
  LADING_API ~MpiGroup();

  [[nodiscard]] LADING_API std::uint64_t rank() const;
  [[nodiscard]] LADING_API std::uint64_t size() const;

  LADING_API Result<GroupReport, GroupFailure> load(GroupLoadRequest request);
  /// Leaves the group. Call it before the process exits; the destructor does not. It waits up to 30 seconds for MPI to
  /// stop, or 2 after a failed load.
  LADING_API void leave();

 private:
  struct World;
  explicit MpiGroup(std::unique_ptr<World> world);

  std::unique_ptr<World> world_;
};

}  // namespace lading
