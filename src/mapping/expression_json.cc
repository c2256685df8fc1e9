// The JSON form of expression templates: a key, or an object with one member that names the operation.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "base/json_fields.h"
#include "base/text.h"
#include "mapping/decoding_json.h"
#include "mapping/template.h"

namespace lading::mapping {
namespace {

constexpr std::array<std::pair<std::string_view, Form>, 13> kForms = {{
    {"concat", Form::kConcat},
    {"stack", Form::kStack},
    {"slice", Form::kSlice},
    {"permute", Form::kPermute},
    {"rearrange", Form::kRearrange},
    {"reshape", Form::kReshape},
    {"pad", Form::kPad},
    {"dequantize", Form::kDequantize},
    {"chunk", Form::kChunk},
    {"transpose", Form::kTranspose},
    {"interleave", Form::kInterleave},
    {"rope", Form::kRope},
    {"stack", Form::kStackOver},  // for the writer; read as kStack first
}};

// Operations on values that people ask for. They change numbers, so no movement can stand for them.
constexpr std::string_view kQuantized =
    "Load the payload and its scales as ordinary tensors, or convert the checkpoint first.";
constexpr std::string_view kUnpack =
    "Use \"dequantize\" with a \"code\": it takes packed codes apart and multiplies them by their scales.";
constexpr std::string_view kArithmetic = "Convert the checkpoint first, or compute the value after the load.";
constexpr std::array<std::pair<std::string_view, std::string_view>, 18> kNotMovements = {{
    {"quantize", kQuantized},
    {"unpack", kUnpack},
    {"pack", kQuantized},
    {"cast", "Omit the operation: the policy chooses the dtype."},
    {"to_dtype", "Omit the operation: the policy chooses the dtype."},
    {"subtract_one", kArithmetic},
    {"add_one", kArithmetic},
    {"log_negate", kArithmetic},
    {"negate", kArithmetic},
    {"scale", kArithmetic},
    {"add", kArithmetic},
    {"subtract", kArithmetic},
    {"multiply", kArithmetic},
    {"divide", kArithmetic},
    {"mean", kArithmetic},
    {"sum", kArithmetic},
    {"repeat", "Concatenate the key with itself: copies never broadcast."},
    {"broadcast", "Concatenate the key with itself: copies never broadcast."},
}};

template <std::size_t N, class Value>
const Value* find_word(const std::array<std::pair<std::string_view, Value>, N>& words, std::string_view word) {
  for (const auto& [name, value] : words) {
    if (name == word) return &value;
  }
  return nullptr;
}

std::string_view name_of(Form form) {
  for (const auto& [name, value] : kForms) {
    if (value == form) return name;
  }
  return "";
}

// Nothing for what people say, which becomes an Expression only with the shape of its part.
std::optional<Op> op_of(Form form) {
  switch (form) {
    case Form::kSource: return Op::kSource;
    case Form::kConcat: return Op::kConcat;
    case Form::kStack: return Op::kStack;
    case Form::kSlice: return Op::kSlice;
    case Form::kPermute: return Op::kPermute;
    case Form::kRearrange: return Op::kRearrange;
    case Form::kReshape: return Op::kReshape;
    case Form::kPad: return Op::kPad;
    case Form::kDequantize: return Op::kDequantize;
    case Form::kStackOver:
    case Form::kChunk:
    case Form::kTranspose:
    case Form::kInterleave:
    case Form::kRope: break;
  }
  return std::nullopt;
}

Error at_value(Error error, const JsonValue& value, std::string_view path) {
  error.message = fmt::format("{}: {}", path, error.message);
  return std::move(error).at({value.offset(), value.offset() + 1});
}

enum class Keys : std::uint8_t { kTemplates, kLiteral };

class Reader {
 public:
  explicit Reader(Errors& errors, Keys keys = Keys::kTemplates) : errors_(errors), keys_(keys) {}

