// What cannot be true of one tensor, whatever the rest of the model is.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/enumerator.h"
#include "base/text.h"
#include "model/skeleton_parts.h"

namespace lading::model {
namespace {

Error problem(const Tensor& tensor, std::string message) {
  return Error(Code::kSkeleton, std::move(message)).of_tensor(tensor.name);
}

// As documents have it (base/json_fields.cc).
constexpr std::size_t kMaxDims = 64;

bool is_random(RecipeKind kind) {
  return kind == RecipeKind::kUniform || kind == RecipeKind::kNormal || kind == RecipeKind::kTruncatedNormal;
}

std::string_view why_numbers_make_no_sense(const Recipe& recipe) {
  if (!is_random(recipe.kind)) return "";  // a fill may be anything: +-inf and NaN are legal data (R33)
  if (recipe.kind != RecipeKind::kUniform) {
    if (!std::isfinite(recipe.mean)) return "its mean is not finite";
    if (!std::isfinite(recipe.std) || recipe.std < 0)
      return "its standard deviation is not a finite number of 0 or more";
  }
  if (recipe.kind == RecipeKind::kUniform) {
    if (!std::isfinite(recipe.low) || !std::isfinite(recipe.high)) return "its bounds are not finite";
    if (recipe.low > recipe.high) return "its lower bound is above the upper";
  }
  // Written so that a NaN is refused too. One bound may be infinite, but something must lie between them.
  if (recipe.kind == RecipeKind::kTruncatedNormal && !(recipe.low < recipe.high))
    return "its bounds leave no value between them";
  return "";
}

void check_recipe(const Tensor& tensor, const Recipe& recipe, std::string_view role, std::vector<Error>& errors) {
  if (const auto why = why_numbers_make_no_sense(recipe); !why.empty()) {
    errors.push_back(problem(tensor, fmt::format("the {} is invalid: {}", role, why)).by_rule("R13"));
  }
  if (is_random(recipe.kind) && class_of(tensor.dtype) != DTypeClass::kFloat) {
    errors.push_back(
        problem(tensor, fmt::format("the {} is random, but {} is not a floating dtype", role, name(tensor.dtype)))
            .by_rule("R13"));
  }
  if (recipe.zero_row) {
    if (recipe.kind == RecipeKind::kHost || recipe.kind == RecipeKind::kCall) {
      errors.push_back(
          problem(tensor, fmt::format("the {} has a zero row, but the caller supplies its whole value", role))
              .by_rule("R20"));
    } else if (tensor.shape.rank() == 0 || *recipe.zero_row >= tensor.shape[0]) {
      errors.push_back(problem(tensor, fmt::format("the zero row of the {} lies outside the tensor", role))
                           .by_rule("R20")
                           .wanted(fmt::format("a row of {}", tensor.shape.text()))
                           .got(std::to_string(*recipe.zero_row)));
    }
  }
  if (recipe.kind == RecipeKind::kCall && recipe.inputs.empty()) {
    errors.push_back(problem(tensor, fmt::format("the {} is a call without inputs", role))
                         .by_rule("R66")
                         .try_this("Use the kind \"host\" for a value that depends on no other tensor."));
  }
  if (std::find(recipe.inputs.begin(), recipe.inputs.end(), tensor.name) != recipe.inputs.end()) {
    errors.push_back(problem(tensor, fmt::format("the {} is computed from itself", role)).by_rule("R66"));
  }
}

// "cpu", or a type and an index.
bool is_device(std::string_view text) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto colon = text.find(':');
  const auto type = text.substr(0, colon);
  if (type.empty() || type == "meta" || !std::all_of(type.begin(), type.end(), is_lower)) return false;
  if (colon == std::string_view::npos) return type == "cpu";
  const auto index = text.substr(colon + 1);
  return !index.empty() && index.size() <= 9 && std::all_of(index.begin(), index.end(), is_digit);
}

void check_presence(const Tensor& tensor, std::vector<Error>& errors) {
  if (tensor.presence == Presence::kMeta) {
    if (!tensor.device.empty())
      errors.push_back(problem(tensor, "the tensor is on meta, but has a device").got(quote(tensor.device)));
    if (tensor.declared_dtype) {
      errors.push_back(problem(tensor, "the tensor has a declared dtype beside the constructed one, but no memory")
                           .by_rule("R29")
                           .try_this("Use the declared dtype as the tensor's dtype."));
    }
  } else if (!is_device(tensor.device)) {
    errors.push_back(problem(tensor, "the tensor has memory, but its device has no index")
                         .by_rule("R34")
                         .wanted("\"cpu\", or a device with an index such as \"cuda:0\"")
                         .got(quote(tensor.device)));
  }
  if (tensor.assigned && tensor.presence != Presence::kReal) {
    errors.push_back(problem(tensor, "the tensor is marked as assigned, but has no value")
                         .by_rule("R14")
                         .wanted("presence \"real\""));
  }
  if (tensor.declared_dtype && !tensor.derivation) {
    errors.push_back(problem(tensor, "the tensor has a declared dtype, but no derivation").by_rule("R29"));
  }
}

void check_data(const Tensor& tensor, std::vector<Error>& errors) {
  const auto is_host = [](const std::optional<Recipe>& recipe) { return recipe && recipe->kind == RecipeKind::kHost; };
  if (!is_host(tensor.derivation ? tensor.derivation : tensor.init)) {  // a derivation goes before an init
    errors.push_back(
        problem(tensor, "the tensor has data, but neither its derivation nor its init is of kind \"host\""));
  }
  const auto size_bytes = tensor.shape.size_bytes(tensor.value_dtype());
  if (size_bytes && *size_bytes != tensor.data->size()) {
    errors.push_back(
        problem(tensor, "the data of the tensor has the wrong size")
            .by_rule("R6")
            .wanted(fmt::format("{} bytes: {} in {}", *size_bytes, tensor.shape.text(), name(tensor.value_dtype())))
            .got(fmt::format("{} bytes", tensor.data->size())));
  }
}

}  // namespace

