#include "planner/amount_checks.h"

#include <fmt/format.h>

#include "base/text.h"

namespace lading::planner {
namespace {

// What planning and loading keep of a tensor for one rank, measured (docs/reference/formats.md).
constexpr std::uint64_t kBytesKeptPerTensor = 3'500;
constexpr std::uint64_t kMaxBytesKept = 2'000'000'000;
constexpr std::uint64_t kMaxTimesTheFiles = 4;

}  // namespace

Errors check_amount(const checkpoint::Catalog& catalog) {
  std::uint64_t file_bytes = 0;
  for (const checkpoint::CatalogFile& file : catalog.files) file_bytes += file.size_bytes;
  const std::uint64_t kept = catalog.tensors.size() * kBytesKeptPerTensor;
  if (kept <= kMaxBytesKept || kept / kMaxTimesTheFiles <= file_bytes) return {};
  return Error(Code::kPlan, "planning the checkpoint would take more memory than its size justifies")
      .wanted(fmt::format("at most {}, or {} times its files", human_bytes(kMaxBytesKept), kMaxTimesTheFiles))
      .got(fmt::format("about {} for {} tensors in {} of files", human_bytes(kept), with_commas(catalog.tensors.size()),
                       human_bytes(file_bytes)))
      .try_this("Load a checkpoint with fewer tensors; if this one is real, please report it.");
}

}  // namespace lading::planner
