// Ranks that hold the same bytes compare digests of them: one step where they are the same, and a few more that find
// the tensors where they are not (R17).
//
//   LADING_TRY(agree_replicas(ranks, sets));    "tensor a.weight: … 3f… on ranks 0-2; 77… on rank 3"
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ranks/coordinator.h"

namespace lading::ranks {

struct ReplicaDigest {
  std::string name;  ///< of the tensor
  std::string slot;
  std::string digest;
  bool is_kept = false;  ///< a value that was there before the load
};

/// What a load has done to the model by the time that replicas are compared.
enum class ModelState : std::uint8_t { kAsItWas, kWritten };

/// What some ranks hold alike.
struct ReplicaSet {
  RankSet ranks;                       ///< this one among them
  std::vector<ReplicaDigest> digests;  ///< in an order that all of them share
};

/// The sets that this rank is in; none is fine. After a load, however long the others take for theirs. `fields` are
/// told on the way, and are in the verdict. Well on all ranks, or a failure that names tensors and ranks, at most
/// sixteen per set.
Result<Verdict, Verdict> agree_replicas(Coordinator& ranks, const std::vector<ReplicaSet>& sets,
                                        std::vector<Field> fields = {}, ModelState state = ModelState::kWritten);

}  // namespace lading::ranks
