// The ranks of one `mpirun`: entries and bytes over MPI, through liblading_mpi.so, which is opened only here.
#pragma once

#include <memory>
#include <string>

#include "lading/result.h"
#include "ranks/bulk.h"
#include "ranks/channel.h"

namespace lading::ranks {

/// Whether a launcher of MPI started this process (Open MPI, or one that speaks PMI or PMIx).
[[nodiscard]] bool is_under_mpi();

/// Its channel, and MPI itself until it is destroyed.
class MpiWorld {
 public:
  /// Once per process. ranks/mpi_places.h says where the plugin is looked for.
  static Result<std::unique_ptr<MpiWorld>> start(Time answer_timeout);

  MpiWorld() = default;
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;
  virtual ~MpiWorld() = default;

  [[nodiscard]] virtual Channel& channel() = 0;
  [[nodiscard]] virtual Bulk& bulk() = 0;
  /// The machine that this rank runs on: ranks with the same name share one.
  [[nodiscard]] virtual std::string node() const = 0;
  /// Ends MPI, together with the others; false: one of them did not come within `patience`.
  virtual bool stop(Time patience) = 0;
};

}  // namespace lading::ranks
