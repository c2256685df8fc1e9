// For tests: a model all of whose elements are one number, saved over an older one, and what stands there.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lading/save.h"
#include "lading/verify.h"

namespace lading {

struct SavedModel {
  std::size_t tensors = 0;
  std::uint64_t rows = 0;
};
inline constexpr std::uint64_t kColumns = 64;

inline Result<SaveReport, SaveFailure> save_model(const std::string& directory, float number, const SavedModel& saved) {
  std::vector<model::Tensor> tensors;
  for (std::size_t t = 0; t < saved.tensors; ++t) {
    model::Tensor& tensor = tensors.emplace_back();
    tensor.name = "w" + std::to_string(t);
    tensor.shape = {saved.rows, kColumns};
  }
  SaveRequest request;
  request.skeleton = *model::make_skeleton(std::move(tensors), {}, {});
  request.options.max_shard_bytes = 2 * saved.rows * kColumns * sizeof(float);
  const std::vector<float> values(saved.rows * kColumns, number);
  SaveWriting writing;
  writing.memory = [&](const DestinationInfo&) { return std::as_bytes(std::span(values)); };
  return save(request, {directory, ExistingDirectory::kReplace}, writing);
}

/// The number that all elements of the checkpoint are; nothing if they are not one, or anything else is wrong.
inline std::optional<float> number_in(const std::string& directory) {
  VerifyRequest verifying;
  verifying.checkpoint.path = directory;
  verifying.ledgers = {Document::file(directory + "/lading.ledger.json")};
  const auto verified = verify(verifying);
  if (!verified || !verified->differences.empty()) return std::nullopt;
  LoadRequest loading;
  loading.plan.checkpoint.path = directory;
  const auto loaded = materialize(loading);
  if (!loaded) return std::nullopt;
  std::optional<float> number;
  for (const LoadedTensor& tensor : loaded->tensors) {
    const std::span elements(reinterpret_cast<const float*>(tensor.memory.data()),
                             tensor.memory.size() / sizeof(float));
    for (const float element : elements) {
      if (number && element != *number) return std::nullopt;
      number = element;
    }
  }
  return number;
}

}  // namespace lading
