// Values that no checkpoint has, such as large RoPE tables, in a safetensors file beside a skeleton document.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "lading/load.h"
#include "source/checkpoint_source.h"

namespace lading {

class ValuesFile {
 public:
  static Result<ValuesFile, Errors> open(const std::string& path);

  /// Read when it is asked for, and kept: a load may ask again for another rank.
  Result<HostTensor> of(const std::string& name);

 private:
  explicit ValuesFile(source::CheckpointSource source) : source_(std::move(source)) {}

  source::CheckpointSource source_;
  std::map<std::string, std::vector<std::byte>> values_;
};

}  // namespace lading
