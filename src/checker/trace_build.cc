// From an expression to the nodes of a Trace: what fits together, and the shape of the result.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "checker/trace.h"

namespace lading::checker {
namespace {

using mapping::Expression;
using mapping::Op;

constexpr int kMaxDepth = 200;

Unexpected<Error> refuse(std::string message) {
  return fail(Error(Code::kPlanCheck, std::move(message)).by_rule("R41"));
}

// Elements of dims [from, to); the shape's own number of elements has been checked, zeros apart.
std::uint64_t elems_of(const Shape& shape, std::size_t from, std::size_t to) {
  std::uint64_t product = 1;
  for (std::size_t d = from; d < to; ++d) product *= shape[d];
  return product;
}

Shape with_dim(const Shape& shape, std::size_t dim, std::uint64_t size) {
  std::vector<std::uint64_t> dims(shape.begin(), shape.end());
  dims[dim] = size;
  return Shape(std::move(dims));
}

bool is_permutation_of(const std::vector<std::size_t>& order, std::size_t size) {
  std::vector<std::size_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] != i) return false;
  }
  return sorted.size() == size;
}

std::size_t parts_wanted(Op op, std::size_t have) {
  if (op == Op::kSource || op == Op::kDequantize) return 0;
  return op == Op::kConcat || op == Op::kStack ? std::max<std::size_t>(have, 1) : 1;
}

}  // namespace

// Two kinds of node are enough for all operations, because every tensor is row-major. Seen from dim d, the dims in
// front of d only repeat a period, and the dims behind it multiply sizes and offsets by `inner`:
//
//   concat, stack, pad   a period is the parts' own periods side by side
//   slice                a period is a stretch of the part's period. Slice 1..3 of dim 1 of [4, 5, 2] has inner 2,
//                        period (3 - 1) * 2 = 4, part_period 5 * 2 = 10 and part_offset 1 * 2 = 2. Element 5 is
//                        period 1, place 1: element 1 * 10 + 2 + 1 = 13 of the part, index [1, 1, 1].
//   permute, rearrange   one size and two strides per dim: in the result and in the part
//   reshape              no node: the row-major order stays
class TraceBuilder {
 public:
  TraceBuilder(SourceIndex& index, const IndexedVector<SourceId, Source>& sources, std::uint32_t checkpoint)
      : index_(index), all_(sources), checkpoint_(checkpoint) {}

  Result<Trace> build(const Expression& expression) {
    LADING_ASSIGN_OR_RETURN(Built root, visit(expression, 0));
    trace_.root_ = root.node;
    trace_.shape_ = std::move(root.shape);
    return std::move(trace_);
  }

  static Trace constant(const Shape& shape, const model::Recipe& recipe) {
    Trace trace;
    trace.shape_ = shape;
    trace.nodes_.push_back({});
    trace.nodes_.front().kind = Trace::NodeKind::kConstant;
    trace.nodes_.front().fill = recipe.value;
    if (!recipe.zero_row || shape.rank() == 0) return trace;
    Trace::Node zero;
    zero.kind = Trace::NodeKind::kConstant;
    Trace::Node rows;
    rows.kind = Trace::NodeKind::kSegments;
    const std::uint64_t row = elems_of(shape, 1, shape.rank());
    const std::uint64_t all = elems_of(shape, 0, shape.rank());
    // check_fill() has refused a row outside of the tensor: the product does not overflow.
    const std::uint64_t begin = std::min(all, *recipe.zero_row * row);
    const std::uint64_t end = std::min(all, begin + row);
    rows.period = all;
    // A constant has no positions, so any period and offset will do for it.
    if (begin > 0) rows.segments.push_back({0, begin, 0, all, 0});
    if (end > begin) rows.segments.push_back({begin, end, 1, all, 0});
    if (all > end) rows.segments.push_back({end, all, 0, all, 0});
    trace.nodes_.push_back(std::move(zero));
    trace.nodes_.push_back(std::move(rows));
    trace.root_ = 2;
    return trace;
  }

 private:
  struct Built {
    Trace::NodeId node;
    Shape shape;
  };
  using Parts = std::vector<Built>;

  Trace::NodeId add(Trace::Node node) {
    trace_.nodes_.push_back(std::move(node));
    return Trace::NodeId(trace_.nodes_.size() - 1);
  }

