#include "lading/doctor.h"

#include <algorithm>

#include "doctor/findings.h"
#include "source/checkpoint_source.h"

namespace lading {
namespace {

using source::CheckpointSource;

std::optional<io::Residency> residency_of(const CheckpointSource& checkpoint) {
  io::Residency sum;
  for (const source::SourceFile& shard : checkpoint.shards()) {
    const auto file = checkpoint.open_file(shard);
    if (!file) return std::nullopt;
    const auto found = io::residency(*file, {0, file->size_bytes()});
    if (!found) return std::nullopt;
    sum.resident_pages += found->resident_pages;
    sum.pages += found->pages;
  }
  return sum;
}

// The largest shard stands for all.
Result<io::PlaceFacts> look_at_shards(const CheckpointSource& checkpoint) {
  const auto& shards = checkpoint.shards();
  const auto largest = std::max_element(shards.begin(), shards.end(), [](const auto& a, const auto& b) {
    return a.identity.size_bytes < b.identity.size_bytes;
  });
  LADING_ASSIGN_OR_RETURN(const io::File file, checkpoint.open_file(*largest));
  return io::look_at_file(file);
}

}  // namespace

Result<std::vector<Finding>> examine_machine(const DoctorRequest& request) {
  if (request.path.empty() || request.path.find('\0') != std::string::npos)
    return fail(
        Error(Code::kUsage, "the path is empty or contains a NUL").in_file(request.path).try_this("Correct the path."));
  doctor::Facts facts;
  if (const auto checkpoint = CheckpointSource::open(request.path, {})) {
    doctor::CheckpointFacts& found = facts.checkpoint.emplace();
    for (const source::SourceFile& shard : checkpoint->shards()) found.size_bytes += shard.identity.size_bytes;
    found.residency = residency_of(*checkpoint);
    LADING_ASSIGN_OR_RETURN(facts.place, look_at_shards(*checkpoint));
  } else {
    LADING_ASSIGN_OR_RETURN(facts.place, io::look_at_place(request.path));
    // A directory without a checkpoint is a place to put one. A file of another format is refused at its first bytes.
    const Error& reason = checkpoint.error().front();
    const bool is_place = reason.code == Code::kNotACheckpoint && !reason.bytes;
    facts.checkpoint_is_refused = !is_place;
  }
  facts.machine = io::look_at_machine();
  facts.gpus = device::survey_gpus();
  return doctor::diagnose(facts);
}

}  // namespace lading
