#include "lading/mpi.h"

#include <chrono>
#include <utility>

#include "api/group_load.h"
#include "ranks/mpi_channel.h"

namespace lading {

using namespace std::chrono_literals;

struct MpiGroup::World {
  std::unique_ptr<ranks::MpiWorld> mpi;
  bool has_failed = false;
};

MpiGroup::MpiGroup(std::unique_ptr<World> world) : world_(std::move(world)) {}
MpiGroup::MpiGroup(MpiGroup&&) noexcept = default;
MpiGroup& MpiGroup::operator=(MpiGroup&&) noexcept = default;
MpiGroup::~MpiGroup() = default;

Result<std::optional<MpiGroup>> MpiGroup::join() {
  if (!ranks::is_under_mpi()) return std::optional<MpiGroup>();
  LADING_ASSIGN_OR_RETURN(auto world, ranks::MpiWorld::start(ranks::Options().silence_limit()));
  return std::optional<MpiGroup>(MpiGroup(std::make_unique<World>(World{std::move(world)})));
}

std::uint64_t MpiGroup::rank() const { return world_->mpi->channel().rank(); }
std::uint64_t MpiGroup::size() const { return world_->mpi->channel().size(); }

Result<GroupReport, GroupFailure> MpiGroup::load(GroupLoadRequest request) {
  ranks::MpiWorld& mpi = *world_->mpi;
  auto report = load_in_group(mpi.channel(), mpi.bulk(), {std::move(request), mpi.node(), {}});
  world_->has_failed = !report;
  return report;
}

void MpiGroup::leave() { static_cast<void>(world_->mpi->stop(world_->has_failed ? 2s : 30s)); }

}  // namespace lading
