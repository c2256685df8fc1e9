#include "checkpoint/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "checkpoint/header.h"

namespace lading::checkpoint {
namespace {

// Longer paths cannot be opened on Linux.
constexpr std::size_t kMaxPathBytes = 4095;

constexpr std::string_view kWeightMap = "weight_map";

constexpr JsonLimits kIndexLimits{kMaxEntries, 2 * kMaxEntries, Code::kIndexInvalid};

struct ShardUse {
  std::uint64_t first_offset = 0;
  std::string_view first_tensor;
  std::uint64_t tensors = 0;
};

Error error_at(std::string_view file, std::uint64_t offset, Error error) {
  return std::move(error).in_file(file).at({offset, offset + 1}).by_rule("R45");
}

// Metadata is written by many tools; what is odd there is worth a word, not a refusal.
void read_metadata(const JsonValue& root, std::string_view file, Index& index) {
  const auto metadata = root.find("metadata");
  if (!metadata) return;
  const auto total = metadata->find("total_size");
  if (!total) return;
  index.total_size_bytes = total->as_uint64();
  if (index.total_size_bytes) return;
  index.warnings.add(error_at(
      file, total->offset(),
      Error(Code::kIndexTotalSize, "total_size is not a byte count").wanted("a whole number").got(total->found())));
}

}  // namespace

std::optional<std::string> why_not_a_shard_name(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (name.size() > kMaxPathBytes) return "it is too long";
  if (name.front() == '/') return "it is an absolute path";
  if (name.find('\0') != std::string_view::npos) return "it contains a NUL";
  if (name.find('\\') != std::string_view::npos) return "it contains a backslash";
  if (!name.ends_with(kFileEnding)) return fmt::format("it does not end in {}", kFileEnding);
  std::size_t begin = 0;
  while (begin <= name.size()) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view component = name.substr(begin, end - begin);
    if (component.empty()) return "it has an empty component";
    if (component == "." || component == "..") return "it has a component \".\" or \"..\"";
    begin = end + 1;
  }
  return std::nullopt;
}

namespace {

// The entries of an index, and which shard each names.
class WeightMap {
 public:
  WeightMap(std::string_view file, Index& index, Errors& errors) : file_(file), index_(index), errors_(errors) {}

  void read(const JsonValue& weight_map) {
    for (const JsonMember member : weight_map) {
      if (!member.value.is_string()) {
        errors_.add(error_at(file_, member.value.offset(),
                             Error(Code::kIndexInvalid, "the shard of a tensor is not a string")
                                 .of_tensor(member.key)
                                 .wanted("a file name")
                                 .got(member.value.found())));
        continue;
      }
      if (uses_.size() > kMaxShards) break;
      ShardUse& use = uses_.try_emplace(std::string(member.value.text())).first->second;
      if (use.tensors++ == 0) use = {member.value.offset(), member.key, 1};
      index_.entries.push_back({std::string(member.key), 0, member.key_offset});
      shard_of_entry_.push_back(member.value.text());
    }
    if (uses_.size() > kMaxShards) {
      errors_.add(error_at(file_, weight_map.offset(),
                           Error(Code::kIndexInvalid, "the index lists too many files")
                               .wanted(fmt::format("at most {}", with_commas(kMaxShards)))));
      return;
    }
    if (index_.entries.empty() && errors_.empty()) {
      errors_.add(error_at(file_, weight_map.offset(),
                           Error(Code::kIndexInvalid, "the weight_map is empty").wanted("at least one tensor")));
    }
    list_shards();
  }

  // Of an index without problems.
  void number_shards() {
    for (std::size_t i = 0; i < index_.entries.size(); ++i) {
      const auto shard = std::lower_bound(index_.shards.begin(), index_.shards.end(), shard_of_entry_[i]);
      index_.entries[i].shard = static_cast<std::uint32_t>(shard - index_.shards.begin());
    }
  }

 private:
  void list_shards() {
    for (const auto& [name, use] : uses_) {
      if (const auto why = why_not_a_shard_name(name)) {
        errors_.add(
            error_at(file_, use.first_offset,
                     Error(Code::kIndexShardName, fmt::format("{} is not a valid shard name: {}", quote(name), *why))
                         .of_tensor(use.first_tensor)
                         .wanted(fmt::format("a relative path inside the checkpoint that ends in {}", kFileEnding))
                         .got(fmt::format("{}, for {} tensor(s)", quote(name), use.tensors)))
                .by_rule("S4"));
      }
      index_.shards.push_back(name);
    }
  }

  std::string_view file_;
  Index& index_;
  Errors& errors_;
  std::map<std::string, ShardUse, std::less<>> uses_;
  std::vector<std::string_view> shard_of_entry_;
};

}  // namespace

Result<Index, Errors> parse_index(const JsonBuffer& json, std::string_view file) {
  JsonDuplicates duplicates;
  auto document = JsonDocument::parse_keeping_duplicates(json, duplicates, kIndexLimits);
  if (!document) {
    JsonFault fault = std::move(document).error();
    if (fault.path.size() > 1 && fault.path.front() == kWeightMap) fault.error.tensor = fault.path[1];
    return fail(Errors(std::move(fault.error).in_file(file)));
  }
  Errors errors;
  errors.count_not_listed(duplicates.not_listed);
  for (const JsonDuplicate& duplicate : duplicates.list) {
    Error error = duplicate.error(0).in_file(file).by_rule("R45");
    if (duplicate.path->size() == 1 && duplicate.path->front() == kWeightMap) error.tensor = duplicate.key;
    errors.add(std::move(error));
  }
  const JsonValue root = document->root();
  const auto weight_map = root.find(kWeightMap);
  if (!weight_map || !weight_map->is_object()) {
    errors.add(error_at(file, weight_map ? weight_map->offset() : root.offset(),
                        Error(Code::kIndexInvalid, "the index has no weight_map")
                            .wanted("an object \"weight_map\" from tensor names to shards")
                            .got(weight_map         ? weight_map->found()
                                 : root.is_object() ? "none"
                                                    : root.found())));
    return fail(std::move(errors));
  }

  Index index;
  read_metadata(root, file, index);
  WeightMap map(file, index, errors);
  map.read(*weight_map);
  if (!errors.empty()) return fail(std::move(errors));
  map.number_shards();
  return index;
}

}  // namespace lading::checkpoint
