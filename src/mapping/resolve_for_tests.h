// A checkpoint and a model that consist of names and shapes, for the tests of this room.
#pragma once

#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "mapping/mapping.h"
#include "mapping/resolve.h"
#include "mapping/template.h"

namespace lading::mapping {

using Shapes = std::map<std::string, Shape, std::less<>>;

struct World {
  Shapes model;
  Shapes checkpoint;

  [[nodiscard]] Result<Resolved, Errors> resolve(const std::vector<Rule>& rules) const {
    std::vector<Target> targets;
    for (const auto& [name, shape] : model) targets.push_back({name, &shape});
    std::vector<std::string_view> keys;
    for (const auto& [key, shape] : checkpoint) keys.push_back(key);
    return mapping::resolve({rules}, targets, keys, shape_of());
  }
  [[nodiscard]] ShapeOf shape_of() const {
    return [this](std::string_view key) -> const Shape* {
      const auto found = checkpoint.find(key);
      return found == checkpoint.end() ? nullptr : &found->second;
    };
  }
};

inline std::string all_text(const Errors& errors) {
  std::string text;
  for (const Error& error : errors) text += error.text() + "\n";
  return text;
}

inline JsonDocument json(std::string_view text) {
  auto document = JsonDocument::parse(JsonBuffer::copy_of(text));
  LADING_CHECK(document.has_value());
  return *std::move(document);
}

inline ExpressionTemplate expression_of(std::string_view text) {
  Errors errors;
  const JsonDocument document = json(text);
  ExpressionTemplate result = read_expression(document.root(), "$", errors);
  if (!errors.empty()) std::fprintf(stderr, "%s", all_text(errors).c_str());
  LADING_CHECK(errors.empty());
  return result;
}

}  // namespace lading::mapping
