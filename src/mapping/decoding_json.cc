#include "mapping/decoding_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/enumerator.h"

namespace lading::mapping {
namespace {

constexpr std::uint64_t kMostPerElement = 16;  // U4 in 64 bits
constexpr std::uint64_t kZeroEnd = 65'536;
constexpr std::size_t kMostOrdered = 32;

constexpr std::array kCodeWords = {
    std::pair<std::string_view, CodeType>{"F4", CodeType::kF4},
    std::pair<std::string_view, CodeType>{"U2", CodeType::kU2},
    std::pair<std::string_view, CodeType>{"U4", CodeType::kU4},
    std::pair<std::string_view, CodeType>{"U8", CodeType::kU8},
    std::pair<std::string_view, CodeType>{"I8", CodeType::kI8},
};
constexpr std::array kScaleDTypeWords = {std::pair<std::string_view, DType>{"F8_E8M0", DType::kF8E8M0}};
constexpr std::array kTensorScaleWords = {
    std::pair<std::string_view, TensorScale>{"factor", TensorScale::kFactor},
    std::pair<std::string_view, TensorScale>{"divisor", TensorScale::kDivisor},
};

// A member without which another one means nothing.
struct Companion {
  std::string_view member;
  std::string_view needs;
};
constexpr std::array kCompanions = {
    Companion{"per_element", "code"},
    Companion{"zeros_dim", "zeros"},
    Companion{"tensor_scale_is", "tensor_scale"},
    Companion{"groups_dim", "groups"},
};

DecodingProblem lonely(const Companion& companion) {
  return {companion.member, fmt::format("it says nothing without \"{}\"", companion.needs),
          fmt::format("the field \"{}\" beside it", companion.needs)};
}

bool is_permutation_of_its_size(std::vector<std::size_t> order) {
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] != i) return false;
  }
  return true;
}

bool is_integer(const std::optional<CodeType>& code) { return code && *code != CodeType::kF4; }

class ProblemFinder {
 public:
  explicit ProblemFinder(const ExpressionTemplate& leaf) : leaf_(leaf), decoding_(leaf.decoding) {}

  std::vector<DecodingProblem> run() {
    codes();
    zeros();
    scales();
    groups();
    return std::move(problems_);
  }

 private:
  void add(std::string_view member, std::string message, std::string expected) {
    problems_.push_back({member, std::move(message), std::move(expected)});
  }

  void codes() {
    if (decoding_.code && !is_enumerator(*decoding_.code, CodeType::kI8))
      add("code", "the code is not a known enumerator", "F4, U2, U4, U8 or I8");
    if (!decoding_.code && decoding_.per_element != 1) problems_.push_back(lonely(kCompanions[0]));
    if (decoding_.code && (decoding_.per_element == 0 || decoding_.per_element > kMostPerElement)) {
      add("per_element", "not a number of codes that an element can have",
          fmt::format("1 to {}: the bits of the key's dtype divided by those of the code", kMostPerElement));
    }
  }

  void zeros() {
    if (decoding_.zero >= kZeroEnd)
      add("zero", "the value is too large", fmt::format("a whole number below {}", kZeroEnd));
    for (const auto& [member, is_there] :
         {std::pair("zero", decoding_.zero != 0), std::pair("zeros", leaf_.zeros.has_value())}) {
      if (is_there && !is_integer(decoding_.code))
        add(member, "only integers have a zero point", "a \"code\" of U2, U4, U8 or I8 beside it");
    }
    if (leaf_.zeros && leaf_.zeros->text().empty()) add("zeros", "the key is empty", "a key of the checkpoint");
    if (!leaf_.zeros && decoding_.zeros_dim != 0) problems_.push_back(lonely(kCompanions[1]));
  }

  void scales() {
    if (decoding_.scale_dtype && *decoding_.scale_dtype != DType::kF8E8M0)
      add("scale_dtype", "scales stored as U8 can only be read as F8_E8M0", "F8_E8M0");
    if (leaf_.tensor_scale && leaf_.tensor_scale->text().empty())
      add("tensor_scale", "the key is empty", "a key of the checkpoint");
    if (!is_enumerator(decoding_.tensor_scale, TensorScale::kDivisor))
      add("tensor_scale_is", "the meaning of the scale is not a known enumerator", "factor or divisor");
    if (!leaf_.tensor_scale && decoding_.tensor_scale != TensorScale::kFactor)
      problems_.push_back(lonely(kCompanions[2]));
    if (decoding_.scale_order.size() > kMostOrdered || !is_permutation_of_its_size(decoding_.scale_order)) {
      add("scale_order", "not an order of scales",
          fmt::format("each number from 0 to n - 1 once, n at most {}", kMostOrdered));
    }
  }

