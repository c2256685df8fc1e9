#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "base/loop_nest.h"
#include "base/text.h"
#include "mapping/cut_pieces.h"
#include "mapping/expression.h"
#include "mapping/pieces.h"

namespace lading::mapping {
namespace {

// Codes of two bits in an element of 64.
constexpr std::uint64_t kMaxCodesOfElement = 32;

Error mismatch(const Expression& expression, std::string message) {
  return Error(Code::kMapping, fmt::format("{}: {}", expression.text(), message)).by_rule("R47");
}

// Every index of a shape once: one loop per dim.
Piece whole_piece(PieceSourceId source, const Shape& shape) {
  Piece piece;
  piece.source = source;
  piece.target_origin.assign(shape.rank(), 0);
  if (!source.is_none()) piece.source_origin = piece.target_origin;
  piece.loops.reserve(shape.rank());
  for (std::size_t d = 0; d < shape.rank(); ++d) {
    if (shape[d] > 1) piece.loops.push_back({shape[d], d, 1, d, 1});
  }
  return piece;
}

bool is_permutation_of_dims(const std::vector<std::size_t>& order, std::size_t rank) {
  std::vector<std::size_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::size_t> dims(rank);
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  return sorted == dims;
}

Shape with_dim(const Shape& shape, std::size_t dim, std::uint64_t extent) {
  std::vector<std::uint64_t> dims(shape.begin(), shape.end());
  dims[dim] = extent;
  return Shape(std::move(dims));
}

class Expander {
 public:
  explicit Expander(const ShapeOf& shape_of) : shape_of_(shape_of) {}

  Result<Pieces, Errors> run(const Expression& expression) {
    switch (expression.op) {
      case Op::kSource: return source(expression);
      case Op::kDequantize: return dequantize(expression);
      case Op::kConcat: return concat(expression);
      case Op::kStack: return stack(expression);
      case Op::kSlice: return of_one_part(expression, &slice);
      case Op::kPermute: return of_one_part(expression, &permute);
      case Op::kRearrange: return of_one_part(expression, &rearrange);
      case Op::kReshape: return of_one_part(expression, &reshape);
      case Op::kPad: return of_one_part(expression, &pad);
    }
    return fail(Errors(mismatch(expression, "the operation is not a known enumerator")));
  }

 private:
  using Movement = Result<Pieces, Errors> (*)(const Expression& expression, Pieces part);

  Result<Pieces, Errors> of_one_part(const Expression& expression, Movement movement) {
    if (expression.parts.size() != 1) return fail(Errors(mismatch(expression, "it takes one part")));
    LADING_ASSIGN_OR_RETURN(Pieces part, run(expression.parts.front()));
    return movement(expression, std::move(part));
  }

  Result<Pieces, Errors> source(const Expression& expression) {
    const Shape* shape = shape_of_(expression.key);
    if (shape == nullptr) {
      return fail(Errors(
          Error(Code::kMapping, fmt::format("the checkpoint has no key {}", quote(expression.key))).by_rule("R38")));
    }
    Pieces pieces{*shape, {}, {}, {}};
    pieces.sources.push_back(expression.key);
    if (shape->num_elems() != 0) pieces.pieces.push_back(whole_piece(0, *shape));
    return pieces;
  }

  // The scales move no elements: they are looked up by where an element stands in its source.
  Result<Pieces, Errors> dequantize(const Expression& expression) {
    LADING_ASSIGN_OR_RETURN(Pieces pieces, source(expression));
    const Decoding& decoding = expression.decoding;
    if (decoding.code) {
      if (decoding.per_element == 0 || decoding.per_element > kMaxCodesOfElement) {
        return fail(Errors(mismatch(expression, fmt::format("an element cannot hold {} codes", decoding.per_element))));
      }
      pieces.shape.push_back(decoding.per_element);
      if (!pieces.shape.num_elems()) return fail(Errors(mismatch(expression, "the tensor is too large")));
      pieces.pieces.clear();
      if (pieces.shape.num_elems() != 0) pieces.pieces.push_back(whole_piece(0, pieces.shape));
    }
    const Shape& block = expression.shape;
    const bool has_blocks =
        block.rank() == pieces.shape.rank() && std::find(block.begin(), block.end(), 0) == block.end();
    if (!has_blocks) {
      return fail(Errors(mismatch(expression, "the block has another number of dims than the tensor, or a dim of 0")
                             .wanted(fmt::format("a block of {}", pieces.shape.text()))
                             .got(block.text())));
    }
    if (!block.num_elems()) {
      return fail(Errors(mismatch(expression, "the block is too large").by_rule("R48").got(block.text())));
    }
    if (auto wrong = check_scales(expression, pieces.shape)) return fail(Errors(*std::move(wrong)));
    pieces.scalings[0] = {expression.scales,       block,    expression.product, expression.zeros,
                          expression.tensor_scale, decoding, pieces.shape,       expression.groups};
    return pieces;
  }

