// The note that each process leaves in the temporary directory of a save: what it has written. `lading.save_part/1`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "exec/save/write_files.h"
#include "lading/result.h"

namespace lading {

struct SavePart {
  std::string plan;  ///< digest of the save plan
  std::vector<std::uint64_t> ranks;
  std::vector<exec::WrittenKey> keys;
};

/// The name of the note of a process whose first rank is this one.
[[nodiscard]] std::string part_name(std::uint64_t first_rank);
[[nodiscard]] bool is_part_name(std::string_view name);

[[nodiscard]] std::string part_json(const SavePart& part);
/// Sources are below `source_count`.
Result<SavePart, Errors> parse_part(const JsonDocument& document, std::size_t source_count);

}  // namespace lading
