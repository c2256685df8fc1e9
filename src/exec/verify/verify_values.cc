#include "exec/verify/verify_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "base/loop_nest.h"
#include "base/text.h"
#include "device/cast.h"
#include "device/random.h"
#include "exec/sample_parameters.h"
#include "exec/verify/source_reader.h"

namespace lading::exec {
namespace {

using checkpoint::CatalogTensor;
using mapping::Piece;

// A key as it stands: streamed.
class PlainValues : public Values {
 public:
  PlainValues(Origin origin, DType storage, ReadBytes read)
      : origin_(std::move(origin)),
        elems_(*origin_.shape().num_elems()),
        at_once_(elems_at_once(*origin_.source->dtype, storage)),
        storage_(storage),
        read_(std::move(read)),
        reader_(origin_, storage, read_) {}

  Result<Window> at(std::uint64_t elem) override {
    const std::uint64_t begin = elem / 8 * 8;
    const std::uint64_t elems = std::min(at_once_, elems_ - begin);
    buffer_.resize(bytes_of_elems(elems, storage_));
    LADING_TRY(reader_.read(begin, elems, buffer_));
    return Window{begin, elems, buffer_};
  }

 private:
  Origin origin_;
  std::uint64_t elems_;
  std::uint64_t at_once_;
  DType storage_;
  ReadBytes read_;
  SourceReader reader_;
  std::vector<std::byte> buffer_;
};

// A piece with its indices multiplied out; in elements.
struct Nest {
  std::uint64_t source_begin = 0;
  std::uint64_t target_begin = 0;
  std::uint64_t run = 1;
  std::vector<ElementLoop> loops;

  Nest(const Piece& piece, const Shape* source, const Shape& target) {
    const Strides target_strides = strides_of(target);
    const Strides source_strides = source == nullptr ? Strides() : strides_of(*source);
    target_begin = offset_of(piece.target_origin, target_strides);
    if (source != nullptr) source_begin = offset_of(piece.source_origin, source_strides);
    for (const mapping::PieceLoop& loop : piece.loops) {
      const std::uint64_t on_target = loop.target_step * target_strides[loop.target_dim];
      const std::uint64_t on_source =
          source == nullptr ? on_target : loop.source_step * source_strides[loop.source_dim];
      loops.push_back({loop.count, on_source, on_target});
    }
    sort_by_target(loops);
    run = grow_run(run, loops);
  }

  [[nodiscard]] std::uint64_t source_end() const { return source_begin + source_reach(loops) + run; }

  /// Calls act(source element, target element) for every run.
  template <class Act>
  void for_each(const Act& act) const {
    for_each_run(loops, [&](const RunOffsets& at) {
      act(source_begin + at.source, target_begin + at.target);
      return true;
    });
  }
};

Error not_in_dtype(double value, DType dtype) {
  return Error(Code::kDType, fmt::format("{} cannot represent the constant {}", name(dtype), value))
      .by_rule("R13")
      .try_this("Check that the ledger belongs to this checkpoint.");
}

void fill(std::span<std::byte> out, double value, DType dtype) {
  if (bits(dtype) < 8) {
    std::fill(out.begin(), out.end(), std::byte{0});
    return;
  }
  const std::uint64_t constant = device::bits_of(value, dtype);
  const std::size_t width = bits(dtype) / 8;
  for (std::size_t i = 0; i + width <= out.size(); i += width) std::memcpy(out.data() + i, &constant, width);
}

// Put together of pieces, a window of rows of dim 0 at a time.
class BuiltValues : public Values {
 public:
  BuiltValues(mapping::Pieces pieces, std::vector<Origin> origins, const FileValues& what, ReadBytes read)
      : pieces_(std::move(pieces)), origins_(std::move(origins)), storage_(what.storage), read_(std::move(read)) {
    const Shape& shape = pieces_.shape;
    rows_ = shape.rank() == 0 ? 1 : shape[0];
    row_elems_ = rows_ == 0 ? 0 : *shape.num_elems() / rows_;
    const std::uint64_t row_bytes = std::max<std::uint64_t>(1, bytes_of_elems(row_elems_, storage_));
    rows_at_once_ = std::max<std::uint64_t>(1, what.window_bytes / row_bytes);
    // Rows of packed elements may end inside a byte; eight of them do not.
    if (bits(storage_) % 8 != 0) rows_at_once_ = (rows_at_once_ + 7) / 8 * 8;
    rows_at_once_ = std::min(rows_at_once_, rows_);
  }

