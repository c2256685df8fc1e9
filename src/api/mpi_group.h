// The processes of one `mpirun`, each of which fills its own rank. For the command line: api/group_load.h has the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lading/load.h"

namespace lading {

namespace ranks {
class MpiWorld;
}

/// Who hands bytes over to whom, where several ranks hold the same.
enum class Exchange : std::uint8_t {
  kNever,  ///< every rank reads all that it holds
  kNode,   ///< ranks of one node
  kJob,    ///< all ranks
};

struct GroupLoadRequest {
  Request load;  ///< `load.plan.ranks` is not looked at; with an exchange it brings no memory
  Exchange exchange = Exchange::kNever;
  /// A reason of this rank's own not to load, such as a ledger that cannot be written. All ranks are told of it, and
  /// none loads.
  std::optional<Error> refusal = {};
};

struct GroupReport {
  Report report;                 ///< of this rank
  std::uint64_t read_bytes = 0;  ///< from files, by all ranks
};

struct GroupFailure {
  LoadFailure failure;            ///< the problems are the same on all ranks
  Exit exit_code = Exit::kRanks;  ///< another rank failed; otherwise as LoadFailure has it
  std::string error_id;
};

/// The processes of one `mpirun`, of which this is one.
class MpiGroup {
 public:
  /// Nothing: this process was not started by MPI.
  static Result<std::optional<MpiGroup>> join();

  MpiGroup(MpiGroup&&) noexcept;
  MpiGroup& operator=(MpiGroup&&) noexcept;
  ~MpiGroup();

  [[nodiscard]] std::uint64_t rank() const;
  [[nodiscard]] std::uint64_t size() const;

  Result<GroupReport, GroupFailure> load(GroupLoadRequest request);
  /// Before the process ends.
  void leave();

 private:
  explicit MpiGroup(std::unique_ptr<ranks::MpiWorld> world);

  std::unique_ptr<ranks::MpiWorld> world_;
  bool has_failed_ = false;
};

}  // namespace lading
