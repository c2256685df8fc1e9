#include "checker/check_decoding.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/text.h"
#include "checker/cast_rules.h"
#include "checker/problem.h"

namespace lading::checker {
namespace {

using Dims = std::vector<std::uint64_t>;

// Codes have 8 bits at most; more than this is no zero, and would cost the difference its exactness.
constexpr std::uint64_t kMaxZero = (1 << 16) - 1;

Dims without_ones(Dims dims) {
  std::erase(dims, 1);
  return dims;
}

// Too large stays too large, but nothing times anything is nothing.
std::uint64_t product_or_too_much(std::uint64_t a, std::uint64_t b) { return checked_mul(a, b).value_or(kMaxSize + 1); }

// Whether `merged` has the elements of `dims` in the same order: neighbours may have become one dim. After each dim of
// `merged`, `reached[i]` says whether it and those before it can be the first i of `dims`; extents of 0 leave a choice.
bool is_merge_of(const Dims& dims, const Dims& merged) {
  std::vector<bool> reached(dims.size() + 1, false);
  reached[0] = true;
  for (const std::uint64_t wanted : merged) {
    std::vector<bool> next(dims.size() + 1, false);
    for (std::size_t from = 0; from < dims.size(); ++from) {
      if (!reached[from]) continue;
      std::uint64_t product = 1;
      for (std::size_t to = from; to < dims.size(); ++to) {
        product = product_or_too_much(product, dims[to]);
        if (product == wanted) next[to + 1] = true;
      }
    }
    reached = std::move(next);
  }
  return reached[dims.size()];
}

bool is_order_of_all(const std::vector<std::size_t>& order) {
  std::vector<bool> seen(order.size(), false);
  for (const std::size_t i : order) {
    if (i >= order.size() || seen[i]) return false;
    seen[i] = true;
  }
  return true;
}

class DecodingCheck {
 public:
  DecodingCheck(const Plan& plan, const Source& source) : plan_(plan), source_(source), scaling_(*source.scaling) {}

  std::optional<Error> run() {
    if (auto wrong = find_other("scales", scaling_.scales)) return wrong;
    if (!scaling_.zeros.is_none()) {
      if (auto wrong = find_other("zero points", scaling_.zeros)) return wrong;
    }
    if (!scaling_.tensor_scale.is_none()) {
      if (auto wrong = find_other("tensor scales", scaling_.tensor_scale)) return wrong;
    }
    if (!scaling_.groups.is_none()) {
      if (auto wrong = find_other("groups", scaling_.groups)) return wrong;
    }
    if (auto wrong = in_codes()) return wrong;
    if (auto wrong = in_grid()) return wrong;
    if (auto wrong = in_scales()) return wrong;
    if (auto wrong = in_zeros()) return wrong;
    if (auto wrong = in_groups()) return wrong;
    return in_tensor_scale();
  }

 private:
  [[nodiscard]] Error wrong(std::string_view part, std::string_view what) const {
    return problem(fmt::format("the {} of {} {}", part, quote(source_.key), what), "R48");
  }

  [[nodiscard]] std::optional<Error> find_other(std::string_view part, SourceId id) const {
    if (!plan_.sources.has(id)) return wrong(part, "are not in the plan");
    const Source& other = plan_.sources[id];
    if (other.scaling) return wrong(part, "have scales themselves");
    const bool known = plan_.files.has(source_.file) && plan_.files.has(other.file);
    if (known && plan_.files[source_.file].checkpoint != plan_.files[other.file].checkpoint)
      return wrong(part, "belong to another checkpoint");
    return std::nullopt;
  }

  // That the elements of the source's shape are the codes of the key's elements.
  [[nodiscard]] std::optional<Error> in_codes() const {
    const Decoding& decoding = scaling_.decoding;
    if (decoding.zero > kMaxZero) return wrong("codes", "have a zero that is too large");
    if (!decoding.code) {
      if (decoding.zero != 0 || !scaling_.zeros.is_none()) return wrong("elements", "are not codes, but have a zero");
      return std::nullopt;
    }
    const DTypeClass kind = class_of(source_.dtype);
    if (kind != DTypeClass::kUnsigned && kind != DTypeClass::kSigned) {
      return wrong("codes", "are packed in elements that are not integers").got(std::string(name(source_.dtype)));
    }
    const std::uint64_t together = bits(source_.dtype) / bits(*decoding.code);
    if (decoding.per_element != together) {
      return wrong("codes", "are not as many as an element holds")
          .wanted(std::to_string(together))
          .got(std::to_string(decoding.per_element));
    }
    const Shape& shape = source_.shape;
    if (shape.rank() > 0 && shape[shape.rank() - 1] == together) return std::nullopt;
    return wrong("codes", "are not the last dim of its shape").wanted(std::to_string(together)).got(shape.text());
  }