bool has_empty_component(std::string_view name) {
  return name.empty() || name.front() == '.' || name.back() == '.' || name.find("..") != std::string_view::npos;
}

Recipe only_what_counts(const Recipe& recipe) {
  Recipe made;
  made.kind = recipe.kind;
  made.zero_row = recipe.zero_row;
  made.inputs = recipe.inputs;
  if (recipe.kind == RecipeKind::kFill) {
    made.value = std::isnan(recipe.value) ? std::numeric_limits<double>::quiet_NaN() : recipe.value;
  }
  if (recipe.kind == RecipeKind::kUniform || recipe.kind == RecipeKind::kTruncatedNormal) {
    made.low = recipe.low;
    made.high = recipe.high;
  }
  if (recipe.kind == RecipeKind::kNormal || recipe.kind == RecipeKind::kTruncatedNormal) {
    made.mean = recipe.mean;
    made.std = recipe.std;
  }
  return made;
}

std::vector<Error> check_tensor(const Tensor& tensor) {
  std::vector<Error> errors;
  const auto is_known = [](const std::optional<Recipe>& recipe) {
    return !recipe || is_enumerator(recipe->kind, RecipeKind::kCall);
  };
  if (!is_enumerator(tensor.kind, Kind::kExtraState) || !is_enumerator(tensor.presence, Presence::kEmpty) ||
      !is_enumerator(tensor.dtype, DType::kU64) ||
      (tensor.declared_dtype && !is_enumerator(*tensor.declared_dtype, DType::kU64)) || !is_known(tensor.derivation) ||
      !is_known(tensor.init)) {
    errors.push_back(problem(tensor, "the kind, presence, dtype or recipe is not a known enumerator"));
    return errors;  // nothing else can be asked of it
  }
  if (find_invalid_utf8(tensor.name)) {
    errors.push_back(
        problem(tensor, "the name is not UTF-8, so that no JSON document can hold it").got(quote(tensor.name)));
  }
  if (tensor.shape.rank() > kMaxDims) {
    errors.push_back(problem(tensor, "the tensor has too many dims")
                         .wanted(fmt::format("at most {}", kMaxDims))
                         .got(std::to_string(tensor.shape.rank())));
  }
  if (has_empty_component(tensor.name)) {
    errors.push_back(problem(tensor, "the name has an empty component").got(quote(tensor.name)));
  }
  if (!tensor.shape.num_elems() || !tensor.shape.size_bytes(tensor.dtype)) {
    errors.push_back(
        problem(tensor, fmt::format("a tensor of {} of this shape does not fit into any memory", name(tensor.dtype)))
            .got(tensor.shape.text()));
  }
  const DTypeClass dtype_class = class_of(tensor.dtype);
  if (tensor.requires_grad && dtype_class != DTypeClass::kFloat && dtype_class != DTypeClass::kComplex) {
    errors.push_back(
        problem(tensor, "the tensor requires a gradient, but only floating and complex dtypes have gradients")
            .by_rule("R61")
            .got(std::string(name(tensor.dtype))));
  }
  check_presence(tensor, errors);
  if (tensor.derivation) {
    check_recipe(tensor, *tensor.derivation, "derivation", errors);
    if (is_random(tensor.derivation->kind)) {
      errors.push_back(problem(tensor, "the derivation is random, but a derivation must be a function of the config")
                           .by_rule("R29")
                           .try_this("Use init for a random value."));
    }
  }
  if (tensor.init) check_recipe(tensor, *tensor.init, "init", errors);
  if (tensor.data) check_data(tensor, errors);
  return errors;
}

}  // namespace lading::model
