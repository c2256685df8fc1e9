// Values that no checkpoint has, such as large RoPE tables, in a safetensors file beside a skeleton document.
#pragma once

#include <memory>
#include <string>

#include "lading/load.h"

namespace lading {

class ValuesFile {
 public:
  static Result<std::shared_ptr<ValuesFile>, Errors> open(const std::string& path);
  virtual ~ValuesFile() = default;

  /// Read when it is asked for, and kept: a load may ask again for another rank.
  virtual Result<HostTensor> of(const std::string& name) = 0;
};

}  // namespace lading