  Result<Window> at(std::uint64_t elem) override {
    const std::uint64_t first_row = elem / row_elems_ / rows_at_once_ * rows_at_once_;
    const std::uint64_t last_row = std::min(rows_, first_row + rows_at_once_);
    const std::uint64_t begin = first_row * row_elems_;
    const std::uint64_t elems = (last_row - first_row) * row_elems_;
    if (!is_built_ || begin != begin_) {
      window_.assign(bytes_of_elems(elems, storage_), std::byte{0});
      begin_ = begin;
      LADING_TRY(build(first_row, last_row));
      is_built_ = true;
    }
    return Window{begin, elems, window_};
  }

  [[nodiscard]] std::uint64_t memory_bytes() const override {
    std::uint64_t largest = 0;
    for (const Origin& origin : origins_) {
      largest = std::max(largest, bytes_of_elems(*origin.shape().num_elems(), storage_));
    }
    return bytes_of_elems(rows_at_once_ * row_elems_, storage_) + largest;
  }

 private:
  Result<void> build(std::uint64_t first_row, std::uint64_t last_row) {
    std::map<mapping::PieceSourceId, std::vector<Nest>> by_source;
    for (const Piece& piece : pieces_.pieces) {
      for (const Piece& part : clip_rows(piece, first_row, last_row)) {
        if (part.is_fill()) {
          fill_part(part);
        } else {
          by_source[part.source].emplace_back(part, &origins_[part.source.number()].shape(), pieces_.shape);
        }
      }
    }
    for (const auto& [source, nests] : by_source) LADING_TRY(copy(origins_[source.number()], nests));
    return {};
  }

  [[nodiscard]] std::vector<Piece> clip_rows(const Piece& piece, std::uint64_t first, std::uint64_t last) const {
    if (pieces_.shape.rank() == 0 || last - first == rows_) return {piece};
    return mapping::clip(piece, 0, first, last);
  }

  void fill_part(const Piece& part) {
    const Nest nest(part, nullptr, pieces_.shape);
    const auto put = [&](std::uint64_t, std::uint64_t target) {
      fill(std::span(window_).subspan(place(target), bytes_of_elems(nest.run, storage_)), part.fill, storage_);
    };
    nest.for_each(put);
  }

  // What the window takes of one source is read once, from the first element to the last.
  Result<void> copy(const Origin& origin, const std::vector<Nest>& nests) {
    std::uint64_t begin = nests.front().source_begin;
    std::uint64_t end = 0;
    bool in_bytes = true;
    const auto ends_at_byte = [&](std::uint64_t elems) { return elems % 8 * bits(storage_) % 8 == 0; };
    for (const Nest& nest : nests) {
      begin = std::min(begin, nest.source_begin);
      end = std::max(end, nest.source_end());
      in_bytes =
          in_bytes && ends_at_byte(nest.source_begin) && ends_at_byte(nest.target_begin) && ends_at_byte(nest.run);
      for (const ElementLoop& loop : nest.loops) {
        in_bytes = in_bytes && ends_at_byte(loop.source_stride_elems) && ends_at_byte(loop.target_stride_elems);
      }
    }
    if (!in_bytes) {
      return fail(Error(Code::kMapping, "the expression cuts packed elements inside a byte").by_rule("R48"));
    }
    begin = begin / 8 * 8;
    end = std::min((end + 7) / 8 * 8, *origin.shape().num_elems());
    taken_.resize(bytes_of_elems(end - begin, storage_));
    LADING_TRY(SourceReader(origin, storage_, read_).read(begin, end - begin, taken_));
    for (const Nest& nest : nests) {
      const std::uint64_t run_bytes = bytes_of_elems(nest.run, storage_);
      const auto put = [&](std::uint64_t source, std::uint64_t target) {
        std::memcpy(window_.data() + place(target), taken_.data() + bytes_of_elems(source - begin, storage_),
                    run_bytes);
      };
      nest.for_each(put);
    }
    return {};
  }

