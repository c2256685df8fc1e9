#include "lading/inspect.h"

#include <fmt/format.h>

#include "api/open_checkpoint.h"
#include "base/version.h"
#include "checkpoint/quantized.h"
#include "lading/version.h"
#include "planner/quantized/packed_weights.h"
#include "source/blob_hash.h"

namespace lading {
namespace {

using source::CheckpointSource;
using source::SourceFile;

Result<HashState> verify_hash(const CheckpointSource& checkpoint, const SourceFile& file) {
  const auto promised = checkpoint.in_hub_cache() ? source::promised_hash(file.resolved) : std::nullopt;
  if (!promised) return HashState::kUnknown;
  LADING_ASSIGN_OR_RETURN(const io::File opened, checkpoint.open_file(file));
  LADING_ASSIGN_OR_RETURN(const std::string hex, source::hash_file(opened, promised->kind));
  LADING_TRY(opened.check_unchanged());
  if (hex == promised->hex) return HashState::kVerified;
  return fail(Error(Code::kHashMismatch, "the file's content does not match the hash in its name")
                  .in_file(opened.path())
                  .at({0, opened.size_bytes()})
                  .by_rule("R45")
                  .wanted(promised->hex)
                  .got(hex)
                  .try_this("Delete the damaged blob, and fetch it again."));
}

}  // namespace

const char* version() { return kVersion; }

Result<Inspection, Errors> inspect(const CheckpointRef& ref, HashCheck hash) {
  LADING_ASSIGN_OR_RETURN(CheckpointSource checkpoint, open_checkpoint(ref));
  const checkpoint::Catalog& catalog = checkpoint.catalog();

  Inspection inspection;
  inspection.path = checkpoint.main_path();
  if (checkpoint.index()) inspection.index_path = inspection.path;
  inspection.warnings = checkpoint.warnings();
  inspection.warnings.add(checkpoint::quantization_notes(catalog));
  inspection.tensor_bytes = catalog.tensor_bytes();

  Errors errors;
  if (hash == HashCheck::kVerify && checkpoint.index()) {
    auto state = verify_hash(checkpoint, *checkpoint.index());
    if (!state) {
      errors.add(std::move(state).error());
    } else if (*state == HashState::kUnknown) {
      inspection.warnings.add(Error(Code::kUnverified, "the index is unverified: its hash is not known")
                                  .in_file(inspection.path)
                                  .try_this("Fetch the index again if you doubt it."));
    }
  }
  for (std::size_t i = 0; i < catalog.files.size(); ++i) {
    const checkpoint::CatalogFile& file = catalog.files[i];
    ShardInfo shard{file.name,       checkpoint.anchor().display(checkpoint.shards()[i].relative),
                    file.size_bytes, file.tensors,
                    file.metadata,   HashState::kNotChecked};
    if (hash == HashCheck::kVerify) {
      auto state = verify_hash(checkpoint, checkpoint.shards()[i]);
      if (state) {
        shard.hash = *state;
      } else {
        errors.add(std::move(state).error());
      }
    }
    inspection.shards.push_back(std::move(shard));
  }
  if (!errors.empty()) return fail(std::move(errors));

  for (planner::PackedWeights packed = planner::find_packed_weights(catalog); auto& [name, weight] : packed.by_name) {
    inspection.packed_weights.push_back(
        {name, std::move(weight.shape), std::move(weight.scheme), std::move(weight.keys)});
  }
  std::vector<checkpoint::CatalogTensor> tensors = std::move(checkpoint).take_catalog().tensors;
  inspection.tensors.reserve(tensors.size());
  for (checkpoint::CatalogTensor& tensor : tensors) {
    std::string dtype(tensor.dtype ? name(*tensor.dtype) : std::string_view(tensor.unknown_dtype));
    inspection.tensors.push_back(
        {std::move(tensor.name), tensor.dtype, std::move(dtype), std::move(tensor.shape), tensor.file, tensor.bytes});
  }
  return inspection;
}

}  // namespace lading
