#include "exec/verify/verify_sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/text.h"

namespace lading::exec {
namespace {

using checkpoint::Catalog;
using checkpoint::CatalogTensor;
using ledger::Ledger;
using ledger::Tensor;

std::optional<std::uint32_t> find_file(const Catalog& catalog, const ledger::File& file) {
  const auto& files = catalog.files;
  const auto found = std::lower_bound(files.begin(), files.end(), file, [](const auto& a, const auto& b) {
    return std::tie(a.checkpoint, a.name) < std::tie(b.checkpoint, b.name);
  });
  if (found == files.end() || found->checkpoint != file.checkpoint || found->name != file.name) return std::nullopt;
  return static_cast<std::uint32_t>(found - files.begin());
}

}  // namespace

Errors check_files(const Ledger& ledger, const Catalog& catalog) {
  Errors differences;
  for (const ledger::File& file : ledger.files) {
    const auto number = find_file(catalog, file);
    const auto differs = [&](std::string_view what, std::string wanted, std::string got) {
      differences.add(Error(Code::kFileChanged, fmt::format("the file is not the one that was loaded: {}", what))
                          .in_file(file.name)
                          .by_rule("R45")
                          .wanted(std::move(wanted))
                          .got(std::move(got)));
    };
    if (!number) {
      differs("the checkpoint has no file of this name", "", "");
    } else if (const std::uint64_t size_bytes = catalog.files[*number].size_bytes; size_bytes != file.size_bytes) {
      differs("it has another size", fmt::format("{} bytes", file.size_bytes), fmt::format("{} bytes", size_bytes));
    }
  }
  return differences;
}

bool check_sources(const Ledger& ledger, const Catalog& catalog, const Tensor& tensor, Errors& differences) {
  bool usable = true;
  for (const ledger::Source& source : tensor.sources) {
    const CatalogTensor* const found = catalog.find(source.key, tensor.checkpoint);
    const auto differs = [&](std::string message, std::string wanted, std::string got) {
      differences.add(Error(Code::kValuesDiffer, fmt::format("{}: {}", quote(source.key), message))
                          .of_tensor(tensor.name)
                          .in_file(ledger.files[source.file].name)
                          .by_rule("R38")
                          .wanted(std::move(wanted))
                          .got(std::move(got)));
    };
    if (found == nullptr) {
      differs("the checkpoint no longer has the key", "", "");
      usable = false;
    } else if (found->dtype != source.dtype || found->shape != source.shape) {
      differs(
          "the key has another dtype or shape", fmt::format("{} {}", name(source.dtype), source.shape.text()),
          fmt::format("{} {}", found->dtype ? name(*found->dtype) : quote(found->unknown_dtype), found->shape.text()));
      usable = false;
    } else if (catalog.files[found->file].name != ledger.files[source.file].name || found->bytes != source.bytes) {
      differs("the key is at other bytes", fmt::format("bytes {} to {}", source.bytes.begin, source.bytes.end),
              fmt::format("bytes {} to {} of {}", found->bytes.begin, found->bytes.end,
                          quote(catalog.files[found->file].name)));
    }
  }
  return usable;
}

// Both sides are accounted for: a key that the ledger does not know was left out by somebody.
void account_for_keys(const Ledger& ledger, const Catalog& catalog, Errors& differences) {
  std::set<std::pair<std::uint32_t, std::string_view>> known;  // by checkpoint
  for (const Tensor& tensor : ledger.tensors) {
    for (const ledger::Source& source : tensor.sources) known.emplace(tensor.checkpoint, source.key);
  }
  for (const auto& [key, rule] : ledger.ignored_keys) known.emplace(0, key);
  for (const std::string& key : ledger.unexpected_keys) known.emplace(0, key);
  for (const plan::IgnoredAdapterKey& ignored : ledger.ignored_adapter_keys)
    known.emplace(ignored.checkpoint, ignored.key);
  for (const CatalogTensor& tensor : catalog.tensors) {
    if (known.contains({catalog.files[tensor.file].checkpoint, tensor.name})) continue;
    if (differences.is_full()) {
      differences.count_not_listed(1);
      continue;
    }
    differences.add(Error(Code::kUnverified, "the checkpoint has a key that the ledger does not account for")
                        .by_rule("R38")
                        .of_tensor(tensor.name)
                        .in_file(catalog.files[tensor.file].name)
                        .try_this("Verify with the checkpoint that was loaded."));
  }
}

std::string changed_since_load(const Ledger& ledger, const VerifyInputs& inputs, const Tensor& tensor) {
  for (const ledger::Source& source : tensor.sources) {
    const ledger::File& file = ledger.files[source.file];
    const auto number = find_file(inputs.catalog, file);
    if (!file.identity || !number || *number >= inputs.identities.size()) continue;
    const io::FileIdentity& now = inputs.identities[*number];
    if (now.inode != file.identity->inode) {
      return fmt::format("Check {}: it is a copy or a replacement of the file that the load read.", quote(file.name));
    }
    if (now.mtime_s != static_cast<std::int64_t>(file.identity->mtime_s) ||
        now.mtime_ns != static_cast<std::int64_t>(file.identity->mtime_ns)) {
      return fmt::format("Check {}: it was modified after the load.", quote(file.name));
    }
  }
  return "";
}

}  // namespace lading::exec