  [[nodiscard]] std::uint64_t place(std::uint64_t target_elem) const {
    return bytes_of_elems(target_elem - begin_, storage_);
  }

  mapping::Pieces pieces_;
  std::vector<Origin> origins_;  // by Pieces::sources
  DType storage_;
  ReadBytes read_;
  std::uint64_t rows_ = 1;
  std::uint64_t row_elems_ = 1;
  std::uint64_t rows_at_once_ = 1;
  std::uint64_t begin_ = 0;  // of the window
  bool is_built_ = false;
  std::vector<std::byte> window_;
  std::vector<std::byte> taken_;
};

// Constants and random values.
class RecipeValues : public Values {
 public:
  RecipeValues(const MadeValues& what, device::SampleParameters parameters, device::Cast cast)
      : recipe_(what.recipe),
        elems_(*what.shape.num_elems()),
        storage_(what.storage),
        key_(device::random_key(what.seed, what.canonical_name)),
        parameters_(parameters),
        cast_(cast) {
    if (what.recipe.zero_row && elems_ > 0) {
      row_elems_ = elems_ / what.shape[0];
      row_begin_ = *what.recipe.zero_row * row_elems_;
    }
  }

  Result<Window> at(std::uint64_t elem) override {
    const std::uint64_t begin = elem / 8 * 8;
    const std::uint64_t elems = std::min(elems_at_once(storage_, DType::kF32), elems_ - begin);
    buffer_.resize(bytes_of_elems(elems, storage_));
    if (recipe_.kind == model::RecipeKind::kFill) {
      fill(buffer_, recipe_.value, storage_);
    } else {
      numbers_.resize(elems);
      device::sample(parameters_, key_, begin, numbers_);
      const auto* const made = reinterpret_cast<const std::byte*>(numbers_.data());
      if (cast_ == nullptr) {
        std::memcpy(buffer_.data(), made, buffer_.size());
      } else {
        cast_(made, buffer_.data(), elems);
      }
    }
    const std::uint64_t zero_begin = std::max(begin, row_begin_);
    const std::uint64_t zero_end = std::min(begin + elems, row_begin_ + row_elems_);
    if (zero_begin < zero_end) {
      const auto zeros = std::span(buffer_).subspan(bytes_of_elems(zero_begin - begin, storage_),
                                                    bytes_of_elems(zero_end - zero_begin, storage_));
      std::fill(zeros.begin(), zeros.end(), std::byte{0});
    }
    return Window{begin, elems, buffer_};
  }

