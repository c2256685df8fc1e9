// From what a user types to a place on disk: a file, an index, a directory, a Hugging Face cache
// folder, or an "org/name" that is looked up there. Offline; nothing is fetched.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "io/anchor.h"
#include "lading/result.h"

namespace lading::source {

/// Reads an environment variable. Handed in, so that tests and embedders decide.
using Environment = std::function<std::optional<std::string>(const std::string&)>;
[[nodiscard]] Environment process_environment();

struct LocateOptions {
  std::optional<std::string> root;      ///< widens the anchor: links may lead anywhere beneath it
  std::optional<std::string> revision;  ///< of a cached repository; "main" if not given
  Environment environment = process_environment();
};

enum class LocationKind { kFile, kIndex, kDirectory };

struct Location {
  io::Anchor anchor;
  LocationKind kind;
  std::string relative;  ///< from the anchor: the file, the index or the directory
  bool in_hub_cache = false;
};

/// A name in a directory, both from an anchor; "" is the anchor's own.
[[nodiscard]] std::string join(const std::string& directory, std::string_view name);

Result<Location> locate(const std::string& path, const LocateOptions& options);

}  // namespace lading::source