  ExpressionTemplate run(const JsonValue& value, const std::string& path) {
    ExpressionTemplate node;
    if (value.is_string()) {
      node.key = key_of(value, path);
      return node;
    }
    if (!value.is_object() || value.size() != 1) {
      errors_.add(at_value(Error(Code::kSchema, "not an expression"), value, path)
                      .wanted("a key, or an object with one member that names the operation")
                      .got(value.is_object() ? fmt::format("an object with {} members", value.size()) : value.found()));
      return node;
    }
    const JsonMember member = *value.begin();
    const std::string inner = fmt::format("{}.{}", path, escape(member.key));
    if (const std::string_view* remedy = find_word(kNotMovements, member.key)) {
      errors_.add(at_value(Error(Code::kMapping, fmt::format("{} changes values; an expression can only move elements",
                                                             quote(member.key))),
                           value, path)
                      .by_rule(*remedy == kQuantized || *remedy == kUnpack ? "R48" : "")
                      .try_this(std::string(*remedy)));
      return node;
    }
    const Form* form = find_word(kForms, member.key);
    if (form != nullptr && keys_ == Keys::kLiteral && !op_of(*form)) form = nullptr;
    if (form == nullptr) {
      errors_.add(
          at_value(Error(Code::kMapping, fmt::format("the operation {} is unknown", quote(member.key))), value, path)
              .wanted(
                  "concat, stack, slice, permute, rearrange, reshape, pad, dequantize, chunk, transpose, interleave, "
                  "rope"));
      return node;
    }
    node.form = *form;
    JsonFields fields(member.value, inner, errors_);
    read_fields(fields, node);
    fields.finish();
    return node;
  }

 private:
  NameTemplate key_of(const JsonValue& value, const std::string& path) {
    if (keys_ == Keys::kLiteral) return NameTemplate::literal(std::string(value.text()));
    auto key = NameTemplate::parse(value.text());
    if (key) return *std::move(key);
    errors_.add(at_value(std::move(key).error(), value, path));
    return {};
  }

  void read_key(JsonFields& fields, std::string_view field, NameTemplate& key) {
    const auto value = fields.require(field);
    if (!value) return;
    if (!value->is_string()) return fields.problem(*value, field, "not a key", "a key of the checkpoint");
    key = key_of(*value, fields.path_of(field));
  }

  void read_optional_key(JsonFields& fields, std::string_view field, std::optional<NameTemplate>& key) {
    if (!fields.find(field)) return;
    key = NameTemplate::literal("-");  // if the key is refused, one that lets the other members be judged
    read_key(fields, field, *key);
  }

  void read_dequantize(JsonFields& fields, ExpressionTemplate& node) {
    read_key(fields, "of", node.key);
    read_key(fields, "scales", node.scales);
    fields.shape("block", node.shape);
    fields.optional_dtype("product", node.product);
    read_optional_key(fields, "zeros", node.zeros);
    read_optional_key(fields, "tensor_scale", node.tensor_scale);
    read_optional_key(fields, "groups", node.groups);
    read_decoding(fields, node);
  }

  void read_fields(JsonFields& fields, ExpressionTemplate& node) {
    switch (node.form) {
      case Form::kSource: break;
      case Form::kConcat:
        read_dim(fields, node);
        read_parts(fields, node);
        return;
      case Form::kStack:
      case Form::kStackOver:
        read_dim(fields, node);
        if (!read_over(fields, node)) return read_parts(fields, node);
        break;
      case Form::kSlice:
        read_dim(fields, node);
        fields.uint64("begin", node.begin);
        fields.uint64("end", node.end);
        break;
      case Form::kPermute: node.order = numbers<std::size_t>(fields, "order"); break;
      case Form::kRearrange:
        read_dim(fields, node);
        node.factors = numbers<std::uint64_t>(fields, "factors");
        node.order = numbers<std::size_t>(fields, "order");
        break;
      case Form::kReshape: fields.shape("shape", node.shape); break;
      case Form::kDequantize: return read_dequantize(fields, node);
      case Form::kPad:
        read_dim(fields, node);
        fields.uint64("end", node.end);
        read_fill(fields, node);
        break;
      case Form::kChunk:
        read_dim(fields, node);
        fields.uint64("index", node.begin);
        read_count(fields, "count", node);
        if (const auto index = fields.find("index"); index && node.begin >= *node.count)
          fields.problem(*index, "index", "not one of the chunks", "less than \"count\"");
        break;
      case Form::kTranspose:
        node.order = numbers<std::size_t>(fields, "dims");
        if (node.order.size() != 2) {
          if (const auto dims = fields.find("dims"))
            fields.problem(*dims, "dims", "not two dims", "[0, 1], for example");
          node.order = {0, 0};
        }
        break;
      case Form::kInterleave:
        read_dim(fields, node);
        fields.optional_boolean("inverse", node.inverse);
        break;
      case Form::kRope:
        node.dim = 0;
        read_optional_dim(fields, node);
        read_count(fields, "heads", node);
        fields.optional_boolean("inverse", node.inverse);
        break;
    }
    if (const auto part = fields.require("of")) node.parts.push_back(run(*part, fields.path_of("of")));
  }

