#include "checker/save/check_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "base/text.h"
#include "checker/plan_types.h"
#include "checker/problem.h"

namespace lading::checker {
namespace {

constexpr std::size_t kLengthBytes = 8;

class FilesCheck {
 public:
  explicit FilesCheck(const plan::SavePlan& save) : save_(save), load_(save.load), by_file_(load_.files.size()) {}

  Errors run() {
    if (save_.headers.size() != load_.files.size()) {
      errors_.add(problem("the plan has not one header for each file", "R69"));
      return std::move(errors_);
    }
    for (const SourceId id : load_.sources.ids()) {
      const Source& source = load_.sources[id];
      if (load_.files.has(source.file)) by_file_[source.file].push_back(&source);
    }
    for (const FileId file : load_.files.ids()) check_file(file);
    check_index();
    return std::move(errors_);
  }

 private:
  void add(FileId file, std::string message, std::string_view found = {}) {
    Error error = problem(std::move(message), "R69").in_file(load_.files[file].name);
    if (!found.empty()) error.found = found;
    errors_.add(std::move(error));
  }

  void check_file(FileId file) {
    const std::string_view header = save_.headers[file];
    std::uint64_t length = 0;
    if (header.size() < kLengthBytes) return add(file, "the header is shorter than its length");
    for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(header[i]);
    if (length != header.size() - kLengthBytes) return add(file, "the header states another length than it has");
    const auto json = JsonDocument::parse(JsonBuffer::copy_of(header.substr(kLengthBytes)));
    if (!json || !json->root().is_object()) return add(file, "the header is not a JSON object");
    std::sort(by_file_[file].begin(), by_file_[file].end(), [](const Source* a, const Source* b) {
      return a->bytes.begin != b->bytes.begin ? a->bytes.begin < b->bytes.begin : a->bytes.end < b->bytes.end;
    });
    std::uint64_t at = header.size();
    for (const Source* source : by_file_[file]) {
      if (source->bytes.begin != at) add(file, "the tensors do not follow each other without a gap", source->key);
      at = source->bytes.end;
      check_entry(file, json->root(), *source, header.size());
    }
    if (at != load_.files[file].size_bytes) add(file, "the tensors do not fill the file");
    const bool has_metadata = json->root().find("__metadata__").has_value();
    if (json->root().size() != by_file_[file].size() + (has_metadata ? 1 : 0)) {
      add(file, "the header lists another number of tensors than the plan writes");
    }
  }

  void check_entry(FileId file, const JsonValue& root, const Source& source, std::uint64_t data_begin) {
    const auto entry = root.find(source.key);
    if (!entry) return add(file, "the header lacks a tensor", quote(source.key));
    const auto dtype = entry->find("dtype");
    const auto shape = entry->find("shape");
    const auto offsets = entry->find("data_offsets");
    const std::vector<std::uint64_t> dims(source.shape.begin(), source.shape.end());
    const std::vector<std::uint64_t> place = {source.bytes.begin - data_begin, source.bytes.end - data_begin};
    const bool is_right = source.bytes.begin >= data_begin && dtype && dtype->is_string() &&
                          dtype->text() == name(source.dtype) && shape && numbers_are(*shape, dims) && offsets &&
                          numbers_are(*offsets, place);
    if (!is_right) add(file, "the header says something else of a tensor than the plan", quote(source.key));
  }

  static bool numbers_are(const JsonValue& list, const std::vector<std::uint64_t>& wanted) {
    if (!list.is_array() || list.size() != wanted.size()) return false;
    std::size_t i = 0;
    for (const JsonMember member : list) {
      if (member.value.as_uint64() != wanted[i++]) return false;
    }
    return true;
  }

  void check_index() {
    if (save_.index_name.empty()) {
      if (load_.files.size() > 1) errors_.add(problem("there are several files and no index", "R69"));
      return;
    }
    const auto refuse = [&](std::string message, std::string_view key = {}) {
      Error error = problem(std::move(message), "R69").in_file(save_.index_name);
      if (!key.empty()) error.tensor = key;
      errors_.add(std::move(error));
    };
    const auto json = JsonDocument::parse(JsonBuffer::copy_of(save_.index));
    const auto map = json ? json->root().find("weight_map") : std::nullopt;
    if (!map || !map->is_object()) return refuse("the index has no weight map");
    if (map->size() != load_.sources.size()) refuse("the index names another number of tensors than the plan writes");
    std::uint64_t total_bytes = 0;
    for (const Source& source : load_.sources) {
      total_bytes += source.bytes.size_bytes();
      const auto file = map->find(source.key);
      const bool is_right =
          file && file->is_string() && load_.files.has(source.file) && file->text() == load_.files[source.file].name;
      if (!is_right) refuse("the index names the wrong file of a tensor", source.key);
    }
    const auto metadata = json->root().find("metadata");
    const auto stated = metadata ? metadata->find("total_size") : std::nullopt;
    if (!stated || stated->as_uint64() != total_bytes) refuse("the index states a wrong total size");
  }

  const plan::SavePlan& save_;
  const Plan& load_;
  IndexedVector<FileId, std::vector<const Source*>> by_file_;
  Errors errors_;
};

}  // namespace

Errors check_files(const plan::SavePlan& save) { return FilesCheck(save).run(); }

}  // namespace lading::checker
