// What the engine asks a skeleton beside what programs do, and `lading.skeleton/1` (docs/schema/skeleton.md). Pure.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "base/name_pattern.h"
#include "lading/skeleton.h"

namespace lading::model {

/// Whether a strategy cuts it as it cuts parameters: a buffer that shares a parameter's storage lies where the
/// parameter does (R52).
[[nodiscard]] bool is_laid_out_as_parameter(const Skeleton& skeleton, const Tensor& tensor);

/// Whether `name` is the module `module` or lies beneath it. Everything lies beneath "".
[[nodiscard]] bool is_beneath(std::string_view name, std::string_view module);

/// Module names, to be asked whether a tensor lies beneath one of them.
class ModuleSet {
 public:
  ModuleSet() = default;
  explicit ModuleSet(const std::vector<std::string>& modules) : modules_(modules.begin(), modules.end()) {}
  [[nodiscard]] bool empty() const { return modules_.empty(); }
  [[nodiscard]] bool contains(std::string_view module) const { return modules_.contains(module); }
  /// Costs as many look-ups as the name has components.
  [[nodiscard]] bool is_above(std::string_view tensor) const;

 private:
  std::set<std::string, std::less<>> modules_;
};

/// `lading.skeleton/1`. Errors carry the JSON path; the caller adds the file.
Result<Skeleton, Errors> parse_skeleton(const JsonDocument& document);
std::string skeleton_json(const Skeleton& skeleton);

/// Pins stand in policies too, in the same form.
Pin read_pin(const JsonValue& value, const std::string& path, Errors& errors);
void write_pin(JsonWriter& json, const Pin& pin);
[[nodiscard]] std::string_view word(PinStrength strength);
/// Whether it has a first component and no empty one.
[[nodiscard]] bool is_pin_pattern(std::string_view pattern);

}  // namespace lading::model
