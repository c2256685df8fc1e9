#include "source/checkpoint_source.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <new>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "checkpoint/foreign.h"
#include "checkpoint/header.h"
#include "io/writers.h"
#include "source/model_config.h"
#include "source/packed_details.h"

namespace lading::source {

using checkpoint::HeaderContext;
using checkpoint::ShardHeader;

namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kIndexEnding = ".safetensors.index.json";

std::vector<std::string> ending_in(const std::vector<std::string>& names, std::string_view ending) {
  std::vector<std::string> chosen;
  std::copy_if(names.begin(), names.end(), std::back_inserter(chosen),
               [&](const std::string& name) { return name.ends_with(ending); });
  return chosen;
}

std::string parent_of(const std::string& relative) {
  const auto slash = relative.rfind('/');
  return slash == std::string::npos ? std::string() : relative.substr(0, slash);
}

// A header: what stands in front of its text, and the text.
std::uint64_t hash_of(std::string_view front, std::string_view text) {
  return XXH3_64bits_withSeed(text.data(), text.size(), XXH3_64bits(front.data(), front.size()));
}

// Reads a text and hands it to `parse`. Its size was checked against file and limit before, but memory may end here all
// the same: a header may be a hundred megabytes long.
template <class Parse>
auto read_and_parse(const io::File& file, ByteRange text, const Parse& parse)
    -> decltype(parse(std::declval<const JsonBuffer&>())) {
  try {
    JsonBuffer buffer(text.size_bytes());
    LADING_TRY(file.read_exact(text.begin, {buffer.data(), text.size_bytes()}));
    LADING_TRY(file.check_unchanged());
    return parse(buffer);
  } catch (const std::bad_alloc&) {
    return fail(Error(Code::kOutOfMemory,
                      fmt::format("not enough memory to read {} of the file", human_bytes(text.size_bytes())))
                    .in_file(file.path()));
  }
}

}  // namespace

class SourceReader {
 public:
  SourceReader(Location location, const OpenOptions& options)
      : options_(options),
        kind_(location.kind),
        relative_(std::move(location.relative)),
        source_(std::move(location.anchor)) {
    source_.in_hub_cache_ = location.in_hub_cache;
  }

  Result<CheckpointSource, Errors> read() {
    if (kind_ == LocationKind::kDirectory) LADING_TRY(choose_in_directory());
    if (kind_ == LocationKind::kIndex) {
      LADING_TRY(read_sharded());
    } else {
      LADING_TRY(read_single());
    }
    ModelConfig config = read_model_config(anchor(), parent_of(relative_));
    source_.catalog_.quantization = std::move(config.quantization);
    source_.warnings_.add(std::move(config.warnings));
    if (source_.catalog_.quantization) {
      if (auto read = read_packed_details(source_, *source_.catalog_.quantization); !read) {
        return fail(Errors(std::move(read).error()));
      }
    }
    return std::move(source_);
  }

 private:
  // The index decides, never a glob; without one there must be no doubt which file is meant.
  Result<void> choose_in_directory() {
    const std::string directory = relative_;
    LADING_ASSIGN_OR_RETURN(const auto names, anchor().list(directory));
    const auto has = [&](std::string_view name) { return std::binary_search(names.begin(), names.end(), name); };
    const auto indexes = ending_in(names, kIndexEnding);
    const auto shards = ending_in(names, checkpoint::kFileEnding);
    const auto choose = [&](LocationKind kind, std::string_view name) {
      kind_ = kind;
      relative_ = join(directory, name);
      if (kind == LocationKind::kFile) warn_of_strays(directory, shards, {std::string(name)});
      return Result<void>();
    };
    if (has(kIndexName)) return choose(LocationKind::kIndex, kIndexName);
    if (indexes.size() == 1) return choose(LocationKind::kIndex, indexes.front());
    if (has(kSingleName) && indexes.empty()) return choose(LocationKind::kFile, kSingleName);
    if (shards.size() == 1 && indexes.empty()) return choose(LocationKind::kFile, shards.front());
    const auto& candidates = indexes.empty() ? shards : indexes;
    if (candidates.empty()) {
      if (auto foreign = checkpoint::recognise_directory(names, anchor().display(directory)))
        return fail(*std::move(foreign));
      return fail(
          Error(Code::kNotACheckpoint, "the directory has no safetensors checkpoint")
              .in_file(anchor().display(directory))
              .wanted(fmt::format("{}, or one file ending in {}", kIndexName, checkpoint::kFileEnding))
              .got(fmt::format("{} other {}", names.size(), names.size() == 1 ? "entry" : "entries"))
              .try_this("Pass the directory of the checkpoint, or fetch it: hf download ORG/NAME --local-dir DIR."));
    }
    if (indexes.empty()) {
      if (auto shards_of_dcp = checkpoint::recognise_shards_of_dcp(names, anchor().display(directory)))
        return fail(*std::move(shards_of_dcp));
    }
    return fail(Error(Code::kAmbiguousCheckpoint, "the directory has several safetensors files and no index")
                    .in_file(anchor().display(directory))
                    .wanted(std::string(kIndexName))
                    .got(shorten(fmt::format("{}", fmt::join(candidates, ", "))))
                    .try_this("Pass one of the files, or restore the index."));
  }