  [[nodiscard]] std::optional<Error> check_scales(const Expression& expression, const Shape& shape) const {
    for (const std::string* key :
         {&expression.scales, &expression.zeros, &expression.tensor_scale, &expression.groups}) {
      if (key->empty() && key != &expression.scales) continue;
      if (shape_of_(*key) != nullptr) continue;
      return Error(Code::kMapping, fmt::format("the checkpoint has no key {}", quote(*key))).by_rule("R48");
    }
    std::vector<std::uint64_t> grid;
    for (std::size_t d = 0; d < shape.rank(); ++d) {
      const std::uint64_t block = expression.shape[d];
      grid.push_back(shape[d] / block + (shape[d] % block == 0 ? 0 : 1));
    }
    const Shape& scales = *shape_of_(expression.scales);
    if (!are_of_grid(grid, scales, expression.decoding)) {
      return mismatch(expression, "the scales are not one for each block")
          .by_rule("R48")
          .wanted(fmt::format("{} for blocks of {}", Shape(grid).text(), expression.shape.text()))
          .got(scales.text());
    }
    const std::size_t run = expression.decoding.scale_order.size();
    if (run > 0 && (grid.empty() || grid.back() % run != 0)) {
      return mismatch(expression, fmt::format("\"scale_order\" has {} numbers, which the scales do not fit", run))
          .by_rule("R48");
    }
    if (!expression.zeros.empty()) {
      const Shape& zeros = *shape_of_(expression.zeros);
      const std::optional<Shape> wanted = zeros_shape(scales, expression.decoding);
      if (!wanted || zeros != *wanted) {
        return mismatch(expression, "the zero points are not one for each block")
            .by_rule("R48")
            .wanted(wanted ? wanted->text() : "\"zeros_dim\" that is a dim of the scales")
            .got(zeros.text());
      }
    }
    if (!expression.tensor_scale.empty() && shape_of_(expression.tensor_scale)->num_elems() != 1) {
      return mismatch(expression, "the scale of the whole tensor is not one number")
          .by_rule("R48")
          .got(shape_of_(expression.tensor_scale)->text());
    }
    return expression.groups.empty() ? std::nullopt : check_groups(expression, shape);
  }

  // One for each code along the dim; an element is not cut by a block.
  [[nodiscard]] std::optional<Error> check_groups(const Expression& expression, const Shape& shape) const {
    const Decoding& decoding = expression.decoding;
    const std::size_t dim = decoding.groups_dim;
    if (!decoding.code || !decoding.scale_order.empty() || dim + 1 >= shape.rank() ||
        expression.shape[shape.rank() - 1] != decoding.per_element) {
      return mismatch(expression, "the tensor cannot have groups in an order of their own")
          .by_rule("R48")
          .wanted("codes, \"groups_dim\" that is a dim of their key, and blocks of whole elements")
          .got(fmt::format("\"groups_dim\" {}, and blocks of {}", dim, expression.shape.text()));
    }
    const Shape wanted{shape[dim] * decoding.per_element};
    const Shape& found = *shape_of_(expression.groups);
    if (found == wanted) return std::nullopt;
    return mismatch(expression, "the groups are not one for each row or column")
        .by_rule("R48")
        .wanted(wanted.text())
        .got(found.text());
  }

  // Scales do not know how many codes an element has: the codes and the elements are one dim of theirs. Dims of one
  // block they may have or not.
  static bool are_of_grid(std::vector<std::uint64_t> grid, const Shape& scales, const Decoding& decoding) {
    if (decoding.code && grid.size() > 1) {
      const std::uint64_t codes = grid.back();
      grid.pop_back();
      grid.back() *= codes;
    }
    std::vector<std::uint64_t> found(scales.begin(), scales.end());
    std::erase(found, 1);
    std::erase(grid, 1);
    return found == grid;
  }

  // One code for each scale, packed along one of the dims of the scales.
  static std::optional<Shape> zeros_shape(const Shape& scales, const Decoding& decoding) {
    if (decoding.zeros_dim >= scales.rank()) return std::nullopt;
    const std::uint64_t codes = scales[decoding.zeros_dim];
    return with_dim(scales, decoding.zeros_dim, codes == 0 ? 0 : (codes - 1) / decoding.per_element + 1);
  }

