#include "plan/source_codes.h"

#include <fmt/format.h>

#include "base/checked.h"
#include "base/text.h"

namespace lading::plan {
namespace {

std::string_view words_of(CodeType code) {
  switch (code) {
    case CodeType::kF4: return "floats of 4 bits (E2M1)";
    case CodeType::kU2: return "unsigned integers of 2 bits";
    case CodeType::kU4: return "unsigned integers of 4 bits";
    case CodeType::kU8: return "unsigned integers of 8 bits";
    case CodeType::kI8: return "signed integers of 8 bits";
  }
  return "codes";
}

class SchemeWords {
 public:
  SchemeWords(const Plan& plan, const Source& source) : plan_(plan), source_(source), scaling_(*source.scaling) {}

  std::vector<std::string> run(DType storage) {
    if (scaling_.decoding == Decoding{} && scaling_.tensor_scale.is_none()) {
      say(fmt::format("each block of {} of {} times its scale in {}, {} [R48]", scaling_.block.text(),
                      quote(source_.key), quote(key_of(scaling_.scales)), rounding(storage)));
      return std::move(words_);
    }
    if (scaling_.decoding.code) codes(*scaling_.decoding.code);
    value(storage);
    scales();
    others();
    return std::move(words_);
  }

 private:
  void say(std::string text) { words_.push_back(std::move(text)); }
  [[nodiscard]] const std::string& key_of(SourceId id) const { return plan_.sources[id].key; }

  [[nodiscard]] std::string rounding(DType storage) const {
    const auto& product = scaling_.product;
    return fmt::format("rounded {} to {}", product ? fmt::format("to {} and then", name(*product)) : "once",
                       name(storage));
  }

  void codes(CodeType code) {
    const std::uint64_t count = scaling_.decoding.per_element;
    say(count == 1 ? fmt::format("each element of {} is a code; codes are {}", quote(source_.key), words_of(code))
                   : fmt::format("each element of {} holds {} codes, the first in the lowest bits; codes are {}",
                                 quote(source_.key), count, words_of(code)));
  }

  void value(DType storage) {
    std::string text = scaling_.decoding.code ? "code" : "element";
    if (scaling_.decoding.zero != 0) text += fmt::format(" - {}", scaling_.decoding.zero);
    if (!scaling_.zeros.is_none()) text += " - zero point";
    const bool is_sum = scaling_.decoding.zero != 0 || !scaling_.zeros.is_none();
    std::string last;
    if (!scaling_.tensor_scale.is_none()) {
      const bool is_factor = scaling_.decoding.tensor_scale == TensorScale::kFactor;
      last = fmt::format(" {} the scale of the whole tensor", is_factor ? "times" : "divided by");
    }
    say(fmt::format("each value is {} times the scale of its block{}, {} [R48]",
                    is_sum ? "(" + text + ")" : "the " + text, last, rounding(storage)));
  }

  void scales() {
    const Decoding& decoding = scaling_.decoding;
    const Source& scales = plan_.sources[scaling_.scales];
    std::string text =
        fmt::format("scales are in {}, one for each block of {}", quote(scales.key), scaling_.block.text());
    if (decoding.scale_dtype) text += fmt::format(", their bits read as {}", name(*decoding.scale_dtype));
    if (!decoding.scale_order.empty())
      text += fmt::format("; in each run of {} scales, that of code i is at place [{}][i]", decoding.scale_order.size(),
                          fmt::join(decoding.scale_order, ", "));
    say(std::move(text));
  }

  void others() {
    if (!scaling_.zeros.is_none()) {
      say(fmt::format("zero points are in {}, one for each block, packed along dim {}", quote(key_of(scaling_.zeros)),
                      scaling_.decoding.zeros_dim));
    }
    if (!scaling_.tensor_scale.is_none())
      say(fmt::format("the scale of the whole tensor is in {}", quote(key_of(scaling_.tensor_scale))));
    if (!scaling_.groups.is_none()) {
      say(fmt::format("the block in dim {} is not counted: {} has its number for each code along that dim",
                      scaling_.decoding.groups_dim, quote(key_of(scaling_.groups))));
    }
  }

  const Plan& plan_;
  const Source& source_;
  const Scaling& scaling_;
  std::vector<std::string> words_;
};

}  // namespace

Shape key_shape(const Source& source) {
  if (!source.code()) return source.shape;
  LADING_CHECK(source.shape.rank() > 0);
  return Shape(std::vector<std::uint64_t>(source.shape.begin(), source.shape.end() - 1));
}

std::uint64_t run_bytes(const Transfer& transfer, const Source& source) {
  const auto run_bits = checked_mul(transfer.run_elems + transfer.first_code, source.element_bits());
  LADING_CHECK(run_bits.has_value());  // the file has them
  return *run_bits / 8 + (*run_bits % 8 == 0 ? 0 : 1);
}

std::vector<std::string> scheme_words(const Plan& plan, const Source& source, DType storage) {
  if (!source.scaling) return {};
  return SchemeWords(plan, source).run(storage);
}

}  // namespace lading::plan
