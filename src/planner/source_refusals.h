// The errors of tensors that get no source: what is wrong, expected, found, and the remedy. The caller adds tensor and
// rule. Private to this room.
#pragma once

#include <string>
#include <string_view>

#include "lading/error.h"
#include "lading/skeleton.h"

namespace lading::planner {

[[nodiscard]] Error in_keep_and_external();
[[nodiscard]] Error in_keep_and_adapter();
[[nodiscard]] Error kept_without_value(model::Presence presence);
[[nodiscard]] Error in_two_adapters();
[[nodiscard]] Error differs_in_shape(const model::Tensor& tensor, std::string found, std::string remedy);
/// Of tied tensors, in the words of SourceTable::forms_of.
[[nodiscard]] Error forms_differ(std::string one, std::string other);
[[nodiscard]] Error not_in_checkpoint(const model::Tensor& tensor, std::string found, std::string remedy);
[[nodiscard]] Error recipes_differ(std::string_view tied_to);
[[nodiscard]] Error without_source(model::Kind kind);

}  // namespace lading::planner
