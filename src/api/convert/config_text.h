// The text of a config.json for a checkpoint of other dtypes: a few members change, every other byte stays. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lading/dtype.h"
#include "lading/result.h"

namespace lading {

struct ConfigFacts {
  std::optional<DType> dtype;  ///< "dtype" or "torch_dtype": of the model, or else of its text part
  bool names_code = false;     ///< "auto_map": the model's code is in files beside
};

struct ConfigChange {
  bool drops_quantization = false;  ///< "quantization_config" and "compression_config"
  std::optional<DType> dtype = {};  ///< of the model and of its parts ("text_config", …)
};

/// Errors have places in the text. Numbers that only Python reads, such as NaN, are accepted.
Result<ConfigFacts, Errors> config_facts(std::string_view text);
Result<std::string, Errors> changed_config(std::string_view text, const ConfigChange& change);

}  // namespace lading
