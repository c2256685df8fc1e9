#include "api/mpi_group.h"

#include <chrono>
#include <utility>

#include "api/group_load.h"
#include "ranks/mpi_channel.h"

namespace lading {

using namespace std::chrono_literals;

MpiGroup::MpiGroup(std::unique_ptr<ranks::MpiWorld> world) : world_(std::move(world)) {}
MpiGroup::MpiGroup(MpiGroup&&) noexcept = default;
MpiGroup& MpiGroup::operator=(MpiGroup&&) noexcept = default;
MpiGroup::~MpiGroup() = default;

Result<std::optional<MpiGroup>> MpiGroup::join() {
  if (!ranks::is_under_mpi()) return std::optional<MpiGroup>();
  LADING_ASSIGN_OR_RETURN(auto world, ranks::MpiWorld::start(ranks::Options().silence_limit()));
  return std::optional<MpiGroup>(MpiGroup(std::move(world)));
}

std::uint64_t MpiGroup::rank() const { return world_->channel().rank(); }
std::uint64_t MpiGroup::size() const { return world_->channel().size(); }

Result<GroupReport, GroupFailure> MpiGroup::load(GroupLoadRequest request) {
  auto report = load_in_group(world_->channel(), world_->bulk(), {std::move(request), world_->node(), {}});
  has_failed_ = !report;
  return report;
}

void MpiGroup::leave() { static_cast<void>(world_->stop(has_failed_ ? 2s : 30s)); }

}  // namespace lading