  void groups() {
    if (leaf_.groups && leaf_.groups->text().empty()) add("groups", "the key is empty", "a key of the checkpoint");
    if (leaf_.groups && !decoding_.code) add("groups", "only codes have groups", "a \"code\" beside it");
    if (leaf_.groups && !decoding_.scale_order.empty())
      add("groups", "scales in an order of their own have no groups", "no \"scale_order\" beside it");
    if (!leaf_.groups && decoding_.groups_dim != 0) problems_.push_back(lonely(kCompanions[3]));
  }

  const ExpressionTemplate& leaf_;
  const Decoding& decoding_;
  std::vector<DecodingProblem> problems_;
};

void read_scale_order(JsonFields& fields, std::vector<std::size_t>& order) {
  const auto value = fields.find("scale_order");
  if (!value) return;
  bool is_list = value->is_array() && value->size() > 0;
  if (is_list) {
    for (const JsonMember element : *value) {
      const auto number = element.value.as_uint64();
      is_list = is_list && number.has_value();
      order.push_back(number.value_or(0));
    }
  }
  if (is_list) return;
  order.clear();
  fields.problem(*value, "scale_order", "not an order of scales",
                 "an array of whole numbers, [0, 2, 1, 3] for example");
}

template <class Enum, std::size_t N>
void read_optional(JsonFields& fields, std::string_view member,
                   const std::array<std::pair<std::string_view, Enum>, N>& words, std::optional<Enum>& out) {
  const auto value = fields.find(member);
  if (!value) return;
  Enum meaning = words.back().second;
  fields.word(member, words, meaning);
  out = meaning;  // if the word was refused, one that lets the other members be judged
}

}  // namespace

std::vector<DecodingProblem> decoding_problems(const ExpressionTemplate& leaf) { return ProblemFinder(leaf).run(); }

void read_decoding(JsonFields& fields, ExpressionTemplate& leaf) {
  Decoding& decoding = leaf.decoding;
  read_optional(fields, "code", kCodeWords, decoding.code);
  if (decoding.code) (void)fields.require("per_element");
  fields.optional_uint64("per_element", decoding.per_element);
  read_optional(fields, "scale_dtype", kScaleDTypeWords, decoding.scale_dtype);
  fields.optional_uint64("zero", decoding.zero);
  std::uint64_t dim = 0;
  fields.optional_uint64("zeros_dim", dim);
  decoding.zeros_dim = dim;
  dim = 0;
  fields.optional_uint64("groups_dim", dim);
  decoding.groups_dim = dim;
  fields.optional_word("tensor_scale_is", kTensorScaleWords, decoding.tensor_scale);
  read_scale_order(fields, decoding.scale_order);
  std::vector<DecodingProblem> problems = decoding_problems(leaf);
  for (const Companion& companion : kCompanions) {
    const bool is_lonely = fields.find(companion.member) && !fields.find(companion.needs);
    const bool is_told = std::any_of(problems.begin(), problems.end(),
                                     [&](const DecodingProblem& told) { return told.member == companion.member; });
    if (is_lonely && !is_told) problems.push_back(lonely(companion));
  }
  if (const auto zero = fields.find("zero"); zero && decoding.zero == 0 && !is_integer(decoding.code))
    fields.problem(*zero, "zero", "only integers have a zero point", "a \"code\" of U2, U4, U8 or I8 beside it");
  for (DecodingProblem& problem : problems) {
    if (const auto value = fields.find(problem.member))
      fields.problem(*value, problem.member, std::move(problem.message), std::move(problem.expected));
  }
}

void write_decoding(JsonWriter& json, const DecodingText& text) {
  const Decoding& decoding = text.decoding;
  if (decoding.code) {
    json.key("code").string(name(*decoding.code));
    json.key("per_element").number(decoding.per_element);
  }
  if (decoding.scale_dtype) json.key("scale_dtype").string(name(*decoding.scale_dtype));
  if (decoding.zero != 0) json.key("zero").number(decoding.zero);
  if (!text.zeros.empty()) {
    json.key("zeros").string(text.zeros);
    json.key("zeros_dim").number(decoding.zeros_dim);
  }
  if (!text.tensor_scale.empty()) {
    json.key("tensor_scale").string(text.tensor_scale);
    if (decoding.tensor_scale != TensorScale::kFactor)
      json.key("tensor_scale_is").string(word_of(kTensorScaleWords, decoding.tensor_scale));
  }
  if (!text.groups.empty()) {
    json.key("groups").string(text.groups);
    json.key("groups_dim").number(decoding.groups_dim);
  }
  if (!decoding.scale_order.empty()) {
    json.key("scale_order").begin_array();
    for (const std::size_t number : decoding.scale_order) json.number(number);
    json.end_array();
  }
}

}  // namespace lading::mapping