  Result<Built> visit(const Expression& e, int depth) {
    if (depth > kMaxDepth) return refuse("the expression is nested too deeply");
    if (e.parts.size() != parts_wanted(e.op, e.parts.size())) {
      return refuse(fmt::format("an operation of the expression has {} parts", e.parts.size()));
    }
    if (e.op == Op::kSource || e.op == Op::kDequantize) return source(e);
    Parts parts;
    parts.reserve(e.parts.size());
    for (const Expression& part : e.parts) {
      LADING_ASSIGN_OR_RETURN(Built built, visit(part, depth + 1));
      parts.push_back(std::move(built));
    }
    const std::size_t rank = parts.front().shape.rank();
    if (e.op != Op::kPermute && e.op != Op::kReshape && e.dim >= rank + (e.op == Op::kStack ? 1 : 0)) {
      return refuse(fmt::format("the expression names dim {} of a tensor of {} dims", e.dim, rank));
    }
    LADING_ASSIGN_OR_RETURN(Built built, combine(e, parts));
    // Everything later multiplies dims without looking.
    if (!built.shape.num_elems()) return refuse("the expression makes a tensor that is too large");
    return built;
  }

  Result<Built> combine(const Expression& e, Parts& parts) {
    switch (e.op) {
      case Op::kConcat: return concat(e, parts);
      case Op::kStack: return stack(e, parts);
      case Op::kSlice: return slice(e, parts.front());
      case Op::kPermute: return permute(e, parts.front());
      case Op::kRearrange: return rearrange(e, parts.front());
      case Op::kReshape: return reshape(e, parts.front());
      case Op::kPad: return pad(e, parts.front());
      case Op::kDequantize:
      case Op::kSource: break;
    }
    return refuse("the expression has an operation that is unknown");
  }

  Result<Built> source(const Expression& e) {
    const auto found = index_.find(e.key, checkpoint_);
    if (!found) return refuse(fmt::format("the plan has no source {}{}", quote(e.key), of_checkpoint()));
    const Shape& shape = all_[*found].shape;
    if (!shape.num_elems()) return refuse(fmt::format("the source {} is too large", quote(e.key)));
    if (!is_scaled_as(all_[*found], e)) {
      return refuse(fmt::format("the source {} is not dequantized as the expression says", quote(e.key)));
    }
    Trace::Node node;
    node.source = *found;
    trace_.sources_.push_back(*found);
    return Built{add(std::move(node)), shape};
  }

  // Elements are dequantized where they are read: so the source itself must say how, and all of it as the expression
  // does, or be taken as it is. The shape of a source with codes has them in a dim more than the key.
  [[nodiscard]] bool is_scaled_as(const Source& source, const Expression& e) const {
    if (e.op == Op::kSource || !source.scaling) return e.op == Op::kSource && !source.scaling;
    const plan::Scaling& scaling = *source.scaling;
    return is_key(scaling.scales, e.scales) && !e.scales.empty() && is_key(scaling.zeros, e.zeros) &&
           is_key(scaling.tensor_scale, e.tensor_scale) && is_key(scaling.groups, e.groups) &&
           scaling.block == e.shape && scaling.product == e.product && scaling.decoding == e.decoding;
  }

  // "" is the key of no source. Of which checkpoint it is, find_scaling_problem() says.
  [[nodiscard]] bool is_key(SourceId source, const std::string& key) const {
    if (source.is_none() || key.empty()) return source.is_none() && key.empty();
    return all_.has(source) && all_[source].key == key;
  }

  // Adds parts side by side, each `size` elements of a period of its own.
  static void append(Trace::Node& node, Trace::NodeId part, std::uint64_t size) {
    if (size == 0) return;
    node.segments.push_back({node.period, node.period + size, part, size, 0});
    node.period += size;
  }

  Result<Built> concat(const Expression& e, const Parts& parts) {
    const Shape& first = parts.front().shape;
    Trace::Node node;
    node.kind = Trace::NodeKind::kSegments;
    std::uint64_t size = 0;
    for (const Built& part : parts) {
      if (part.shape.rank() != first.rank() || with_dim(part.shape, e.dim, 0) != with_dim(first, e.dim, 0)) {
        return refuse(fmt::format("parts of shapes {} and {} are concatenated in dim {}", first.text(),
                                  part.shape.text(), e.dim));
      }
      const auto sum = checked_add(size, part.shape[e.dim]);
      if (!sum) return refuse("the expression makes a tensor that is too large");
      size = *sum;
    }
    Shape shape = with_dim(first, e.dim, size);
    // visit() checks every result, but append() multiplies before that.
    if (!shape.num_elems()) return refuse("the expression makes a tensor that is too large");
    for (const Built& part : parts) append(node, part.node, elems_of(part.shape, e.dim, first.rank()));
    return Built{add(std::move(node)), std::move(shape)};
  }

