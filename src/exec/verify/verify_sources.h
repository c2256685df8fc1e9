// The files, keys and sources that a ledger names, against the checkpoint's. For verify.cc only. Pure.
#pragma once

#include <string>

#include "checkpoint/catalog.h"
#include "exec/verify/verify.h"
#include "ledger/ledger.h"

namespace lading::exec {

/// Files of the ledger that the checkpoint does not have, or has in another size (file_changed). Inodes and times are
/// not compared: a copy of the checkpoint is as good.
[[nodiscard]] Errors check_files(const ledger::Ledger& ledger, const checkpoint::Catalog& catalog);

/// Adds where the keys of a tensor are not what was loaded. False if it cannot be made of what the catalog has.
[[nodiscard]] bool check_sources(const ledger::Ledger& ledger, const checkpoint::Catalog& catalog,
                                 const ledger::Tensor& tensor, Errors& differences);

/// Keys of the checkpoint that the ledger does not account for (R38).
void account_for_keys(const ledger::Ledger& ledger, const checkpoint::Catalog& catalog, Errors& differences);

/// What to tell where a tensor's values differ: its first file that is not the one that the load read, or was written
/// to since. Empty: by inode and time they are the same files, or nobody knows.
[[nodiscard]] std::string changed_since_load(const ledger::Ledger& ledger, const VerifyInputs& inputs,
                                             const ledger::Tensor& tensor);

}  // namespace lading::exec
