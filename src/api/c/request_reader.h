// Reads requests of the C ABI field by field. Internal to api/c.
#pragma once

#include <array>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/document.h"
#include "api/layout_words.h"
#include "base/json_fields.h"
#include "lading/dtypes.h"
#include "lading/load.h"
#include "lading/result.h"

namespace lading::c_api {

inline constexpr std::string_view kRequestSchema = "lading.request/1";

inline constexpr std::array<std::pair<std::string_view, TrailingBytesPolicy>, 2> kTrailingBytesWords = {
    {{"refuse", TrailingBytesPolicy::kRefuse}, {"allow", TrailingBytesPolicy::kAllow}}};

inline constexpr std::array<std::pair<std::string_view, Start>, 2> kStartWords = {
    {{"checkpoint", Start::kFromCheckpoint}, {"nothing", Start::kWithoutCheckpoint}}};

// The characters of an object in the text that it was parsed from. The text is known to be JSON.
inline std::string object_text(std::string_view text, const JsonValue& object) {
  const auto begin = static_cast<std::size_t>(object.offset());
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return std::string(text.substr(begin, i + 1 - begin));
    }
  }
  LADING_CHECK(false);
  return {};
}

/// What all requests have in common, and the kinds of fields that only requests have.
class RequestReader {
 public:
  RequestReader(std::string_view json, const JsonDocument& document)
      : json_(json), fields_(begin_document(document, kRequestSchema, errors_)) {}

  JsonFields& fields() { return fields_; }
  Errors& errors() { return errors_; }

  void checkpoint(CheckpointRef& out) {
    fields_.string("checkpoint", out.path);
    beside_checkpoint(fields_, out);
  }

  void checkpoint(PlanRequest& out) {
    fields_.optional_word("start", kStartWords, out.start);
    if (out.start == Start::kFromCheckpoint) return checkpoint(out.checkpoint);
    fields_.optional_string("checkpoint", out.checkpoint.path);
    beside_checkpoint(fields_, out.checkpoint);
  }

  static void beside_checkpoint(JsonFields& fields, CheckpointRef& out) {
    text(fields, "root", out.root);
    text(fields, "revision", out.revision);
    fields.optional_word("trailing_bytes", kTrailingBytesWords, out.trailing_bytes);
  }

  static void text(JsonFields& fields, std::string_view key, std::optional<std::string>& out) {
    const auto value = fields.find(key);
    if (!value) return;
    if (value->is_string()) {
      out = std::string(value->text());
    } else {
      fields.problem(*value, key, "not a string", "a string");
    }
  }

  void adapters(std::vector<AdapterRef>& out) {
    each_adapter([&](JsonFields& fields, const CheckpointRef& checkpoint) {
      AdapterRef& adapter = out.emplace_back();
      adapter.checkpoint = checkpoint;
      names(fields, adapter);
    });
  }

  void adapters(std::vector<CheckpointRef>& out) {
    each_adapter([&](JsonFields&, const CheckpointRef& checkpoint) { out.push_back(checkpoint); });
  }

  template <class T>  // an optional document, or one that a value may stand for
  void document(std::string_view key, std::optional<T>& out) {
    std::optional<Document> document;
    if (const auto value = fields_.find(key)) read_document(*value, key, document);
    if (document) out = *std::move(document);
  }

  void required_document(std::string_view key, Document& out) {
    std::optional<Document> document;
    if (const auto value = fields_.require(key)) read_document(*value, key, document);
    if (document) out = *std::move(document);
  }

  void threads(std::uint32_t& out) {
    const auto value = fields_.find("threads");
    if (!value) return;
    const auto number = value->as_uint64();
    if (number && *number <= std::numeric_limits<std::uint32_t>::max()) {
      out = static_cast<std::uint32_t>(*number);
    } else {
      fields_.problem(*value, "threads", "not a number of threads", "a whole number; 0 chooses the number");
    }
  }

