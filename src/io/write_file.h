// Writing a file in one step: the new content stands at its name whole, or not at all.
//
// The content goes to a file without a name (O_TMPFILE) in the same folder, is synced, and is then linked to its name,
// so that not even SIGKILL leaves a part of it. A file system without O_TMPFILE gets a file of an unpredictable name
// that is renamed; it is removed after an error, and signals that would end the process wait until it is renamed or
// removed. No symbolic link is followed at either name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lading/result.h"

namespace lading::io {

enum class Overwrite : std::uint8_t {
  kNever,        ///< nothing may stand at the name, not even a link that leads nowhere
  kRegularFile,  ///< a regular file gives way
};

enum class Temporary : std::uint8_t {
  kUnnamed,  ///< where the file system can; otherwise named
  kNamed,
};

struct WriteOptions {
  Overwrite overwrite = Overwrite::kNever;
  Temporary temporary = Temporary::kUnnamed;
};

enum class Standing : std::uint8_t { kNothing, kRegularFile };

/// What stands at the name. A link, a directory, a FIFO or a device is kWriteFailed, and so is a folder without
/// permission.
[[nodiscard]] Result<Standing> what_stands_at(const std::string& path);

/// kWriteFailed, with the system's reason. Whatever stood at the name stays then.
[[nodiscard]] Result<void> write_file(const std::string& path, std::string_view content, const WriteOptions& options);

}  // namespace lading::io
