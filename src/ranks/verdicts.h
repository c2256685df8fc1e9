// The texts of failures. Pure.
#pragma once

#include "ranks/channel.h"
#include "ranks/coordinator.h"
#include "ranks/entry.h"

namespace lading::ranks {

/// What one rank says in a step.
[[nodiscard]] RankReport report_of(std::uint64_t rank, const std::vector<Field>& fields, const Failure* failure);
/// The failure of one rank, as all are told it.
[[nodiscard]] Verdict failure_of(std::uint64_t rank, const Failure& failure);
/// Of a difference, or of what ranks told; agreed if there is neither.
[[nodiscard]] Verdict verdict_of(const RankReport& all, std::uint64_t size);

[[nodiscard]] Verdict no_sign_of_life(const RankSet& silent, Time since);
[[nodiscard]] Verdict did_not_come(const RankSet& silent, const std::string& step, Time timeout);
[[nodiscard]] Verdict overslept(std::uint64_t rank, Time gap);
[[nodiscard]] Verdict stalled(std::uint64_t rank, Time since, Activity activity);
[[nodiscard]] Verdict twins(std::uint64_t rank);
[[nodiscard]] Verdict other_world(std::uint64_t rank, std::uint64_t size, const std::string& theirs);
/// The same text on every rank that cannot reach the store any more.
[[nodiscard]] Verdict no_store();

[[nodiscard]] Error unreadable_note(std::uint64_t rank);

}  // namespace lading::ranks