  Result<std::vector<Pieces>, Errors> parts_of(const Expression& expression) {
    if (expression.parts.empty()) return fail(Errors(mismatch(expression, "it has no parts")));
    std::vector<Pieces> parts;
    Errors errors;
    for (const Expression& part : expression.parts) {
      auto expanded = run(part);
      if (expanded) {
        parts.push_back(*std::move(expanded));
      } else {
        errors.add(std::move(expanded).error());
      }
    }
    if (!errors.empty()) return fail(std::move(errors));
    return parts;
  }

  // Takes over a part's sources and pieces; `place` moves each piece to where it belongs.
  template <class Place>
  static void append(Pieces& whole, Pieces part, const Place& place) {
    const std::size_t before = whole.sources.size();
    std::move(part.sources.begin(), part.sources.end(), std::back_inserter(whole.sources));
    for (auto& [source, scaling] : part.scalings) {
      whole.scalings[PieceSourceId(before + source.number())] = std::move(scaling);
    }
    for (Piece& piece : part.pieces) {
      if (!piece.is_fill()) piece.source = PieceSourceId(before + piece.source.number());
      place(piece);
      whole.pieces.push_back(std::move(piece));
    }
  }

  Result<Pieces, Errors> concat(const Expression& expression) {
    LADING_ASSIGN_OR_RETURN(std::vector<Pieces> parts, parts_of(expression));
    const Shape first = parts.front().shape;
    const std::size_t dim = expression.dim;
    if (dim >= first.rank())
      return fail(Errors(mismatch(expression, fmt::format("{1} has no dim {0}", dim, first.text()))));
    Pieces whole;
    std::uint64_t offset = 0;
    for (Pieces& part : parts) {
      if (part.shape.rank() != first.rank() || with_dim(part.shape, dim, first[dim]) != first) {
        return fail(
            Errors(mismatch(expression, "the parts do not fit together").wanted(first.text()).got(part.shape.text())));
      }
      const std::uint64_t extent = part.shape[dim];
      append(whole, std::move(part), [&](Piece& piece) { piece.target_origin[dim] += offset; });
      const auto next = checked_add(offset, extent);
      if (!next) return fail(Errors(mismatch(expression, "the result is too large")));
      offset = *next;
    }
    whole.shape = with_dim(first, dim, offset);
    return checked(expression, std::move(whole));
  }

  Result<Pieces, Errors> stack(const Expression& expression) {
    LADING_ASSIGN_OR_RETURN(std::vector<Pieces> parts, parts_of(expression));
    const Shape first = parts.front().shape;
    const std::size_t dim = expression.dim;
    if (dim > first.rank())
      return fail(Errors(
          mismatch(expression, fmt::format("a new dim cannot be inserted before dim {} of {}", dim, first.text()))));
    Pieces whole;
    std::vector<std::uint64_t> dims(first.begin(), first.end());
    dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(dim), parts.size());
    whole.shape = Shape(std::move(dims));
    std::uint64_t layer = 0;
    for (Pieces& part : parts) {
      if (part.shape != first) {
        return fail(Errors(
            mismatch(expression, "the parts have different shapes").wanted(first.text()).got(part.shape.text())));
      }
      append(whole, std::move(part), [&](Piece& piece) {
        piece.target_origin.insert(piece.target_origin.begin() + static_cast<std::ptrdiff_t>(dim), layer);
        for (PieceLoop& loop : piece.loops) loop.target_dim += loop.target_dim >= dim ? 1 : 0;
      });
      ++layer;
    }
    return checked(expression, std::move(whole));
  }

  static Result<Pieces, Errors> slice(const Expression& expression, Pieces part) {
    const std::size_t dim = expression.dim;
    if (dim >= part.shape.rank() || expression.begin > expression.end || expression.end > part.shape[dim]) {
      return fail(Errors(mismatch(expression, "the slice is out of range")
                             .wanted(fmt::format("a range of a dim of {}", part.shape.text()))));
    }
    Pieces whole{with_dim(part.shape, dim, expression.end - expression.begin),
                 std::move(part.sources),
                 std::move(part.scalings),
                 {}};
    for (const Piece& piece : part.pieces) {
      for (Piece& inside : clip(piece, dim, expression.begin, expression.end)) {
        inside.target_origin[dim] -= expression.begin;
        whole.pieces.push_back(std::move(inside));
      }
    }
    return whole;
  }