  // As concat of parts that have one more dim, of one element, at `dim`: it does not change their periods.
  Result<Built> stack(const Expression& e, const Parts& parts) {
    const Shape& first = parts.front().shape;
    std::vector<std::uint64_t> dims(first.begin(), first.end());
    dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(e.dim), parts.size());
    Shape shape(std::move(dims));
    if (!shape.num_elems()) return refuse("the expression makes a tensor that is too large");
    Trace::Node node;
    node.kind = Trace::NodeKind::kSegments;
    for (const Built& part : parts) {
      if (part.shape != first) {
        return refuse(fmt::format("parts of shapes {} and {} are stacked", first.text(), part.shape.text()));
      }
      append(node, part.node, elems_of(first, e.dim, first.rank()));
    }
    return Built{add(std::move(node)), std::move(shape)};
  }

  Result<Built> slice(const Expression& e, const Built& part) {
    const std::uint64_t size = part.shape[e.dim];
    if (e.begin > e.end || e.end > size) {
      return refuse(fmt::format("the expression slices {}..{} of {}", e.begin, e.end, size));
    }
    const std::uint64_t inner = elems_of(part.shape, e.dim + 1, part.shape.rank());
    Trace::Node node;
    node.kind = Trace::NodeKind::kSegments;
    // 0 for an empty slice. Nothing divides by it: nobody asks for elements of an empty tensor.
    node.period = (e.end - e.begin) * inner;
    node.segments.push_back({0, node.period, part.node, size * inner, e.begin * inner});
    return Built{add(std::move(node)), with_dim(part.shape, e.dim, e.end - e.begin)};
  }

  Result<Built> pad(const Expression& e, const Built& part) {
    const std::uint64_t size = part.shape[e.dim];
    if (e.end < size) return refuse(fmt::format("the expression pads {} to {}", size, e.end));
    Shape shape = with_dim(part.shape, e.dim, e.end);
    if (!shape.num_elems()) return refuse("the expression makes a tensor that is too large");
    const std::uint64_t inner = elems_of(part.shape, e.dim + 1, part.shape.rank());
    Trace::Node constant;
    constant.kind = Trace::NodeKind::kConstant;
    constant.fill = e.fill;
    Trace::Node node;
    node.kind = Trace::NodeKind::kSegments;
    append(node, part.node, size * inner);
    append(node, add(std::move(constant)), (e.end - size) * inner);
    return Built{add(std::move(node)), std::move(shape)};
  }

  Result<Built> reshape(const Expression& e, const Built& part) {
    if (e.shape.num_elems() != part.shape.num_elems()) {
      return refuse(fmt::format("a tensor of shape {} is reshaped to {}", part.shape.text(), e.shape.text()));
    }
    return Built{part.node, e.shape};
  }

  Result<Built> permute(const Expression& e, const Built& part) {
    if (!is_permutation_of(e.order, part.shape.rank())) {
      return refuse(fmt::format("the expression permutes {} dims by an order that is none", part.shape.rank()));
    }
    std::vector<std::uint64_t> dims;
    for (const std::size_t from : e.order) dims.push_back(part.shape[from]);
    return Built{reordered(part.node, {part.shape.begin(), part.shape.end()}, e.order), Shape(std::move(dims))};
  }

  // The dim is seen as several, and only these change places. Six rows as factors (3, 2) in order (1, 0) become rows
  // 0 2 4 1 3 5 of the part.
  Result<Built> rearrange(const Expression& e, const Built& part) {
    std::optional<std::uint64_t> product = 1;
    for (const std::uint64_t factor : e.factors) {
      if (product) product = checked_mul(*product, factor);
    }
    if (product != part.shape[e.dim] || !is_permutation_of(e.order, e.factors.size())) {
      return refuse(
          fmt::format("the expression splits {} into factors or an order that do not fit", part.shape[e.dim]));
    }
    std::vector<std::uint64_t> dims;
    std::vector<std::size_t> order;
    for (std::size_t d = 0; d < part.shape.rank(); ++d) {
      const std::size_t base = dims.size();
      if (d != e.dim) {
        order.push_back(base);
        dims.push_back(part.shape[d]);
        continue;
      }
      for (const std::size_t from : e.order) order.push_back(base + from);
      dims.insert(dims.end(), e.factors.begin(), e.factors.end());
    }
    return Built{reordered(part.node, dims, order), part.shape};
  }

  Trace::NodeId reordered(Trace::NodeId part, const std::vector<std::uint64_t>& part_dims,
                          const std::vector<std::size_t>& order) {
    if (std::find(part_dims.begin(), part_dims.end(), 0) != part_dims.end()) return part;  // nobody will ask
    std::vector<std::uint64_t> part_strides(part_dims.size());
    std::uint64_t stride = 1;
    for (std::size_t d = part_dims.size(); d-- > 0;) {
      part_strides[d] = stride;
      stride *= part_dims[d];
    }
    // Dims of one element say nothing, and neighbours that stay neighbours are one dim: so runs are long. [2, 3, 4] in
    // order (2, 0, 1) becomes two dims, {size 4, stride 6, part_stride 1} and {6, 1, 4}.
    Trace::Node node;
    node.kind = Trace::NodeKind::kDims;
    node.part = part;
    for (const std::size_t from : order) {
      if (part_dims[from] == 1) continue;
      if (!node.dims.empty() && node.dims.back().part_stride == part_dims[from] * part_strides[from]) {
        node.dims.back().size *= part_dims[from];
        node.dims.back().part_stride = part_strides[from];
      } else {
        node.dims.push_back({part_dims[from], 0, part_strides[from]});
      }
    }
    stride = 1;
    for (std::size_t d = node.dims.size(); d-- > 0;) {
      node.dims[d].stride = stride;
      stride *= node.dims[d].size;
    }
    if (node.dims.size() <= 1) return part;  // the order of the elements is as it was
    return add(std::move(node));
  }

  [[nodiscard]] std::string of_checkpoint() const {
    return checkpoint_ == 0 ? "" : fmt::format(" of adapter {}", checkpoint_);
  }

  SourceIndex& index_;
  const IndexedVector<SourceId, Source>& all_;
  std::uint32_t checkpoint_;  // whose keys the expression names
  Trace trace_;
};

