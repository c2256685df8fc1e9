#include "planner/source_words.h"

#include <cmath>

namespace lading::planner {

std::string_view describe(model::Kind kind) {
  switch (kind) {
    case model::Kind::kParameter: return "parameter";
    case model::Kind::kBuffer: return "buffer";
    case model::Kind::kNonPersistentBuffer: return "non-persistent buffer";
    case model::Kind::kAttribute: return "plain attribute";
    case model::Kind::kExtraState: return "extra state";
  }
  return "tensor";
}

Provenance provenance_of(model::RecipeKind kind) {
  switch (kind) {
    case model::RecipeKind::kFill: return Provenance::kFill;
    case model::RecipeKind::kHost: return Provenance::kHost;
    case model::RecipeKind::kCall: return Provenance::kCall;
    default: return Provenance::kRandom;
  }
}

bool is_same(model::Recipe one, model::Recipe other) {
  if (std::isnan(one.value) && std::isnan(other.value)) one.value = other.value = 0;
  return one == other;
}

}  // namespace lading::planner
