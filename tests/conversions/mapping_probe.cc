// Says where every element of an expression comes from. One JSON object per line in, one per line out:
//
//   in:  {"expression": …, "shapes": [{"key": "a", "shape": [2, 3]}, …], "target": [6]}   ("target" may be absent)
//   out: {"shape": [6], "source": [0, 0, …], "flat": [0, 3, …]}
//
// `source` counts the given shapes, `flat` is the row-major index there; both are null for a filled element.
// What is refused comes out as {"errors": ["…"]}.
#include <algorithm>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json_fields.h"
#include "base/json_writer.h"
#include "mapping/pieces.h"
#include "mapping/template.h"

namespace {

using lading::Errors;
using lading::JsonWriter;
using lading::Shape;
using lading::mapping::Piece;
using lading::mapping::Pieces;

struct Question {
  lading::mapping::ExpressionTemplate expression;
  std::map<std::string, std::pair<std::uint64_t, Shape>, std::less<>> sources;
  std::optional<Shape> target;
};

struct Element {
  bool filled = false;
  std::uint64_t source = 0;
  std::uint64_t flat = 0;
};

lading::Result<Question, Errors> read(const std::string& line) {
  LADING_ASSIGN_OR_RETURN(const lading::JsonDocument document,
                          lading::JsonDocument::parse(lading::JsonBuffer::copy_of(line)));
  Errors errors;
  Question question;
  lading::JsonFields fields(document.root(), "$", errors);
  if (const auto expression = fields.require("expression"))
    question.expression = lading::mapping::read_expression(*expression, "$.expression", errors);
  fields.each("shapes", [&](const lading::JsonValue& value, const std::string& path) {
    lading::JsonFields source(value, path, errors);
    std::string key;
    Shape shape;
    source.string("key", key);
    source.shape("shape", shape);
    source.finish();
    const std::uint64_t number = question.sources.size();
    question.sources.emplace(key, std::make_pair(number, shape));
  });
  if (fields.find("target")) fields.shape("target", question.target.emplace());
  fields.finish();
  if (const auto bad = lading::mapping::find_bad_variable(question.expression, {}))
    errors.add(lading::Error(lading::Code::kMapping, *bad));
  if (!errors.empty()) return lading::fail(std::move(errors));
  return question;
}

std::uint64_t ravel(const std::vector<std::uint64_t>& index, const Shape& shape) {
  std::uint64_t flat = 0;
  for (std::size_t d = 0; d < shape.rank(); ++d) flat = flat * shape[d] + index[d];
  return flat;
}

// Runs the loop nest as it is written down: slow, and with nothing clever that could hide a mistake.
void run_loops(const Piece& piece, std::size_t depth, std::vector<std::uint64_t>& from, std::vector<std::uint64_t>& to,
               const auto& visit) {
  if (depth == piece.loops.size()) {
    visit(from, to);
    return;
  }
  const lading::mapping::PieceLoop& loop = piece.loops[depth];
  const auto from_before = from;
  const auto to_before = to;
  for (std::uint64_t i = 0; i < loop.count; ++i) {
    run_loops(piece, depth + 1, from, to, visit);
    if (!piece.is_fill()) from[loop.source_dim] += loop.source_step;
    to[loop.target_dim] += loop.target_step;
  }
  from = from_before;
  to = to_before;
}

std::vector<std::optional<Element>> elements_of(const Pieces& pieces, const Question& question) {
  std::vector<std::optional<Element>> elements(pieces.shape.num_elems().value_or(0));
  for (const Piece& piece : pieces.pieces) {
    std::vector<std::uint64_t> from = piece.source_origin;
    std::vector<std::uint64_t> to = piece.target_origin;
    run_loops(piece, 0, from, to, [&](const auto& source_index, const auto& target_index) {
      Element element;
      element.filled = piece.is_fill();
      if (!element.filled) {
        const auto& [number, shape] = question.sources.find(pieces.sources[piece.source])->second;
        element.source = number;
        element.flat = ravel(source_index, shape);
      }
      elements[ravel(target_index, pieces.shape)] = element;
    });
  }
  return elements;
}

lading::Result<void, Errors> answer(const std::string& line, JsonWriter& writer) {
  LADING_ASSIGN_OR_RETURN(const Question question, read(line));
  const lading::mapping::ShapeOf shape_of = [&](std::string_view key) -> const Shape* {
    const auto found = question.sources.find(key);
    return found == question.sources.end() ? nullptr : &found->second.second;
  };
  LADING_ASSIGN_OR_RETURN(
      const auto expression,
      lading::mapping::lower({question.expression, {}, question.target ? &*question.target : nullptr}, shape_of));
  LADING_ASSIGN_OR_RETURN(const Pieces pieces, lading::mapping::expand(expression, shape_of));
  const auto elements = elements_of(pieces, question);
  writer.begin_object().key("shape").begin_array();
  for (const std::uint64_t extent : pieces.shape) writer.number(extent);
  writer.end_array();
  for (const std::string_view key : {"source", "flat"}) {
    writer.key(key).begin_array();
    for (const auto& element : elements) {
      if (!element)
        return lading::fail(Errors(lading::Error(lading::Code::kInternal, "an element that nothing writes")));
      if (element->filled) {
        writer.null();
      } else {
        writer.number(key == "flat" ? element->flat : element->source);
      }
    }
    writer.end_array();
  }
  writer.end_object();
  return {};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    JsonWriter writer;
    if (auto done = answer(line, writer); !done) {
      writer = JsonWriter();
      writer.begin_object().key("errors").begin_array();
      for (const lading::Error& error : done.error()) writer.string(error.text());
      writer.end_array().end_object();
    }
    std::string text = writer.take();
    text.erase(std::remove(text.begin(), text.end(), '\n'), text.end());
    std::cout << text << std::endl;
  }
}
