// One load by several processes, each of which fills its own rank: they agree on the plan before bytes move, and are
// done together or not at all. What several ranks hold alike can be read by one of them for all (docs/exchange.md).
// Wiring between ranks::Coordinator, ranks::exchange() and load_plan().
#pragma once

#include <memory>
#include <optional>

#include "lading/load.h"
#include "ranks/bulk.h"
#include "ranks/coordinator.h"
#include "ranks/mpi_channel.h"
#include "ranks/note.h"

namespace lading {

/// Who hands bytes over to whom, where several ranks hold the same.
enum class Exchange : std::uint8_t {
  kNever,  ///< every rank reads all that it holds
  kNode,   ///< ranks of one node
  kJob,    ///< all ranks
};

struct GroupRequest {
  Request load;  ///< `load.plan.ranks` is not looked at; with an exchange it brings no memory
  Exchange exchange = Exchange::kNever;
  std::string node;        ///< that this rank is on
  ranks::Options options;  ///< deadlines
  /// A reason of this rank's own not to load, such as a ledger that cannot be written. All ranks are told of it, and
  /// none loads.
  std::optional<Error> refusal = {};
};

struct GroupReport {
  Report report;                 ///< of this rank
  std::uint64_t read_bytes = 0;  ///< from files, by all ranks
};

struct GroupFailure {
  LoadFailure failure;  ///< the problems are the same on all ranks
  int exit_code = 7;    ///< 7: another rank failed; otherwise as LoadFailure has it
  std::string error_id;
};

/// materialize() of one rank among others, which all call this. The layout has as many ranks as the channel.
Result<GroupReport, GroupFailure> load_in_group(ranks::Channel& channel, ranks::Bulk& bulk, GroupRequest request);

/// The processes of one `mpirun`, of which this is one.
class MpiGroup {
 public:
  /// Nothing: this process was not started by MPI.
  static Result<std::optional<MpiGroup>> join();

  [[nodiscard]] std::uint64_t rank() const { return world_->channel().rank(); }
  [[nodiscard]] std::uint64_t size() const { return world_->channel().size(); }

  /// The node is MPI's word.
  Result<GroupReport, GroupFailure> load(GroupRequest request);
  /// Before the process ends.
  void leave();

 private:
  explicit MpiGroup(std::unique_ptr<ranks::MpiWorld> world) : world_(std::move(world)) {}

  std::unique_ptr<ranks::MpiWorld> world_;
  bool has_failed_ = false;
};

}  // namespace lading
