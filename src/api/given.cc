#include "api/given.h"

#include <utility>

#include "api/document.h"
#include "layout/layout.h"
#include "mapping/mapping.h"
#include "model/skeleton.h"
#include "policy/policy.h"

namespace lading {
namespace {

template <class T>
Result<T, Errors> read(const Document& document, std::string_view what,
                       Result<T, Errors> (*parse)(const JsonDocument&)) {
  const DocumentLimits limits{what};
  LADING_ASSIGN_OR_RETURN(const JsonDocument json, read_document(document, limits));
  auto parsed = parse(json);
  if (!parsed) parsed.error().relocate(document_name(document, limits), 0);
  return parsed;
}

}  // namespace

Result<model::Skeleton, Errors> read_skeleton(const Document& document) {
  return read(document, "skeleton", model::parse_skeleton);
}
Result<layout::Layout, Errors> read_layout(const Document& document) {
  return read(document, "layout", layout::parse_layout);
}
Result<mapping::Mapping, Errors> read_mapping(const Document& document) {
  return read(document, "mapping", mapping::parse_mapping);
}
Result<policy::Policy, Errors> read_policy(const Document& document) {
  return read(document, "policy", policy::parse_policy);
}

std::string to_json(const model::Skeleton& skeleton) { return model::skeleton_json(skeleton); }
Result<std::string, Errors> to_json(const layout::Layout& layout) {
  if (Errors problems = layout::check_writable(layout); !problems.empty()) return fail(std::move(problems));
  return layout::layout_json(layout);
}
std::string to_json(const mapping::Mapping& mapping) { return mapping::mapping_json(mapping); }
std::string to_json(const policy::Policy& policy) { return policy::policy_json(policy); }

Result<model::Skeleton, Errors> skeleton_given(const Given<model::Skeleton>& given) {
  if (const auto* document = std::get_if<Document>(&given)) return read_skeleton(*document);
  const auto& value = std::get<model::Skeleton>(given);
  return model::make_skeleton(value.tensors, value.tie_classes, value.pins);
}

Result<mapping::Mapping, Errors> mapping_given(const Given<mapping::Mapping>& given) {
  if (const auto* document = std::get_if<Document>(&given)) return read_mapping(*document);
  const auto& value = std::get<mapping::Mapping>(given);
  if (Errors problems = mapping::check_mapping(value); !problems.empty()) return fail(std::move(problems));
  return value;
}

Result<policy::Policy, Errors> policy_given(const Given<policy::Policy>& given) {
  if (const auto* document = std::get_if<Document>(&given)) return read_policy(*document);
  const auto& value = std::get<policy::Policy>(given);
  if (Errors problems = policy::check_policy(value); !problems.empty()) return fail(std::move(problems));
  return value;
}

}  // namespace lading
