// One load by several processes, each of which fills its own rank: they agree on the plan before bytes move, and are
// done together or not at all. Wiring between ranks::Coordinator and load_plan().
#pragma once

#include <memory>
#include <optional>

#include "lading/load.h"
#include "ranks/mpi_channel.h"
#include "ranks/note.h"

namespace lading {

struct GroupFailure {
  LoadFailure failure;  ///< the problems are the same on all ranks
  int exit_code = 7;    ///< 7: another rank failed; otherwise as LoadFailure has it
  std::string error_id;
};

/// The processes of one `mpirun`, of which this is one.
class MpiGroup {
 public:
  /// Nothing: this process was not started by MPI.
  static Result<std::optional<MpiGroup>> join();

  [[nodiscard]] std::uint64_t rank() const { return world_->channel().rank(); }
  [[nodiscard]] std::uint64_t size() const { return world_->channel().size(); }

  /// materialize() of this rank. `request.plan.ranks` is not looked at; the layout has as many ranks as there are
  /// processes.
  Result<Report, GroupFailure> load(Request request);
  /// Before the process ends.
  void leave();

 private:
  explicit MpiGroup(std::unique_ptr<ranks::MpiWorld> world) : world_(std::move(world)) {}

  std::unique_ptr<ranks::MpiWorld> world_;
  bool has_failed_ = false;
};

}  // namespace lading
