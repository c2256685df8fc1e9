// `lading.skeleton/1`, both ways. docs/schema/skeleton.md is the reference.
#include "model/skeleton_json.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>

#include "base/base64.h"
#include "base/json_fields.h"
#include "base/json_writer.h"
#include "model/skeleton_parts.h"

namespace lading::model {
namespace {

constexpr auto kOneLine = JsonWriter::Lines::kOne;
constexpr std::string_view kSchemaName = "lading.skeleton/1";

constexpr std::array kKinds = {
    std::pair<std::string_view, Kind>{"parameter", Kind::kParameter},
    std::pair<std::string_view, Kind>{"buffer", Kind::kBuffer},
    std::pair<std::string_view, Kind>{"non_persistent_buffer", Kind::kNonPersistentBuffer},
    std::pair<std::string_view, Kind>{"attribute", Kind::kAttribute},
    std::pair<std::string_view, Kind>{"extra_state", Kind::kExtraState},
};
constexpr std::array kPresences = {
    std::pair<std::string_view, Presence>{"meta", Presence::kMeta},
    std::pair<std::string_view, Presence>{"real", Presence::kReal},
    std::pair<std::string_view, Presence>{"empty", Presence::kEmpty},
};
constexpr std::array kRecipeKinds = {
    std::pair<std::string_view, RecipeKind>{"fill", RecipeKind::kFill},
    std::pair<std::string_view, RecipeKind>{"uniform", RecipeKind::kUniform},
    std::pair<std::string_view, RecipeKind>{"normal", RecipeKind::kNormal},
    std::pair<std::string_view, RecipeKind>{"truncated_normal", RecipeKind::kTruncatedNormal},
    std::pair<std::string_view, RecipeKind>{"host", RecipeKind::kHost},
    std::pair<std::string_view, RecipeKind>{"call", RecipeKind::kCall},
};
constexpr std::array kStrengths = {
    std::pair<std::string_view, PinStrength>{"float16", PinStrength::kFloat16},
    std::pair<std::string_view, PinStrength>{"float16_and_bfloat16", PinStrength::kFloat16AndBFloat16},
};

// JSON has no infinities; they are real values of real buffers (R33), so they come as strings.
std::optional<double> parse_number(const JsonValue& value) {
  const std::string_view text = value.text();
  if (value.is_string()) {
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    return std::nullopt;
  }
  if (value.kind() != JsonKind::kNumber) return std::nullopt;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

void read_number(JsonFields& fields, std::string_view key, double& out) {
  const auto value = fields.require(key);
  if (!value) return;
  if (const auto number = parse_number(*value)) {
    out = *number;
  } else {
    fields.problem(*value, key, "not a number", "a number that a double can hold, or \"inf\", \"-inf\", \"nan\"");
  }
}

}  // namespace

// Only the fields of the kind may stand there: a "std" beside "fill" is somebody's mistake.
std::optional<Recipe> read_recipe(JsonFields& owner, std::string_view key, Errors& errors) {
  const auto value = owner.find(key);
  if (!value) return std::nullopt;
  Recipe recipe;
  JsonFields fields(*value, owner.path_of(key), errors);
  const std::size_t problems_before = errors.size();
  fields.word("kind", kRecipeKinds, recipe.kind);
  if (errors.size() != problems_before) return recipe;  // which fields belong is not known then
  const bool normal = recipe.kind == RecipeKind::kNormal || recipe.kind == RecipeKind::kTruncatedNormal;
  if (recipe.kind == RecipeKind::kFill) read_number(fields, "value", recipe.value);
  if (normal) {
    read_number(fields, "mean", recipe.mean);
    read_number(fields, "std", recipe.std);
  }
  if (recipe.kind == RecipeKind::kUniform || recipe.kind == RecipeKind::kTruncatedNormal) {
    read_number(fields, "low", recipe.low);
    read_number(fields, "high", recipe.high);
  }
  if (recipe.kind == RecipeKind::kCall) fields.strings("inputs", recipe.inputs);
  if (recipe.kind != RecipeKind::kHost && recipe.kind != RecipeKind::kCall) {
    if (const auto row = fields.find("zero_row")) {
      recipe.zero_row = row->as_uint64();
      if (!recipe.zero_row) fields.problem(*row, "zero_row", "not a whole number", "a row of dim 0");
    }
  }
  fields.finish();
  return recipe;
}

namespace {

Tensor read_tensor(const JsonValue& value, const std::string& path, Errors& errors) {
  Tensor tensor;
  JsonFields fields(value, path, errors);
  fields.string("name", tensor.name);
  fields.word("kind", kKinds, tensor.kind);
  fields.shape("shape", tensor.shape);
  fields.dtype("dtype", tensor.dtype);
  fields.optional_boolean("requires_grad", tensor.requires_grad);
  fields.optional_boolean("adapter", tensor.adapter);
  fields.optional_boolean("assigned", tensor.assigned);
  fields.optional_word("presence", kPresences, tensor.presence);
  fields.optional_string("device", tensor.device);
  tensor.derivation = read_recipe(fields, "derivation", errors);
  fields.optional_dtype("declared_dtype", tensor.declared_dtype);
  tensor.init = read_recipe(fields, "init", errors);
  if (const auto data = fields.find("data")) {
    tensor.data = data->is_string() ? decode_base64(data->text()) : std::nullopt;
    if (!tensor.data) fields.problem(*data, "data", "not base64", "a padded base64 string");
  }
  fields.finish();
  return tensor;
}

void write_strings(JsonWriter& json, const std::vector<std::string>& strings) {
  json.begin_array(kOneLine);
  for (const std::string& text : strings) json.string(text);
  json.end_array();
}

void write_tensor(JsonWriter& json, const Tensor& tensor) {
  json.begin_object(kOneLine);
  json.key("name").string(tensor.name);
  json.key("kind").string(word(tensor.kind));
  json.key("shape").begin_array();
  for (const std::uint64_t dim : tensor.shape) json.number(dim);
  json.end_array();
  json.key("dtype").string(name(tensor.dtype));
  if (tensor.requires_grad) json.key("requires_grad").boolean(true);
  if (tensor.adapter) json.key("adapter").boolean(true);
  if (tensor.presence != Presence::kMeta) json.key("presence").string(word_of(kPresences, tensor.presence));
  if (tensor.assigned) json.key("assigned").boolean(true);
  if (!tensor.device.empty()) json.key("device").string(tensor.device);
  if (tensor.derivation) write_recipe(json.key("derivation"), *tensor.derivation);
  if (tensor.declared_dtype) json.key("declared_dtype").string(name(*tensor.declared_dtype));
  if (tensor.init) write_recipe(json.key("init"), *tensor.init);
  if (tensor.data) json.key("data").string(encode_base64(*tensor.data));
  json.end_object();
}

}  // namespace

std::string_view word(Kind kind) { return word_of(kKinds, kind); }
std::string_view word(PinStrength strength) { return word_of(kStrengths, strength); }

Pin read_pin(const JsonValue& value, const std::string& path, Errors& errors) {
  Pin pin;
  JsonFields fields(value, path, errors);
  read_name_fields(fields, pin.pattern);
  fields.word("strength", kStrengths, pin.strength);
  fields.finish();
  return pin;
}

void write_pin(JsonWriter& json, const Pin& pin) {
  json.begin_object(kOneLine);
  write_name_fields(json, pin.pattern);
  json.key("strength").string(word(pin.strength));
  json.end_object();
}

Result<Skeleton, Errors> parse_skeleton(const JsonDocument& document) {
  Errors errors;
  SkeletonParts parts;
  // Where each part stands, for problems that are found when all have been read.
  std::array<std::vector<std::uint64_t>, 3> offsets;
  const auto remember = [&](Part part, const JsonValue& value) {
    offsets[static_cast<std::size_t>(part)].push_back(value.offset());
  };
  auto fields = begin_document(document, kSchemaName, errors);
  if (const auto list = document.root().find("tensors")) parts.tensors.reserve(list->size());
  fields.each("tensors", [&](const JsonValue& value, const std::string& path) {
    remember(Part::kTensor, value);
    parts.tensors.push_back(read_tensor(value, path, errors));
  });
  fields.optional_each("ties", [&](const JsonValue& value, const std::string& path) {
    remember(Part::kTieClass, value);
    auto& names = parts.tie_classes.emplace_back();
    if (!value.is_array()) {
      errors.add(Error(Code::kSchema, path + ": not an array")
                     .at({value.offset(), value.offset() + 1})
                     .wanted("an array of names")
                     .got(value.found()));
    }
    std::size_t i = 0;
    for (const JsonMember member : value) {
      if (value.is_array() && !member.value.is_string()) {
        errors.add(Error(Code::kSchema, fmt::format("{}[{}]: not a string", path, i))
                       .at({member.value.offset(), member.value.offset() + 1})
                       .wanted("a name")
                       .got(member.value.found()));
      }
      names.emplace_back(member.value.text());
      ++i;
    }
  });
  fields.optional_each("pins", [&](const JsonValue& value, const std::string& path) {
    remember(Part::kPin, value);
    parts.pins.push_back(read_pin(value, path, errors));
  });
  fields.finish();
  if (!errors.empty()) return fail(std::move(errors));

  const Locate locate = [&](Error& error, Part part, std::size_t index) {
    constexpr std::array<std::string_view, 3> kFields = {"tensors", "ties", "pins"};
    const std::uint64_t offset = offsets[static_cast<std::size_t>(part)][index];
    error.message = fmt::format("$.{}[{}]: {}", kFields[static_cast<std::size_t>(part)], index, error.message);
    error.bytes = ByteRange{offset, offset + 1};
  };
  return build_skeleton(std::move(parts), locate);
}

void write_recipe(JsonWriter& json, const Recipe& recipe) {
  json.begin_object(kOneLine);
  json.key("kind").string(word_of(kRecipeKinds, recipe.kind));
  if (recipe.kind == RecipeKind::kFill) json.key("value").number(recipe.value);
  if (recipe.kind == RecipeKind::kNormal || recipe.kind == RecipeKind::kTruncatedNormal) {
    json.key("mean").number(recipe.mean);
    json.key("std").number(recipe.std);
  }
  if (recipe.kind == RecipeKind::kUniform || recipe.kind == RecipeKind::kTruncatedNormal) {
    json.key("low").number(recipe.low);
    json.key("high").number(recipe.high);
  }
  if (recipe.kind == RecipeKind::kCall) write_strings(json.key("inputs"), recipe.inputs);
  if (recipe.zero_row) json.key("zero_row").number(*recipe.zero_row);
  json.end_object();
}

// One element a line, so that a diff of two skeletons shows tensors.
std::string skeleton_json(const Skeleton& skeleton) {
  JsonWriter json;
  json.begin_object();
  json.key("schema").string(kSchemaName);
  json.key("tensors").begin_array();
  for (const Tensor& tensor : skeleton.tensors) write_tensor(json, tensor);
  json.end_array();
  json.key("ties").begin_array();
  for (const auto& names : skeleton.tie_classes) write_strings(json, names);
  json.end_array();
  json.key("pins").begin_array();
  for (const Pin& pin : skeleton.pins) write_pin(json, pin);
  json.end_array();
  json.end_object();
  return json.take();
}

}  // namespace lading::model
