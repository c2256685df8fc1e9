#include "planner/source_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace lading::planner {

using checkpoint::CatalogTensor;

SourceTable::SourceTable(const PlanInputs& inputs, Plan& plan)
    : inputs_(inputs), plan_(plan), source_ids_(inputs.catalog.tensors.size()) {
  plan_.sources.reserve(inputs.catalog.tensors.size());
}

// Tensors are decided by name, so the key is mostly the one that was asked for last, or the one behind it.
const CatalogTensor* SourceTable::find(std::string_view key, std::uint32_t checkpoint) {
  const auto& all = inputs_.catalog.tensors;
  for (std::size_t near = last_key_; near < std::min(last_key_ + 2, all.size()); ++near) {
    const bool is_of_it = inputs_.catalog.files[all[near].file].checkpoint == checkpoint;
    if (is_of_it && all[near].name == key) return &all[last_key_ = near];
  }
  const CatalogTensor* found = inputs_.catalog.find(key, checkpoint);
  if (found != nullptr) last_key_ = index_of(*found);
  return found;
}

std::size_t SourceTable::index_of(const CatalogTensor& found) const {
  return static_cast<std::size_t>(&found - inputs_.catalog.tensors.data());
}

const Shape* SourceTable::shape_of(std::string_view key, std::uint32_t checkpoint) {
  const CatalogTensor* found = find(key, checkpoint);
  return found == nullptr ? nullptr : &found->shape;
}

bool SourceTable::is_read(std::string_view key) {
  const CatalogTensor* found = find(key, 0);
  return found != nullptr && !source_ids_[index_of(*found)].is_none();
}

std::set<std::optional<DType>> SourceTable::dtypes_of(const mapping::Expression& expression,
                                                      std::uint32_t checkpoint) const {
  std::set<std::optional<DType>> dtypes;
  for (const std::string& key : expression.keys()) dtypes.insert(inputs_.catalog.find(key, checkpoint)->dtype);
  return dtypes;
}

std::string SourceTable::forms_of(const mapping::Expression& expression, std::uint32_t checkpoint) const {
  constexpr std::size_t kShown = 3;
  const std::vector<std::string> keys = expression.keys();
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kShown); ++i) {
    const CatalogTensor& found = *inputs_.catalog.find(keys[i], checkpoint);
    text += fmt::format("{}{} {} {}", i == 0 ? "" : ", ", quote(keys[i]),
                        found.dtype ? name(*found.dtype) : "of an unknown dtype", found.shape.text());
  }
  if (keys.size() > kShown) text += fmt::format(" and {} more keys", keys.size() - kShown);
  return text;
}

Errors SourceTable::number(std::string_view tensor, std::uint32_t checkpoint, const std::vector<std::string>& keys,
                           SourceNumbers& numbers) {
  Errors errors;
  numbers.reserve(keys.size());
  for (const std::string& key : keys) {
    const CatalogTensor& found = *find(key, checkpoint);
    if (!found.dtype) {
      errors.add(Error(Code::kUnknownDType, fmt::format("the tensor needs {}, whose dtype {} is unknown",
                                                        quote(found.name), quote(found.unknown_dtype)))
                     .of_tensor(tensor)
                     .by_rule("R45"));
      continue;
    }
    SourceId& id = source_ids_[index_of(found)];
    if (id.is_none()) id = add(found);
    numbers.push_back(id);
  }
  return errors;
}

SourceId SourceTable::add(const CatalogTensor& found) {
  const auto [file, is_new] = file_ids_.try_emplace(found.file, FileId(plan_.files.size()));
  if (is_new) {
    const checkpoint::CatalogFile& f = inputs_.catalog.files[found.file];
    plan_.files.push_back({f.name, f.size_bytes, found.file, f.checkpoint});
    const bool is_cached = found.file < inputs_.is_cached.size() && inputs_.is_cached[found.file];
    plan_.read_limits.gap_bytes.push_back(is_cached ? plan::ReadLimits::kCachedGapBytes
                                                    : plan::ReadLimits::kColdGapBytes);
  }
  plan_.sources.push_back({found.name, file->second, found.bytes, *found.dtype, found.shape});
  return SourceId(plan_.sources.size() - 1);
}

}  // namespace lading::planner