  static void read_dim(JsonFields& fields, ExpressionTemplate& node) {
    std::uint64_t dim = 0;
    fields.uint64("dim", dim);
    node.dim = dim;
  }
  static void read_optional_dim(JsonFields& fields, ExpressionTemplate& node) {
    std::uint64_t dim = 0;
    fields.optional_uint64("dim", dim);
    node.dim = dim;
  }

  static void read_count(JsonFields& fields, std::string_view key, ExpressionTemplate& node) {
    std::uint64_t count = 1;
    fields.uint64(key, count);
    if (count == 0) {
      if (const auto value = fields.find(key)) fields.problem(*value, key, "the value must not be 0", "1 or more");
      count = 1;
    }
    node.count = count;
  }

  // {"over": "e", "of": …}: returns false if the stack lists its parts instead.
  bool read_over(JsonFields& fields, ExpressionTemplate& node) const {
    if (keys_ == Keys::kLiteral || !fields.find("over")) return false;
    node.form = Form::kStackOver;
    fields.string("over", node.over);
    fields.optional_uint64("first", node.begin);
    if (fields.find("count")) read_count(fields, "count", node);
    return true;
  }

  void read_parts(JsonFields& fields, ExpressionTemplate& node) {
    const auto parts = fields.require("parts");
    if (!parts) return;
    fields.each("parts",
                [&](const JsonValue& part, const std::string& path) { node.parts.push_back(run(part, path)); });
    if (parts->is_array() && node.parts.empty())
      fields.problem(*parts, "parts", "the list is empty", "one or more parts");
  }

  template <class Number>
  static std::vector<Number> numbers(JsonFields& fields, std::string_view key) {
    std::vector<Number> out;
    fields.each(key, [&](const JsonValue& element, const std::string&) {
      if (const auto number = element.as_uint64()) {
        out.push_back(*number);
      } else {
        fields.problem(element, key, "not a whole number", "a whole number");
      }
    });
    return out;
  }

  // Infinity and NaN are no JSON numbers, so a string may say the value.
  static void read_fill(JsonFields& fields, ExpressionTemplate& node) {
    const auto value = fields.find("fill");
    if (!value) return;
    const std::string_view text = value->text();
    double fill = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), fill);
    const bool is_number = value->is_string() || value->kind() == JsonKind::kNumber;
    if (!is_number || text.empty() || problem != std::errc{} || end != text.data() + text.size()) {
      fields.problem(*value, "fill", "not a number", "a number, or one as a string, such as \"-inf\"");
      return;
    }
    node.fill = fill;
  }

  Errors& errors_;
  Keys keys_;
};