  [[nodiscard]] std::optional<Error> in_grid() {
    if (scaling_.product && !is_rounding_sound(*scaling_.product))
      return wrong("scales", "have products whose dtype is not a float");
    const Shape& block = scaling_.block;
    if (block.rank() != source_.shape.rank()) return wrong("scales", "have blocks with another number of dims");
    if (!block.num_elems()) return wrong("scales", "have blocks that are too large");
    for (std::size_t d = 0; d < block.rank(); ++d) {
      const auto blocks = blocks_of(source_.shape[d], block[d]);
      if (!blocks) return wrong("scales", "have empty blocks");
      grid_.push_back(*blocks);
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<Error> in_scales() const {
    const Source& scales = plan_.sources[scaling_.scales];
    const Decoding& decoding = scaling_.decoding;
    if (decoding.scale_dtype && (scales.dtype != DType::kU8 || *decoding.scale_dtype != DType::kF8E8M0)) {
      return wrong("scales", "cannot be read as the dtype that the plan gives").got(std::string(name(scales.dtype)));
    }
    const Dims wanted = without_ones(grid_);
    const Dims found = without_ones({scales.shape.begin(), scales.shape.end()});
    // Where an element was split into its codes, a dim of the tensor that was packed is two dims of the grid.
    if (decoding.code ? !is_merge_of(wanted, found) : wanted != found) {
      return wrong("scales", "are not one for each block").wanted(Shape(wanted).text()).got(scales.shape.text());
    }
    const std::vector<std::size_t>& order = decoding.scale_order;
    if (order.empty()) return std::nullopt;
    if (!is_order_of_all(order)) return wrong("scales", "have an order that is not a permutation");
    // So that whole rows of blocks, which are what a rank reads, have whole runs.
    if (grid_.size() > 1 && grid_.back() % order.size() == 0) return std::nullopt;
    return wrong("scales", "have an order that does not fit their number")
        .wanted(std::to_string(order.size()))
        .got(Shape(grid_).text());
  }

  // Of the scales' shape, but for the dim along which an element holds several.
  [[nodiscard]] std::optional<Error> in_zeros() const {
    if (scaling_.zeros.is_none()) return std::nullopt;
    const Source& zeros = plan_.sources[scaling_.zeros];
    if (zeros.dtype != source_.dtype) {
      return wrong("zero points", "are packed in elements of another dtype")
          .wanted(std::string(name(source_.dtype)))
          .got(std::string(name(zeros.dtype)));
    }
    const Shape& scales = plan_.sources[scaling_.scales].shape;
    const std::size_t dim = scaling_.decoding.zeros_dim;
    if (dim >= scales.rank()) return wrong("zero points", "are packed along a dim that the scales do not have");
    Dims wanted(scales.begin(), scales.end());
    wanted[dim] = *blocks_of(wanted[dim], scaling_.decoding.per_element);
    if (without_ones(wanted) == without_ones({zeros.shape.begin(), zeros.shape.end()})) return std::nullopt;
    return wrong("zero points", "are not one for each block").wanted(Shape(wanted).text()).got(zeros.shape.text());
  }

  // One I32 for each code along a dim of the key, whose blocks have whole elements.
  [[nodiscard]] std::optional<Error> in_groups() const {
    if (scaling_.groups.is_none()) {
      if (scaling_.decoding.groups_dim == 0) return std::nullopt;
      return wrong("groups", "have a dim, but are not there");
    }
    const Source& groups = plan_.sources[scaling_.groups];
    if (groups.dtype != DType::kI32) {
      return wrong("groups", "are of another dtype").wanted("I32").got(std::string(name(groups.dtype)));
    }
    if (!scaling_.decoding.code) return wrong("groups", "are of elements that are no codes");
    if (!scaling_.decoding.scale_order.empty()) return wrong("groups", "are beside scales in an order of their own");
    const std::size_t last = source_.shape.rank() - 1;  // that of the codes: in_codes() has seen it
    const std::size_t dim = scaling_.decoding.groups_dim;
    if (dim >= last) return wrong("groups", "are along a dim that the key does not have");
    if (grid_[last] != 1) return wrong("groups", "are of blocks that cut elements");
    const auto codes = checked_mul(source_.shape[dim], source_.shape[last]);
    if (codes && groups.shape.rank() == 1 && groups.shape[0] == *codes) return std::nullopt;
    return wrong("groups", "are not one for each code along their dim")
        .wanted(fmt::format("[{}]", codes.value_or(0)))
        .got(groups.shape.text());
  }

  [[nodiscard]] std::optional<Error> in_tensor_scale() const {
    if (scaling_.tensor_scale.is_none()) return std::nullopt;
    const Source& scale = plan_.sources[scaling_.tensor_scale];
    if (scale.dtype == DType::kF32 && scale.shape.num_elems() == 1) return std::nullopt;
    return wrong("tensor scale", "is not one F32 number")
        .got(fmt::format("{} {}", name(scale.dtype), scale.shape.text()));
  }

  const Plan& plan_;
  const Source& source_;
  const plan::Scaling& scaling_;
  Dims grid_;
};

}  // namespace

// Blocks are counted by walking over the extent, in one step for all whole ones.
std::optional<std::uint64_t> blocks_of(std::uint64_t extent, std::uint64_t block) {
  if (block == 0) return std::nullopt;
  std::uint64_t blocks = extent / block;
  if (blocks * block < extent) ++blocks;
  return blocks;
}

std::optional<Error> find_scaling_problem(const Plan& plan, const Source& source) {
  return DecodingCheck(plan, source).run();
}

bool values_fit(const Plan& plan, const Source& source, DType to) {
  if (!source.scaling) return cast_is_sound(source.dtype, to);
  if (!plan.sources.has(source.scaling->scales)) return false;
  const Decoding& decoding = source.scaling->decoding;
  const DType scales = decoding.scale_dtype.value_or(plan.sources[source.scaling->scales].dtype);
  // What dtype holds the codes is find_scaling_problem()'s to say: their values are all small.
  return (decoding.code || is_eight_bit_float(source.dtype)) && scaling_is_sound(scales, to);
}

}  // namespace lading::checker