 private:
  const model::Recipe& recipe_;
  std::uint64_t elems_;
  DType storage_;
  device::RandomKey key_;
  device::SampleParameters parameters_;
  device::Cast cast_;
  std::uint64_t row_begin_ = 0;  // of the zero row
  std::uint64_t row_elems_ = 0;
  std::vector<float> numbers_;
  std::vector<std::byte> buffer_;
};

Result<Quantized> quantized_of(const CatalogTensor& source, const mapping::PieceScaling& scaling,
                               const FileValues& what) {
  const auto find = [&](const std::string& key) {
    return key.empty() ? nullptr : what.catalog.find(key, what.checkpoint);
  };
  Quantized quantized;
  quantized.scales = find(scaling.scales);
  quantized.zeros = find(scaling.zeros);
  quantized.tensor_scale = find(scaling.tensor_scale);
  quantized.groups = find(scaling.groups);
  const bool has_all = quantized.scales != nullptr && (scaling.zeros.empty() || quantized.zeros != nullptr) &&
                       (scaling.tensor_scale.empty() || quantized.tensor_scale != nullptr) &&
                       (scaling.groups.empty() || quantized.groups != nullptr);
  if (!has_all) {
    return fail(
        Error(Code::kMapping, fmt::format("the checkpoint lacks keys that {} is dequantized with", quote(source.name)))
            .by_rule("R48"));
  }
  std::vector<std::uint64_t> dims(source.shape.begin(), source.shape.end());
  if (scaling.decoding.code) dims.push_back(scaling.decoding.per_element);
  quantized.shape = Shape(std::move(dims));
  quantized.block = scaling.block;
  quantized.decoding = scaling.decoding;
  quantized.product = scaling.product;
  LADING_TRY(check_scaling(source, quantized, what.storage));
  return quantized;
}

}  // namespace

Result<std::unique_ptr<Values>> values_of_files(const FileValues& what, ReadBytes read) {
  const auto shape_of = [&](std::string_view key) {
    const CatalogTensor* found = what.catalog.find(key, what.checkpoint);
    return found == nullptr ? nullptr : &found->shape;
  };
  auto expanded = mapping::expand(what.expression, shape_of);
  if (!expanded) return fail(expanded.error().front());
  if (expanded->shape != what.shape) {
    return fail(Error(Code::kMapping, "the expression does not make a tensor of this shape")
                    .by_rule("R41")
                    .wanted(what.shape.text())
                    .got(expanded->shape.text()));
  }
  std::vector<Origin> origins;
  for (const mapping::PieceSourceId i : expanded->sources.ids()) {
    const std::string& key = expanded->sources[i];
    const CatalogTensor* const source = what.catalog.find(key, what.checkpoint);
    if (!source->dtype) {
      return fail(Error(Code::kUnknownDType, fmt::format("{} has a dtype that this version does not know", quote(key)))
                      .got(quote(source->unknown_dtype)));
    }
    Origin origin{source};
    if (const auto scaling = expanded->scalings.find(i); scaling != expanded->scalings.end()) {
      LADING_ASSIGN_OR_RETURN(origin.quantized, quantized_of(*source, scaling->second, what));
    } else {
      LADING_ASSIGN_OR_RETURN(const CastStep step, cast_between(*source->dtype, what.storage));
      origin.cast = step.cast;
    }
    origins.push_back(std::move(origin));
  }
  for (const Piece& piece : expanded->pieces) {
    if (piece.is_fill() && !device::has_bits_for(piece.fill, what.storage))
      return fail(not_in_dtype(piece.fill, what.storage));
  }
  if (what.expression.op == mapping::Op::kSource || what.expression.op == mapping::Op::kDequantize) {
    return std::unique_ptr<Values>(new PlainValues(std::move(origins.front()), what.storage, std::move(read)));
  }
  return std::unique_ptr<Values>(new BuiltValues(*std::move(expanded), std::move(origins), what, std::move(read)));
}

Result<std::unique_ptr<Values>> values_of_recipe(const MadeValues& what) {
  const model::Recipe& recipe = what.recipe;
  if (recipe.kind == model::RecipeKind::kFill) {
    if (!device::has_bits_for(recipe.value, what.storage)) return fail(not_in_dtype(recipe.value, what.storage));
    return std::unique_ptr<Values>(new RecipeValues(what, {}, nullptr));
  }
  LADING_ASSIGN_OR_RETURN(const device::SampleParameters parameters, sample_parameters(recipe));
  LADING_ASSIGN_OR_RETURN(const CastStep step, cast_between(DType::kF32, what.storage));
  return std::unique_ptr<Values>(new RecipeValues(what, parameters, step.cast));
}

}  // namespace lading::exec