  Result<void, Errors> read_single() {
    LADING_ASSIGN_OR_RETURN(ShardHeader shard, read_shard(relative_, name_of(relative_)));
    auto result = checkpoint::catalog_of_file(std::move(shard));
    accept(std::move(result));
    return {};
  }

  Result<void, Errors> read_sharded() {
    LADING_ASSIGN_OR_RETURN(const io::File file, anchor().open_file(relative_));
    if (file.size_bytes() > checkpoint::kMaxIndexBytes) {
      return fail(Error(Code::kIndexInvalid, "the index is too large")
                      .in_file(file.path())
                      .at({0, file.size_bytes()})
                      .wanted(fmt::format("at most {} bytes", checkpoint::kMaxIndexBytes))
                      .got(fmt::format("{} bytes", file.size_bytes())));
    }
    auto parsed = read_and_parse(file, {0, file.size_bytes()},
                                 [&](const JsonBuffer& json) { return checkpoint::parse_index(json, file.path()); });
    if (!parsed) return fail(recognised(file, std::move(parsed).error()));
    checkpoint::Index index = *std::move(parsed);
    LADING_ASSIGN_OR_RETURN(std::string resolved, anchor().resolve(relative_));
    source_.index_ = SourceFile{relative_, std::move(resolved), file.identity(), {}};

    const std::string directory = parent_of(relative_);
    std::vector<std::optional<ShardHeader>> shards;
    Errors errors;
    const std::vector<ShardUse> uses = uses_of(index);
    for (std::size_t i = 0; i < index.shards.size(); ++i) {
      const std::string& name = index.shards[i];
      auto shard = read_shard(join(directory, name), name);
      if (shard) {
        shards.emplace_back(*std::move(shard));
      } else {
        shards.emplace_back();
        errors.add(explain(std::move(shard).error(), name, uses[i], file.path()));
      }
    }
    const auto names = anchor().list(directory);
    if (names) {
      warn_of_strays(directory, ending_in(*names, checkpoint::kFileEnding), index.shards);
    } else {
      errors.add(names.error());
    }
    auto result = checkpoint::catalog_of_index(std::move(index), std::move(shards), file.path());
    if (!result) {
      errors.add(std::move(result).error());
      return fail(std::move(errors));
    }
    if (!errors.empty()) return fail(std::move(errors));
    accept(*std::move(result));
    return {};
  }

  // What an index wants of a shard.
  struct ShardUse {
    const checkpoint::IndexEntry* first = nullptr;
    std::uint64_t tensors = 0;
  };

  static std::vector<ShardUse> uses_of(const checkpoint::Index& index) {
    std::vector<ShardUse> uses(index.shards.size());
    for (const checkpoint::IndexEntry& entry : index.entries) {
      ShardUse& use = uses[entry.shard];
      if (use.tensors++ == 0) use.first = &entry;
    }
    return uses;
  }

  // A shard that is not there is the index's error too: say which tensors are lost with it.
  static Errors explain(Errors errors, const std::string& name, const ShardUse& use, const std::string& index_file) {
    if (errors.front().code != Code::kNotFound) return errors;
    return Error(Code::kIndexMissingShard, fmt::format("the shard {} is missing, which the index lists", quote(name)))
        .in_file(index_file)
        .of_tensor(use.first->tensor)
        .at({use.first->offset, use.first->offset + 1})
        .by_rule("S5")
        .wanted(fmt::format("the file {}", quote(errors.front().file)))
        .got(fmt::format("no file ({}); the index lists {} tensor(s) in it", errors.front().message, use.tensors))
        .try_this("Fetch the missing shard.");
  }

  Result<ShardHeader, Errors> read_shard(const std::string& relative, std::string name) {
    LADING_ASSIGN_OR_RETURN(const io::File file, anchor().open_file(relative));
    LADING_ASSIGN_OR_RETURN(std::string resolved, anchor().resolve(relative));
    SeenHeader seen{file.changed_at(), io::is_settled(file), {}, 0};
    const HeaderContext context{file.path(), file.size_bytes(), options_.trailing_bytes, entries_left_};
    std::array<char, checkpoint::kFirstBytes> first{};
    const std::size_t available = std::min<std::uint64_t>(first.size(), file.size_bytes());
    LADING_TRY(file.read_exact(0, std::span(first).first(available)));
    const auto found = checkpoint::find_header({first.data(), available}, context);
    if (!found) return fail(recognised(file, Errors(found.error())));
    seen.text = found->text;
    auto parsed = read_and_parse(file, seen.text, [&](const JsonBuffer& text) {
      seen.hash = hash_of({first.data(), seen.text.begin}, text.text());
      return found->parse(text, context);
    });
    if (!parsed) return fail(recognised(file, std::move(parsed).error()));
    checkpoint::Header header = *std::move(parsed);
    entries_left_ -= header.tensors.size() + header.metadata.size();
    source_.shards_.push_back({relative, std::move(resolved), file.identity(), seen});
    return ShardHeader{std::move(name), file.size_bytes(), std::move(header)};
  }

