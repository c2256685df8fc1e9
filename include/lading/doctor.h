// What this machine has for loading, what it lacks, and what that costs: `lading::examine_machine(request)`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lading/export.h"
#include "lading/result.h"

namespace lading {

enum class FindingLevel : std::uint8_t {
  kGood,     ///< nothing is lost
  kSlower,   ///< loads work, and take longer than they could
  kMissing,  ///< something that loads may need is not there
  kUnknown,  ///< could not be found out
};

/// "good", "slower", "missing", "unknown"
[[nodiscard]] LADING_API std::string_view word(FindingLevel level);

/// Texts may hold names from this machine (of GPUs, of file systems): escape them where they are shown.
struct Finding {
  std::string id;  ///< "io_uring"; docs/schema/doctor.md lists them
  FindingLevel level = FindingLevel::kUnknown;
  std::string found;
  std::string cost;    ///< of what is not good, or a word on what is; may be empty
  std::string remedy;  ///< what to do about it; empty: nothing, or nothing is known
};

struct DoctorRequest {
  std::string path = ".";  ///< a directory, a file, or a checkpoint as inspect() takes it
};

/// Looks at this machine and at the path's file system. Tries things: sets up a ring of io_uring, and reads a block
/// with O_DIRECT from the checkpoint, or from a temporary file without a name in the directory, or from a file beneath
/// it. Fails only if there is nothing at the path (kNotFound, kOpenFailed), or if it is no path (kUsage).
LADING_API Result<std::vector<Finding>> examine_machine(const DoctorRequest& request);

}  // namespace lading
