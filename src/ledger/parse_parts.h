// The two halves of a ledger, read: parse_tensors.cc and parse_records.cc. Inside this room only.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "base/json_fields.h"
#include "layout/layout_json.h"
#include "ledger/ledger.h"

namespace lading::ledger {

/// From a checkpoint and a file's name in it to its place in Ledger::files, whose names it borrows.
using FileNumbers = std::map<std::pair<std::uint32_t, std::string_view>, std::uint32_t>;

/// Mesh and files are known, and good.
void read_tensors(JsonFields& fields, const FileNumbers& files, Ledger& ledger, Errors& errors);

/// Everything else is known, and good.
void read_records(JsonFields& fields, Ledger& ledger, Errors& errors);

}  // namespace lading::ledger