  // Why a file was refused: if it is of another format, that is the reason, and the only one that helps.
  static Errors recognised(const io::File& file, Errors errors) {
    std::array<char, checkpoint::kMagicBytes> bytes{};
    const std::size_t available = std::min<std::uint64_t>(bytes.size(), file.size_bytes());
    if (!file.read_exact(0, std::span(bytes).first(available))) return errors;
    auto foreign = checkpoint::recognise_file({bytes.data(), available}, file.path());
    return foreign ? Errors(*std::move(foreign)) : std::move(errors);
  }

  // `used` is sorted.
  void warn_of_strays(const std::string& directory, const std::vector<std::string>& present,
                      const std::vector<std::string>& used) {
    for (const std::string& name : present) {
      if (std::binary_search(used.begin(), used.end(), name)) continue;
      source_.warnings_.add(
          Error(Code::kStrayShard, "the safetensors file is not part of the checkpoint, and is ignored")
              .in_file(anchor().display(join(directory, name)))
              .try_this("Remove the file, or add it to the index if it belongs to the checkpoint."));
    }
  }

  void accept(checkpoint::CatalogResult result) {
    source_.catalog_ = std::move(result.catalog);
    source_.warnings_.add(std::move(result.warnings));
  }

  static std::string name_of(const std::string& relative) { return relative.substr(relative.rfind('/') + 1); }
  [[nodiscard]] const io::Anchor& anchor() const { return *source_.anchor_; }

  const OpenOptions& options_;
  LocationKind kind_;
  std::string relative_;
  std::uint64_t entries_left_ = checkpoint::kMaxEntries;
  CheckpointSource source_;
};

Result<CheckpointSource, Errors> CheckpointSource::open(const std::string& path, const OpenOptions& options) {
  LADING_ASSIGN_OR_RETURN(Location location, locate(path, options.locate));
  return SourceReader(std::move(location), options).read();
}

std::string CheckpointSource::main_path() const {
  if (index_) return anchor_->display(index_->relative);
  return shards_.empty() ? "" : anchor_->display(shards_.front().relative);
}

void CheckpointSource::append(CheckpointSource adapter) {
  LADING_CHECK(adapter.anchor_.has_value() && adapter.adapter_anchors_.empty());
  adapter_paths_.push_back(adapter.main_path());
  adapter_anchors_.push_back(*std::move(adapter.anchor_));
  const auto number = static_cast<std::uint32_t>(adapter_anchors_.size());
  for (SourceFile& shard : adapter.shards_) {
    shard.checkpoint = number;
    shards_.push_back(std::move(shard));
  }
  catalog_.append(std::move(adapter.catalog_));
  warnings_.add(std::move(adapter.warnings_));
}

Result<io::File> CheckpointSource::open_file(const SourceFile& file) const {
  const io::Anchor& anchor = file.checkpoint == 0 ? *anchor_ : adapter_anchors_[file.checkpoint - 1];
  LADING_ASSIGN_OR_RETURN(io::File opened, anchor.open_file(file.relative));
  if (opened.identity() != file.identity) {
    return fail(Error(Code::kFileChanged, "the file was replaced or rewritten after lading read its header")
                    .in_file(opened.path())
                    .by_rule("R45")
                    .try_this("Load again when no other program writes to the checkpoint."));
  }
  if (!file.header) return opened;
  const SeenHeader& seen = *file.header;
  if (seen.is_settled && opened.changed_at() == seen.changed_at) return opened;
  // Size and mtime do not show whether the header is still the one that was read.
  if (!io::is_settled(opened)) opened.doubt();
  std::string bytes(seen.text.end, '\0');
  LADING_TRY(opened.read_exact(0, bytes));
  const std::string_view header = bytes;
  if (hash_of(header.substr(0, seen.text.begin), header.substr(seen.text.begin)) != seen.hash) {
    return fail(Error(Code::kFileChanged, "the header was rewritten after lading read it")
                    .in_file(opened.path())
                    .at({0, seen.text.end})
                    .by_rule("R45")
                    .try_this("Load again when no other program writes to the checkpoint."));
  }
  return opened;
}

}  // namespace lading::source
