// For tests: changes to how a quantized source is decoded, and to what a rank reads for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checker/tests/check_mutations_for_tests.h"

namespace lading::checker::naive {

inline bool Mutator::shift_first_code() {
  for (int i = 0; i < 8; ++i) {
    Transfer* t = transfer();
    if (t == nullptr || (!t->is_fill() && !plan_.sources[t->source].code() && i < 7)) continue;
    if (t->first_code > 0 && dice_.once_in(2)) {
      --t->first_code;
    } else {
      ++t->first_code;
    }
    if (dice_.once_in(3) && t->run_elems > 1) --t->run_elems;  // the bytes may be the same
    return true;
  }
  return false;
}

inline bool Mutator::change_decoding(Decoding& decoding) {
  const CodeType codes[] = {CodeType::kF4, CodeType::kU2, CodeType::kU4, CodeType::kU8, CodeType::kI8};
  const std::optional<DType> dtypes[] = {std::nullopt, DType::kF8E8M0, DType::kF8E4M3, DType::kU8};
  std::vector<std::size_t>& order = decoding.scale_order;
  switch (dice_.below(10)) {
    case 0: decoding.code = codes[dice_.below(5)]; break;
    case 1: decoding.code.reset(); break;
    case 2: decoding.per_element = std::uint64_t{1} << dice_.below(6); break;
    case 3: decoding.zero = dice_.once_in(3) ? 65535 + dice_.below(2) : decoding.zero + 1; break;
    case 4: decoding.zeros_dim = dice_.below(4); break;
    case 5: decoding.scale_dtype = dtypes[dice_.below(4)]; break;
    case 6:
      decoding.tensor_scale =
          decoding.tensor_scale == TensorScale::kFactor ? TensorScale::kDivisor : TensorScale::kFactor;
      break;
    case 7: decoding.groups_dim = dice_.below(4); break;
    case 8:
      if (order.size() < 2) return false;
      std::swap(order.front(), dice_.once_in(2) ? order.back() : order[1]);
      if (dice_.once_in(3)) order.front() = order.back();
      break;
    default:
      if (dice_.once_in(2)) {
        order.clear();
      } else {
        order.push_back(order.size());
      }
  }
  return true;
}

inline bool Mutator::change_decoding_of_source() {
  Source* s = scaled_source();
  return s != nullptr && change_decoding(s->scaling->decoding);
}

inline mapping::Expression* Mutator::any_leaf() {
  for (int i = 0; i < 8; ++i) {
    Statement* s = statement();
    if (s == nullptr || s->provenance != Provenance::kFile) continue;
    mapping::Expression* e = &s->expression;
    while (!e->parts.empty()) e = any(e->parts);
    if (e->op == mapping::Op::kDequantize) return e;
  }
  return nullptr;
}
inline bool Mutator::change_decoding_of_expression() {
  mapping::Expression* e = any_leaf();
  return e != nullptr && change_decoding(e->decoding);
}

// Of the companions that a source may lack, one.
inline SourceId& Mutator::any_companion(plan::Scaling& scaling) {
  switch (dice_.below(3)) {
    case 0: return scaling.zeros;
    case 1: return scaling.tensor_scale;
    default: return scaling.groups;
  }
}

// Other zero points, groups, or another tensor scale; none where there were some, or the other way round.
inline bool Mutator::change_companions() {
  Source* s = scaled_source();
  if (s == nullptr) return false;
  SourceId& id = any_companion(*s->scaling);
  id = !id.is_none() && dice_.once_in(3) ? SourceId::none() : SourceId(dice_.below(plan_.sources.size() + 1));
  return true;
}
inline bool Mutator::change_companion_keys() {
  mapping::Expression* e = any_leaf();
  if (e == nullptr) return false;
  std::string& key = dice_.once_in(2) ? e->zeros : dice_.once_in(2) ? e->tensor_scale : e->groups;
  key = !key.empty() && dice_.once_in(2) ? "" : any(plan_.sources)->key;
  return true;
}

// As the source says it, right or wrong.
inline void Mutator::retell(mapping::Expression& e, const Source& source) {
  if (e.op == mapping::Op::kDequantize && e.key == source.key) {
    e.scales = key_of(source.scaling->scales, plan_).value_or("?");
    e.zeros = key_of(source.scaling->zeros, plan_).value_or("?");
    e.tensor_scale = key_of(source.scaling->tensor_scale, plan_).value_or("?");
    e.groups = key_of(source.scaling->groups, plan_).value_or("?");
    e.shape = source.scaling->block;
    e.product = source.scaling->product;
    e.decoding = source.scaling->decoding;
  }
  for (mapping::Expression& part : e.parts) retell(part, source);
}

// Source, expressions and reads all agree: only what is wrong with the scaling itself is left.
inline bool Mutator::change_scaling_everywhere() {
  Source* s = scaled_source();
  if (s == nullptr) return false;
  const std::uint64_t what = dice_.below(4);
  if (what < 2) {
    SourceId& companion = any_companion(*s->scaling);
    companion =
        !companion.is_none() && dice_.once_in(3) ? SourceId::none() : SourceId(dice_.below(plan_.sources.size()));
  } else if (what == 2 || s->scaling->block.rank() == 0) {
    if (!change_decoding(s->scaling->decoding)) return false;
  } else {
    std::vector<std::uint64_t> block(s->scaling->block.begin(), s->scaling->block.end());
    nudge(block[dice_.below(block.size())]);
    s->scaling->block = Shape(block);
  }
  for (Statement& statement : plan_.statements) {
    retell(statement.expression, *s);
    for (mapping::Expression& other : statement.must_equal) retell(other, *s);
  }
  if (!scaling_good(plan_, *s)) return true;
  for (RankPlan& r : plan_.ranks) {
    r.scale_reads = scale_reads_of(plan_, r);
    r.staging_bytes = std::max(r.staging_bytes, memory_of_scales(plan_, r));
    add_up(r);
  }
  return true;
}

// The element of another dtype, and as many codes as that has.
inline bool Mutator::change_packing() {
  Source* s = scaled_source();
  if (s == nullptr || !s->code()) return false;
  const DType dtypes[] = {DType::kU8, DType::kBool, DType::kI16, DType::kI32, DType::kF32, DType::kF8E4M3};
  s->dtype = dtypes[dice_.below(6)];
  if (dice_.once_in(2)) return true;
  s->scaling->decoding.per_element = bits(s->dtype) / width_of(*s);
  std::vector<std::uint64_t> dims(s->shape.begin(), s->shape.end());
  dims.back() = s->scaling->decoding.per_element;
  s->shape = Shape(dims);
  return true;
}

inline bool Mutator::resize_zeros_read() {
  for (int i = 0; i < 8; ++i) {
    RankPlan* r = nullptr;
    ScaleRead* one = scale_read(r);
    if (one == nullptr || (one->zeros == ByteRange{} && i < 7)) continue;
    switch (dice_.below(3)) {
      case 0: one->zeros = one->bytes; break;
      case 1: one->zeros = {}; break;
      default: nudge(dice_.once_in(2) ? one->zeros.begin : one->zeros.end);
    }
    if (one->zeros.begin <= one->zeros.end) add_up(*r);
    return true;
  }
  return false;
}
// Without the scale of the whole tensor, or with one where there is none.
inline bool Mutator::drop_tensor_scale_bytes() {
  RankPlan* r = nullptr;
  ScaleRead* one = scale_read(r);
  if (one == nullptr) return false;
  const bool has_one = !plan_.sources[one->source].scaling->tensor_scale.is_none();
  r->read_bytes = has_one ? r->read_bytes - 4 : r->read_bytes + 4;
  return true;
}

}  // namespace lading::checker::naive
