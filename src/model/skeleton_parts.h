// What a skeleton is made of before it is checked, and the checks of one part. Inside this room only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lading/result.h"
#include "model/skeleton.h"

namespace lading::model {

struct SkeletonParts {
  std::vector<Tensor> tensors;
  std::vector<std::vector<std::string>> tie_classes;
  std::vector<Pin> pins;
};

enum class Part : std::uint8_t { kTensor, kTieClass, kPin };

/// Adds to an error where the part stood in what was read. Index into the vector of SkeletonParts.
using Locate = std::function<void(Error&, Part, std::size_t index)>;

/// make_skeleton(), with a say in how problems are located.
Result<Skeleton, Errors> build_skeleton(SkeletonParts parts, const Locate& locate);

/// What is wrong with a tensor by itself: all but its neighbours.
std::vector<Error> check_tensor(const Tensor& tensor);

/// Without the fields that its kind does not use, so that equal recipes are equal; and every NaN is the same one, as in
/// a document, so that what is loaded is what a ledger can say.
[[nodiscard]] Recipe only_what_counts(const Recipe& recipe);

/// Torch gives neither modules nor tensors an empty name, and one would make two modules of one: ".weight"
/// and "weight" would both lie in "".
[[nodiscard]] bool has_empty_component(std::string_view name);

}  // namespace lading::model
