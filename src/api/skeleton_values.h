// Values that stand in a skeleton document, such as small RoPE tables.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "lading/dtype.h"
#include "model/skeleton.h"

namespace lading {

struct SkeletonValues {
  struct Value {
    DType dtype = DType::kF32;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Value, std::less<>> by_name;

  explicit SkeletonValues(const model::Skeleton& skeleton) {
    for (const model::Tensor& tensor : skeleton.tensors) {
      if (!tensor.data) continue;
      by_name.emplace(tensor.name, Value{tensor.value_dtype(), *tensor.data});
      // One storage has one value, under whichever of its names it stands.
      if (!tensor.tie_class) continue;
      for (const std::string& name : skeleton.tie_classes[*tensor.tie_class]) {
        by_name.emplace(name, Value{tensor.value_dtype(), *tensor.data});
      }
    }
  }
};

}  // namespace lading