// A file that the plan has not is refused elsewhere.
SourceIndex::Key SourceIndex::key_of(SourceId source) const {
  const Source& one = plan_->sources[source];
  return {plan_->files.has(one.file) ? plan_->files[one.file].checkpoint : 0, one.key};
}

SourceIndex::SourceIndex(const Plan& plan) : plan_(&plan), by_key_(plan.sources.size()) {
  std::iota(by_key_.begin(), by_key_.end(), SourceId(0));
  const auto by_key = [&](SourceId a, SourceId b) { return key_of(a) < key_of(b); };
  if (!std::is_sorted(by_key_.begin(), by_key_.end(), by_key)) {
    std::stable_sort(by_key_.begin(), by_key_.end(), by_key);
  }
  for (std::size_t i = 1; i < by_key_.size(); ++i) {
    if (key_of(by_key_[i - 1]) != key_of(by_key_[i])) continue;
    again_.resize(plan.sources.size());
    again_[by_key_[i]] = true;
  }
}

std::optional<SourceId> SourceIndex::find(std::string_view key, std::uint32_t checkpoint) {
  const Key wanted{checkpoint, key};
  // Of equal keys the first is meant, which only a search finds.
  if (next_ >= by_key_.size() || is_again(by_key_[next_]) || key_of(by_key_[next_]) != wanted) {
    const auto found = std::lower_bound(by_key_.begin(), by_key_.end(), wanted,
                                        [&](SourceId source, const Key& k) { return key_of(source) < k; });
    if (found == by_key_.end() || key_of(*found) != wanted) return std::nullopt;
    next_ = static_cast<std::size_t>(found - by_key_.begin());
  }
  return by_key_[next_++];
}

Result<Trace> Trace::of(const mapping::Expression& expression, std::uint32_t checkpoint, SourceIndex& index,
                        const IndexedVector<SourceId, Source>& sources) {
  return TraceBuilder(index, sources, checkpoint).build(expression);
}

Trace Trace::constant(const Shape& shape, const model::Recipe& recipe) { return TraceBuilder::constant(shape, recipe); }

}  // namespace lading::checker
