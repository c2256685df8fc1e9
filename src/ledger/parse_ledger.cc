// `lading.ledger/1`, read. What it lets through needs no further checks: indices, ranges and products are good.
//
// A part that depends on another is left alone when that one has problems: the rest would be about what was guessed.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/checked.h"
#include "base/text.h"
#include "ledger/parse_fields.h"
#include "ledger/parse_parts.h"

namespace lading::ledger {
namespace {

constexpr std::string_view kSchema = "lading.ledger/1";
constexpr std::uint64_t kNanoseconds = 1'000'000'000;

void read_ranks(JsonFields& fields, Ledger& ledger, Errors& errors) {
  const auto value = fields.require("ranks");
  if (!value) return;
  const auto ranks = read_numbers(*value, fields.path_of("ranks"), errors);
  if (!ranks) return;
  const bool ascending = std::adjacent_find(ranks->begin(), ranks->end(), std::greater_equal<>()) == ranks->end();
  if (!ascending || (!ranks->empty() && ranks->back() >= ledger.mesh.ranks())) {
    fields.problem(*value, "ranks", "not ranks of the mesh, each once and ascending",
                   fmt::format("numbers below {}", ledger.mesh.ranks()));
    return;
  }
  ledger.ranks = *ranks;
}

File read_file(const JsonValue& value, const std::string& path, std::size_t adapters, Errors& errors) {
  File file;
  JsonFields fields(value, path, errors);
  fields.string("name", file.name);
  fields.uint64("size_bytes", file.size_bytes);
  read_checkpoint(fields, adapters, file.checkpoint);
  if (file.size_bytes > kMaxSize) {
    add_problem(errors, value, path, Error(Code::kSchema, "no file is that large").wanted("less than 2^63 bytes"));
  }
  const bool has_identity = fields.find("inode") || fields.find("mtime_s") || fields.find("mtime_ns");
  if (has_identity) {
    FileIdentity identity;
    fields.uint64("inode", identity.inode);
    fields.uint64("mtime_s", identity.mtime_s);
    fields.uint64("mtime_ns", identity.mtime_ns);
    if (identity.mtime_ns >= kNanoseconds) {
      add_problem(errors, value, fields.path_of("mtime_ns"),
                  Error(Code::kSchema, "more than a second").wanted("less than 1000000000"));
    }
    file.identity = identity;
  }
  fields.finish();
  return file;
}

FileNumbers number_files(const JsonFields& fields, const Ledger& ledger, Errors& errors) {
  FileNumbers numbers;
  for (std::uint32_t i = 0; i < ledger.files.size(); ++i) {
    if (!numbers.emplace(std::pair(ledger.files[i].checkpoint, std::string_view(ledger.files[i].name)), i).second) {
      errors.add(Error(Code::kSchema, fmt::format("{}[{}]: the file is listed twice", fields.path_of("files"), i))
                     .got(quote(ledger.files[i].name)));
    }
  }
  return numbers;
}

void read_keys(JsonFields& fields, Ledger& ledger, Errors& errors) {
  fields.each("ignored_keys", [&](const JsonValue& value, const std::string& path) {
    plan::IgnoredAdapterKey key;
    JsonFields ignored(value, path, errors);
    ignored.string("key", key.key);
    ignored.string("rule", key.rule);
    read_checkpoint(ignored, ledger.adapters.size(), key.checkpoint);
    ignored.finish();
    if (key.checkpoint > 0) {
      ledger.ignored_adapter_keys.push_back(std::move(key));
    } else {
      ledger.ignored_keys.emplace_back(std::move(key.key), std::move(key.rule));
    }
  });
  fields.strings("unexpected_keys", ledger.unexpected_keys);
}

void check_complete(JsonFields& fields, const Ledger& ledger) {
  const bool may_be =
      std::all_of(ledger.records.begin(), ledger.records.end(), [](const Record& record) { return record.complete; });
  const auto value = fields.find("complete");
  if (value && ledger.complete && !may_be) fields.problem(*value, "complete", "it contradicts the records", "false");
}

}  // namespace

void add_problem(Errors& errors, const JsonValue& value, std::string_view path, Error error) {
  error.message = fmt::format("{}: {}", path, error.message);
  if (error.found.empty()) error.found = value.found();
  errors.add(std::move(error).at({value.offset(), value.offset() + 1}));
}

std::optional<std::vector<std::uint64_t>> read_numbers(const JsonValue& value, std::string_view path, Errors& errors) {
  std::vector<std::uint64_t> numbers;
  bool good = value.is_array();
  if (good) {
    for (const JsonMember member : value) {
      const auto number = member.value.as_uint64();
      good = good && number;
      numbers.push_back(number.value_or(0));
    }
  }
  if (good) return numbers;
  add_problem(errors, value, path,
              Error(Code::kSchema, "not an array of whole numbers").wanted("whole numbers from 0 to 2^64 - 1"));
  return std::nullopt;
}

void read_checkpoint(JsonFields& fields, std::size_t adapters, std::uint32_t& out) {
  const auto value = fields.find("checkpoint");
  if (!value) return;
  const auto number = value->as_uint64();
  if (number && *number > 0 && *number <= adapters) {
    out = static_cast<std::uint32_t>(*number);
  } else {
    fields.problem(*value, "checkpoint", "not one of the adapters", fmt::format("a number from 1 to {}", adapters));
  }
}

bool is_hex_128(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Another of lading's documents: its fields would all be told as wrong.
std::optional<Error> another_document(const JsonDocument& document) {
  const auto schema = document.root().find("schema");
  if (!schema || !schema->is_string()) return std::nullopt;
  const std::string_view text = schema->text();
  if (!text.starts_with("lading.") || text.starts_with("lading.ledger/")) return std::nullopt;
  const bool is_plan = text.starts_with("lading.plan/");
  return Error(Code::kSchema, is_plan ? "the document is a plan, not a ledger" : "the document is not a ledger")
      .at({schema->offset(), schema->offset() + 1})
      .wanted(fmt::format("the schema {}, which load --ledger writes", kSchema))
      .got(quote(text))
      .try_this(is_plan ? "Use lading plan CKPT … --diff PLAN to compare plans."
                        : "Pass the file that load --ledger wrote.");
}

Result<Ledger, Errors> parse_ledger(const JsonDocument& document) {
  if (auto other = another_document(document)) return fail(Errors(*std::move(other)));
  Errors errors;
  Ledger ledger;
  JsonFields fields = begin_document(document, kSchema, errors);
  fields.string("lading", ledger.version);
  fields.boolean("complete", ledger.complete);
  fields.string("checkpoint", ledger.checkpoint);
  fields.optional_strings("adapters", ledger.adapters);
  fields.string("plan_digest", ledger.plan_digest);
  if (const auto digest = fields.find("plan_digest"); digest && digest->is_string() && !is_hex_128(digest->text())) {
    fields.problem(*digest, "plan_digest", "not a digest", "32 hexadecimal digits");
  }
  layout::MeshReading mesh = layout::read_mesh(fields, errors);
  fields.uint64("seed", ledger.seed);
  ledger.mesh = std::move(mesh.mesh);
  if (mesh.good) {
    read_ranks(fields, ledger, errors);
  } else {
    (void)fields.find("ranks");
  }
  fields.each("files", [&](const JsonValue& value, const std::string& path) {
    ledger.files.push_back(read_file(value, path, ledger.adapters.size(), errors));
  });
  const FileNumbers files = number_files(fields, ledger, errors);
  read_keys(fields, ledger, errors);
  if (errors.empty()) {
    read_tensors(fields, files, ledger, errors);
  } else {
    (void)fields.find("tensors");
  }
  if (errors.empty()) {
    read_records(fields, ledger, errors);
    if (errors.empty()) check_complete(fields, ledger);
  } else {
    (void)fields.find("records");
  }
  fields.finish();
  if (!errors.empty()) return fail(std::move(errors));
  return ledger;
}

}  // namespace lading::ledger
