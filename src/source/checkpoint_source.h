// A checkpoint on disk: located, every header read, index and shards compared, and nothing trusted.
//
// Files are not kept open: a checkpoint may have more shards than a process may have descriptors.
// open_file() opens one again and refuses it if it is no longer the file whose header was read. If a write may have
// been under way then, the file is marked (io::File::doubt), and its reader compares what it has read once more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/catalog.h"
#include "io/anchor.h"
#include "lading/byte_range.h"
#include "lading/result.h"
#include "source/locate.h"

namespace lading::source {

struct OpenOptions {
  LocateOptions locate;
  checkpoint::TrailingBytes trailing_bytes = checkpoint::TrailingBytes::kRefuse;
};

/// What open_file() needs to notice writes that leave size and mtime as they are.
struct SeenHeader {
  io::FileTime changed_at;  ///< the ctime when it was read
  bool is_settled = false;  ///< io::is_settled() before it was read
  ByteRange text;           ///< of the header; in front of it is what says how long it is
  std::uint64_t hash = 0;   ///< of everything up to its end
};

/// A file of the checkpoint, index included.
struct SourceFile {
  std::string relative;  ///< from the anchor
  std::string resolved;  ///< the same with links followed: in a Hugging Face cache, the blob
  io::FileIdentity identity;
  std::optional<SeenHeader> header;  ///< of a shard
  std::uint32_t checkpoint = 0;      ///< 0: the base checkpoint; n: the n-th adapter
};

class CheckpointSource {
 public:
  static Result<CheckpointSource, Errors> open(const std::string& path, const OpenOptions& options);
  /// Of a load that reads no checkpoint: no file, no tensor.
  static CheckpointSource none() { return CheckpointSource(std::nullopt); }

  [[nodiscard]] const checkpoint::Catalog& catalog() const { return catalog_; }
  /// Adds the files of an adapter behind all others: an own checkpoint, opened beneath its own anchor.
  void append(CheckpointSource adapter);
  /// Of the adapters, in order: the path of each one's index or only file, for people.
  [[nodiscard]] const std::vector<std::string>& adapter_paths() const { return adapter_paths_; }

  /// For those who have no more use for the rest: a catalog of a million tensors is large enough once.
  [[nodiscard]] checkpoint::Catalog take_catalog() && { return std::move(catalog_); }
  /// In the order of catalog().files.
  [[nodiscard]] const std::vector<SourceFile>& shards() const { return shards_; }
  [[nodiscard]] const std::optional<SourceFile>& index() const { return index_; }
  /// Not of none().
  [[nodiscard]] const io::Anchor& anchor() const { return *anchor_; }
  /// Of the index or the only file, for people. Empty: none().
  [[nodiscard]] std::string main_path() const;
  [[nodiscard]] bool in_hub_cache() const { return in_hub_cache_; }
  [[nodiscard]] const Errors& warnings() const { return warnings_; }

  [[nodiscard]] Result<io::File> open_file(const SourceFile& file) const;

 private:
  friend class SourceReader;
  explicit CheckpointSource(std::optional<io::Anchor> anchor) : anchor_(std::move(anchor)) {}

  std::optional<io::Anchor> anchor_;
  checkpoint::Catalog catalog_;
  std::vector<SourceFile> shards_;
  std::optional<SourceFile> index_;
  std::vector<io::Anchor> adapter_anchors_;
  std::vector<std::string> adapter_paths_;
  bool in_hub_cache_ = false;
  Errors warnings_;
};

}  // namespace lading::source