  void ranks(std::optional<std::vector<std::uint64_t>>& out) {
    const auto value = fields_.find("ranks");
    if (!value) return;
    if (value->is_string() && value->text() == "all") {
      out.reset();
      return;
    }
    std::vector<std::uint64_t> ranks;
    bool is_good = value->is_array();
    for (const JsonMember element : *value) {
      const auto rank = element.value.as_uint64();
      is_good = is_good && rank;
      ranks.push_back(rank.value_or(0));
    }
    if (is_good) {
      out = std::move(ranks);
    } else {
      fields_.problem(*value, "ranks", "not a list of ranks", "an array of whole numbers, or \"all\"");
    }
  }

  void tp_plan(std::vector<std::pair<std::string, std::string>>& out) {
    fields_.optional_each("tp_plan", [&](const JsonValue& element, const std::string& path) {
      auto& [pattern, style] = out.emplace_back();
      JsonFields rule(element, path, errors_);
      rule.string("pattern", pattern);
      rule.string("style", style);
      rule.finish();
    });
  }

  void units(DTypesRequest& out) {
    const auto value = fields_.find("units");
    if (!value) return;
    policy::UnitWish& wish = out.units.emplace();
    JsonFields units(*value, fields_.path_of("units"), errors_);
    units.optional_strings("modules", wish.modules);
    units.optional_strings("containers", wish.containers);
    units.optional_strings("duplicates", wish.duplicates);
    units.optional_strings("ignored", out.ignored);
    units.finish();
  }

  void speeds(std::string_view key, std::vector<double>& out) {
    fields_.optional_each(key, [&](const JsonValue& value, const std::string&) {
      const bool is_number = value.kind() == JsonKind::kNumber;
      if (!is_number) fields_.problem(value, key, "not a number", "bytes per second, for each rank");
      out.push_back(is_number ? std::strtod(std::string(value.text()).c_str(), nullptr) : 0);
    });
  }

  // Mesh, strategy and devices are words; a layout is a document.
  void layout(LayoutChoice& out) {
    LayoutWords words;
    const std::size_t errors_before = errors_.size();
    document("layout", words.layout);
    fields_.optional_string("mesh", words.mesh);
    fields_.optional_string("strategy", words.strategy);
    tp_plan(words.tp_plan);
    fields_.optional_string("device", words.device);
    if (const auto value = fields_.find("devices_per_node")) {
      words.devices_per_node = value->as_uint64();
      if (!words.devices_per_node) fields_.problem(*value, "devices_per_node", "not a whole number", "a whole number");
    }
    // Words that could not be read are told of once.
    if (errors_.size() != errors_before) return;
    auto made = layout_of(words);
    if (made) {
      out = *std::move(made);
    } else {
      of_words_ = std::move(made).error();
    }
  }

  template <class Parsed>
  Result<Parsed, Errors> finish(Parsed parsed) {
    fields_.finish();
    errors_.relocate("request (text)", 0);
    errors_.add(std::move(of_words_));
    if (errors_.empty()) return parsed;
    return fail(std::move(errors_));
  }

 private:
  template <class Take>
  void each_adapter(const Take& take) {
    fields_.optional_each("adapters", [&](const JsonValue& element, const std::string& path) {
      JsonFields fields(element, path, errors_);
      CheckpointRef checkpoint;
      fields.string("checkpoint", checkpoint.path);
      beside_checkpoint(fields, checkpoint);
      take(fields, checkpoint);
      fields.finish();
    });
  }

  static void names(JsonFields& fields, AdapterRef& out) {
    const auto value = fields.find("mapping");
    if (!value) return;
    bool is_good = value->is_object();
    for (const JsonMember member : *value) {
      is_good = is_good && member.value.is_string();
      if (is_good) out.names.emplace(member.key, member.value.text());
    }
    if (!is_good) fields.problem(*value, "mapping", "not names by key", "an object of strings");
  }

  void read_document(const JsonValue& value, std::string_view key, std::optional<Document>& out) {
    if (value.is_object()) {
      out = Document::text(object_text(json_, value));
    } else if (value.is_string()) {
      out = Document::file(std::string(value.text()));
    } else {
      fields_.problem(value, key, "not a document", "an object, or the path of a file that holds it");
    }
  }

  std::string_view json_;
  Errors errors_;
  Errors of_words_;  // which are wrong wherever they stand
  JsonFields fields_;
};

inline Result<JsonDocument, Errors> parse_request(std::string_view json) {
  return read_document(Document::text(std::string(json)), {"request"});
}

}  // namespace lading::c_api
