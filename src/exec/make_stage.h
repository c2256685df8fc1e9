// The stages of a load that need no file: constants, padding, random initial values, values handed in, calls, and what
// other loads have read.
#pragma once

#include "exec/load.h"

namespace lading::exec {

/// Overwrites every byte that the plan defines, so that one that is forgotten shows (R3).
void poison(const Load& load);

/// Asks for values that the caller hands in, before anything is read: one that is missing need not wait for the files.
void fetch_values(const Load& load);

/// Asks for the values that the caller deferred, and writes each before it asks for the next one.
void make_deferred_values(const Load& load);

/// Constants, padding, random values and all other values that the caller hands in.
void make_values(const Load& load);

/// Lets the caller exchange with other loads what was read once for all of them.
void receive(const Load& load);

/// Values computed from others, each when its inputs are complete (R66).
void run_calls(const Load& load);

/// The digests of destinations that were not written side by side, and of values that were kept.
void digest_rest(const Load& load);

}  // namespace lading::exec
