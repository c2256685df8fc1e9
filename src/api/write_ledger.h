// Where a ledger may be written: a slip of the pen must not cost another file.
#pragma once

#include <string>

#include "lading/result.h"

namespace lading {

/// Whether a ledger can be written there: nothing stands at the path, or a ledger does. A file is a ledger if all of it
/// is strict JSON whose "schema" is "lading.ledger/" and a number. Nothing is written: a load may be long, so this is
/// asked before it.
[[nodiscard]] Result<void> check_ledger_place(const std::string& path);

/// Asks the same again, and writes it in one step (io/write_file.h).
[[nodiscard]] Result<void> write_ledger(const std::string& path, const std::string& text);

}  // namespace lading
