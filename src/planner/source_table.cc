#include "planner/source_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "checkpoint/quantized.h"

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

Errors SourceTable::number(std::string_view tensor, std::uint32_t checkpoint, const mapping::Pieces& pieces,
                           SourceNumbers& numbers) {
  Errors errors;
  numbers.reserve(pieces.sources.size());
  for (const mapping::PieceSourceId i : pieces.sources.ids()) {
    const std::size_t before = plan_.sources.size();
    const auto id = number_of(tensor, checkpoint, pieces.sources[i]);
    if (!id) {
      errors.add(id.error());
      continue;
    }
    const auto scaling = pieces.scalings.find(i);
    const bool is_new = plan_.sources.size() > before;
    auto scaled = scale(tensor, checkpoint, scaling == pieces.scalings.end() ? nullptr : &scaling->second, *id, is_new);
    if (!scaled) errors.add(std::move(scaled).error());
    numbers.push_back(*id);
  }
  return errors;
}

Result<SourceId> SourceTable::number_of(std::string_view tensor, std::uint32_t checkpoint, const std::string& key) {
  const CatalogTensor& found = *find(key, checkpoint);
  if (!found.dtype) {
    return fail(Error(Code::kUnknownDType, fmt::format("the tensor needs {}, whose dtype {} is unknown",
                                                       quote(found.name), quote(found.unknown_dtype)))
                    .of_tensor(tensor)
                    .by_rule("R45"));
  }
  SourceId& id = source_ids_[index_of(found)];
  if (id.is_none()) id = add(found);
  return id;
}

// A source is dequantized wherever it is read, or nowhere, and always by the same scales.
Result<void> SourceTable::scale(std::string_view tensor, std::uint32_t checkpoint, const mapping::PieceScaling* wanted,
                                SourceId id, bool is_new) {
  const auto refuse = [&](std::string message) {
    return fail(Error(Code::kMapping, std::move(message)).of_tensor(tensor).by_rule("R48"));
  };
  if (wanted == nullptr) {
    if (!plan_.sources[id].scaling) return {};
    return refuse(fmt::format("{} is read both with and without its scales", quote(plan_.sources[id].key)));
  }
  LADING_ASSIGN_OR_RETURN(plan::Scaling scaling, scaling_of(tensor, checkpoint, *wanted, id));
  Source& source = plan_.sources[id];
  if (is_new) {
    source.scaling = std::move(scaling);
    source.shape = wanted->shape;
  } else if (source.scaling != scaling) {
    return refuse(
        fmt::format("{} is read in two ways: with and without scales, or with two sets of scales", quote(source.key)));
  }
  return {};
}

Result<plan::Scaling> SourceTable::scaling_of(std::string_view tensor, std::uint32_t checkpoint,
                                              const mapping::PieceScaling& wanted, SourceId id) {
  const auto refuse = [&](std::string message) {
    return fail(Error(Code::kMapping, std::move(message)).of_tensor(tensor).by_rule("R48"));
  };
  const Decoding& decoding = wanted.decoding;
  const DType dtype = plan_.sources[id].dtype;
  const std::string key = quote(plan_.sources[id].key);
  if (!decoding.code && (!checkpoint::is_low_precision(dtype) || bits(dtype) != 8)) {
    return refuse(fmt::format("{} is {}, but only 8-bit floats can be dequantized without a code", key, name(dtype)));
  }
  if (decoding.code) {
    const DTypeClass kind = class_of(dtype);
    const bool is_integer = kind == DTypeClass::kSigned || kind == DTypeClass::kUnsigned;
    if (!is_integer || bits(dtype) != bits(*decoding.code) * decoding.per_element) {
      return refuse(fmt::format("{} is {}, which does not hold {} codes of {}", key, name(dtype), decoding.per_element,
                                name(*decoding.code)));
    }
  }
  plan::Scaling scaling;
  scaling.block = wanted.block;
  scaling.product = wanted.product;
  scaling.decoding = decoding;
  LADING_ASSIGN_OR_RETURN(scaling.scales, number_of(tensor, checkpoint, wanted.scales));
  const DType stored = plan_.sources[scaling.scales].dtype;
  const bool is_of_bits = decoding.scale_dtype.has_value();
  const bool fits = is_of_bits ? stored == DType::kU8 && decoding.scale_dtype == DType::kF8E8M0
                               : checkpoint::is_scale_dtype(stored) || (decoding.code && stored == DType::kF8E4M3);
  if (!fits) {
    return refuse(fmt::format("the scales {} are {}, which is not supported", quote(wanted.scales), name(stored)));
  }
  if (!wanted.zeros.empty()) {
    LADING_ASSIGN_OR_RETURN(scaling.zeros, number_of(tensor, checkpoint, wanted.zeros));
    if (plan_.sources[scaling.zeros].dtype != dtype || decoding.code == CodeType::kF4 || !decoding.code) {
      return refuse(fmt::format("the zero points {} are not codes like those of {}", quote(wanted.zeros), key));
    }
  }
  if (!wanted.tensor_scale.empty()) {
    LADING_ASSIGN_OR_RETURN(scaling.tensor_scale, number_of(tensor, checkpoint, wanted.tensor_scale));
    if (plan_.sources[scaling.tensor_scale].dtype != DType::kF32) {
      return refuse(fmt::format("the scale of the whole tensor {} is not in F32", quote(wanted.tensor_scale)));
    }
  }
  if (!wanted.groups.empty()) {
    LADING_ASSIGN_OR_RETURN(scaling.groups, number_of(tensor, checkpoint, wanted.groups));
    if (plan_.sources[scaling.groups].dtype != DType::kI32) {
      return refuse(fmt::format("the groups {} are {}, not I32", quote(wanted.groups),
                                name(plan_.sources[scaling.groups].dtype)));
    }
  }
  return scaling;
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
