#include "api/convert/config_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "source/model_config.h"

namespace lading {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 4> kTorchNames = {
    {{DType::kF64, "float64"}, {DType::kF32, "float32"}, {DType::kF16, "float16"}, {DType::kBF16, "bfloat16"}}};

bool is_dtype_key(std::string_view key) { return key == "dtype" || key == "torch_dtype"; }
bool is_quantization_key(std::string_view key) { return key == "quantization_config" || key == "compression_config"; }
// "text_config", "vision_config", …
bool is_part(const JsonMember& member) {
  return member.value.is_object() && member.key.ends_with("_config") && !is_quantization_key(member.key);
}

std::string_view torch_name(DType dtype) {
  const auto found = std::find_if(kTorchNames.begin(), kTorchNames.end(), [&](auto& n) { return n.first == dtype; });
  return found->second;
}

std::optional<DType> dtype_in(const JsonValue& object) {
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    const auto value = object.find(key);
    if (!value || !value->is_string()) continue;
    std::string_view word = value->text();
    if (word.starts_with("torch.")) word.remove_prefix(6);
    for (const auto& [dtype, name] : kTorchNames) {
      if (name == word) return dtype;
    }
  }
  return std::nullopt;
}

// Behind the value that begins here. The text has been parsed.
std::size_t end_of_value(std::string_view text, std::size_t at) {
  std::size_t depth = 0;
  do {
    if (text[at] == '"') {
      for (++at; text[at] != '"'; ++at) at += text[at] == '\\' ? std::size_t{1} : 0;
      ++at;
    } else if (text[at] == '{' || text[at] == '[') {
      ++depth;
      ++at;
    } else if (text[at] == '}' || text[at] == ']') {
      --depth;
      ++at;
    } else if (depth > 0) {
      ++at;
    } else {
      at = std::min(text.find_first_of(",]} \t\r\n", at), text.size());
    }
  } while (depth > 0);
  return at;
}

class Changer {
 public:
  Changer(std::string_view text, const ConfigChange& change) : text_(text), change_(change) {}

  std::string run(const JsonValue& root) {
    const auto members = visit(root);
    const bool says_dtype = std::any_of(members.begin(), members.end(), [](auto& m) { return is_dtype_key(m.key); });
    std::string out;
    std::size_t from = 0;
    if (change_.dtype && !says_dtype) {
      from = root.offset() + 1;
      out = fmt::format("{}\n  \"torch_dtype\": \"{}\"{}", text_.substr(0, from), torch_name(*change_.dtype),
                        members.empty() ? "\n" : ",");
    }
    for (const Edit& edit : edits_) {
      out += text_.substr(from, edit.begin - from);
      out += edit.text;
      from = edit.end;
    }
    return out += text_.substr(from);
  }

 private:
  struct Edit {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::string text;
  };

  // The members that stay.
  std::vector<JsonMember> visit(const JsonValue& object) {
    std::vector<JsonMember> kept;
    std::optional<std::size_t> dropped_from;  // with the comma that is no longer needed
    for (const JsonMember& member : object) {
      if (change_.drops_quantization && is_quantization_key(member.key)) {
        if (!dropped_from) dropped_from = member.key_offset;
        dropped_end_ = end_of_value(text_, member.value.offset());
        continue;
      }
      if (dropped_from) edits_.push_back({*std::exchange(dropped_from, std::nullopt), member.key_offset, ""});
      kept.push_back(member);
      if (is_part(member)) visit(member.value);
      if (change_.dtype && is_dtype_key(member.key)) {
        edits_.push_back({member.value.offset(), end_of_value(text_, member.value.offset()),
                          fmt::format("\"{}\"", torch_name(*change_.dtype))});
      }
    }
    if (dropped_from) {
      const std::size_t begin = kept.empty() ? *dropped_from : end_of_value(text_, kept.back().value.offset());
      edits_.push_back({begin, dropped_end_, ""});
    }
    return kept;
  }

  std::string_view text_;
  const ConfigChange& change_;
  std::size_t dropped_end_ = 0;
  std::vector<Edit> edits_;  // in the order of the text
};

Result<JsonDocument, Errors> parsed(std::string_view text) {
  LADING_ASSIGN_OR_RETURN(JsonDocument document,
                          JsonDocument::parse(JsonBuffer::copy_of(source::with_numbers_of_json(text))));
  if (!document.root().is_object()) {
    return fail(Errors(Error(Code::kSchema, "the model's configuration is not an object")
                           .got(document.root().found())
                           .try_this("Get the config.json that belongs to the files.")));
  }
  return document;
}

}  // namespace

Result<ConfigFacts, Errors> config_facts(std::string_view text) {
  LADING_ASSIGN_OR_RETURN(const JsonDocument document, parsed(text));
  ConfigFacts facts;
  facts.dtype = dtype_in(document.root());
  const auto part = document.root().find("text_config");
  if (!facts.dtype && part && part->is_object()) facts.dtype = dtype_in(*part);
  facts.names_code = document.root().find("auto_map").has_value();
  return facts;
}

Result<std::string, Errors> changed_config(std::string_view text, const ConfigChange& change) {
  LADING_ASSIGN_OR_RETURN(const JsonDocument document, parsed(text));
  return Changer(text, change).run(document.root());
}

}  // namespace lading