// Of a template whose forms all have an Op and whose keys have no variables.
Expression plain(ExpressionTemplate node) {
  Expression expression;
  expression.op = *op_of(node.form);
  expression.key = node.key.render({});
  expression.scales = node.scales.render({});
  if (node.zeros) expression.zeros = node.zeros->render({});
  if (node.tensor_scale) expression.tensor_scale = node.tensor_scale->render({});
  if (node.groups) expression.groups = node.groups->render({});
  expression.decoding = std::move(node.decoding);
  expression.product = node.product;
  expression.dim = node.dim;
  expression.begin = node.begin;
  expression.end = node.end;
  expression.factors = std::move(node.factors);
  expression.order = std::move(node.order);
  expression.shape = std::move(node.shape);
  expression.fill = node.fill;
  for (ExpressionTemplate& part : node.parts) expression.parts.push_back(plain(std::move(part)));
  return expression;
}

class Writer {
 public:
  explicit Writer(JsonWriter& writer) : writer_(writer) {}

  void run(const ExpressionTemplate& node) {
    if (node.form == Form::kSource) {
      writer_.string(node.key.text());
      return;
    }
    writer_.begin_object().key(name_of(node.form)).begin_object();
    write_fields(node);
    if (node.form == Form::kDequantize) {
      writer_.key("of").string(node.key.text()).key("scales").string(node.scales.text());
      if (node.product) writer_.key("product").string(name(*node.product));
      const auto text_of = [](const std::optional<NameTemplate>& key) { return key ? key->text() : std::string(); };
      write_decoding(writer_, {node.decoding, text_of(node.zeros), text_of(node.tensor_scale), text_of(node.groups)});
    } else if (node.form == Form::kConcat || node.form == Form::kStack) {
      writer_.key("parts").begin_array();
      for (const ExpressionTemplate& part : node.parts) run(part);
      writer_.end_array();
    } else {
      writer_.key("of");
      run(node.parts.front());
    }
    writer_.end_object().end_object();
  }

 private:
  void write_fields(const ExpressionTemplate& node) {
    switch (node.form) {
      case Form::kSource: return;
      case Form::kPermute: return numbers("order", node.order);
      case Form::kReshape: return numbers("shape", node.shape.dims());
      case Form::kDequantize: return numbers("block", node.shape.dims());
      case Form::kTranspose: return numbers("dims", node.order);
      default: break;
    }
    number("dim", node.dim);
    switch (node.form) {
      case Form::kStackOver:
        writer_.key("over").string(node.over);
        if (node.begin != 0) number("first", node.begin);
        if (node.count) number("count", *node.count);
        break;
      case Form::kSlice:
        number("begin", node.begin);
        number("end", node.end);
        break;
      case Form::kRearrange:
        numbers("factors", node.factors);
        numbers("order", node.order);
        break;
      case Form::kPad:
        number("end", node.end);
        if (node.fill != 0 || std::signbit(node.fill)) writer_.key("fill").string(fmt::format("{}", node.fill));
        break;
      case Form::kChunk:
        number("index", node.begin);
        number("count", *node.count);
        break;
      case Form::kRope: number("heads", *node.count); [[fallthrough]];
      case Form::kInterleave:
        if (node.inverse) writer_.key("inverse").boolean(true);
        break;
      default: break;
    }
  }

  void number(std::string_view key, std::uint64_t value) { writer_.key(key).number(value); }

  template <class Numbers>
  void numbers(std::string_view key, const Numbers& values) {
    writer_.key(key).begin_array();
    for (const std::uint64_t value : values) writer_.number(value);
    writer_.end_array();
  }

  JsonWriter& writer_;
};

}  // namespace

ExpressionTemplate read_expression(const JsonValue& value, const std::string& path, Errors& errors) {
  return Reader(errors).run(value, path);
}

Expression read_plain_expression(const JsonValue& value, const std::string& path, Errors& errors) {
  const std::uint64_t before = errors.size() + errors.not_listed();
  ExpressionTemplate node = Reader(errors, Keys::kLiteral).run(value, path);
  if (errors.size() + errors.not_listed() != before) return {};
  if (auto bad = find_bad_form(node)) {
    errors.add(at_value(Error(Code::kMapping, *std::move(bad)), value, path));
    return {};
  }
  return plain(std::move(node));
}

void write_expression(const ExpressionTemplate& expression, JsonWriter& writer) { Writer(writer).run(expression); }

}  // namespace lading::mapping
