// A model in parts that are in memory one or two at a time: a layout whose ranks hold about so many bytes each. Pure.
//
// Ranks form groups. Within a group large tensors are cut, row by row, into as many equal stretches as it has ranks; a
// small tensor is whole on one of them. A group holds tensors that follow each other by name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "layout/layout.h"
#include "model/skeleton.h"

namespace lading::planner {

/// Names of tensors that every rank has whole that has a part of another tensor: by that one's name.
using Followers = std::map<std::string, std::vector<std::string>, std::less<>>;

/// A rank holds about `part_bytes` at most, unless that needs more ranks than a save can have, or a tensor of packed
/// elements is larger, which is not cut.
[[nodiscard]] layout::Layout cut_into_parts(const model::Skeleton& skeleton, std::uint64_t part_bytes,
                                            const Followers& followers = {});

}  // namespace lading::planner