  static Result<Pieces, Errors> permute(const Expression& expression, Pieces part) {
    const auto& order = expression.order;
    if (!is_permutation_of_dims(order, part.shape.rank())) {
      return fail(Errors(mismatch(expression, "not a permutation of the dims")
                             .wanted(fmt::format("each dim of {} once", part.shape.text()))));
    }
    std::vector<std::size_t> new_place(order.size());
    std::vector<std::uint64_t> dims(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      new_place[order[i]] = i;
      dims[i] = part.shape[order[i]];
    }
    for (Piece& piece : part.pieces) {
      for (PieceLoop& loop : piece.loops) loop.target_dim = new_place[loop.target_dim];
      std::vector<std::uint64_t> origin(order.size());
      for (std::size_t i = 0; i < order.size(); ++i) origin[i] = piece.target_origin[order[i]];
      piece.target_origin = origin;
    }
    part.shape = Shape(std::move(dims));
    return part;
  }

  static Result<Pieces, Errors> rearrange(const Expression& expression, Pieces part) {
    const auto& factors = expression.factors;
    const auto& order = expression.order;
    const std::size_t dim = expression.dim;
    const bool fits = dim < part.shape.rank() && !factors.empty() && Shape(factors).num_elems() == part.shape[dim] &&
                      is_permutation_of_dims(order, factors.size());
    if (!fits) {
      return fail(Errors(mismatch(expression, "the factors do not split the dim")
                             .wanted(fmt::format("factors of a dim of {}, in some order", part.shape.text()))));
    }
    DigitMap map;
    map.dim = dim;
    map.factors = factors;
    map.new_rank = part.shape.rank();
    map.new_dim.assign(factors.size(), dim);
    map.new_step.assign(factors.size(), 1);
    std::uint64_t step = 1;
    for (std::size_t i = order.size(); i-- > 0;) {
      map.new_step[order[i]] = step;
      step *= factors[order[i]];
    }
    map.other_dims.resize(part.shape.rank());
    std::iota(map.other_dims.begin(), map.other_dims.end(), std::size_t{0});
    part.pieces = redigit_all(part.pieces, map);
    return part;
  }

  // To one dim and from there to the others: row-major order is the only thing that a reshape keeps.
  static Result<Pieces, Errors> reshape(const Expression& expression, Pieces part) {
    if (!expression.shape.num_elems() || part.shape.num_elems() != expression.shape.num_elems()) {
      return fail(Errors(mismatch(expression, "the shapes have different numbers of elements").got(part.shape.text())));
    }
    const Strides strides = strides_of(part.shape);
    for (Piece& piece : part.pieces) {
      const std::uint64_t origin = offset_of(piece.target_origin, strides);
      for (PieceLoop& loop : piece.loops) {
        loop.target_step *= strides[loop.target_dim];
        loop.target_dim = 0;
      }
      piece.target_origin = {origin};
    }
    DigitMap map;
    map.factors.assign(expression.shape.begin(), expression.shape.end());
    map.new_rank = expression.shape.rank();
    map.new_dim.resize(map.new_rank);
    std::iota(map.new_dim.begin(), map.new_dim.end(), std::size_t{0});
    map.new_step.assign(map.new_rank, 1);
    map.other_dims = {0};
    part.pieces = redigit_all(part.pieces, map);
    part.shape = expression.shape;
    return part;
  }

  static std::vector<Piece> redigit_all(const std::vector<Piece>& pieces, const DigitMap& map) {
    std::vector<Piece> out;
    for (const Piece& piece : pieces) redigit(piece, map, out);
    return out;
  }

  static Result<Pieces, Errors> pad(const Expression& expression, Pieces part) {
    const std::size_t dim = expression.dim;
    if (dim >= part.shape.rank() || expression.end < part.shape[dim]) {
      return fail(Errors(mismatch(expression, "padding cannot make a dim smaller").got(part.shape.text())));
    }
    const std::uint64_t old = part.shape[dim];
    const Shape added = with_dim(part.shape, dim, expression.end - old);
    part.shape = with_dim(part.shape, dim, expression.end);
    if (added.num_elems() != 0) {
      Piece fill = whole_piece(PieceSourceId::none(), added);
      fill.target_origin[dim] = old;
      fill.fill = expression.fill;
      part.pieces.push_back(std::move(fill));
    }
    return checked(expression, std::move(part));
  }

  static Result<Pieces, Errors> checked(const Expression& expression, Pieces whole) {
    if (!whole.shape.num_elems()) return fail(Errors(mismatch(expression, "the result is too large")));
    return whole;
  }

  const ShapeOf& shape_of_;
};

}  // namespace

Result<Pieces, Errors> expand(const Expression& expression, const ShapeOf& shape_of) {
  return Expander(shape_of).run(expression);
}

}  // namespace lading::mapping
