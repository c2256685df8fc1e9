#include "source/locate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/text.h"

namespace lading::source {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRepoPrefix = "models--";

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

// "name" or "org/name", as the Hugging Face hub allows them.
bool looks_like_repo_id(std::string_view text) {
  const auto slashes = std::count(text.begin(), text.end(), '/');
  if (text.empty() || slashes > 1 || text.front() == '/' || text.back() == '/') return false;
  if (text.front() == '.' || text.find("/.") != std::string_view::npos || text.find("--") != std::string_view::npos)
    return false;
  return std::all_of(text.begin(), text.end(), [](char c) { return is_name_character(c) || c == '/'; });
}

// The same places, in the same order, as huggingface_hub looks at.
fs::path hub_cache(const Environment& environment) {
  if (const auto cache = environment("HF_HUB_CACHE")) return *cache;
  if (const auto cache = environment("HUGGINGFACE_HUB_CACHE")) return *cache;
  if (const auto home = environment("HF_HOME")) return fs::path(*home) / "hub";
  if (const auto xdg = environment("XDG_CACHE_HOME")) return fs::path(*xdg) / "huggingface" / "hub";
  return fs::path(environment("HOME").value_or("")) / ".cache" / "huggingface" / "hub";
}

bool is_hex(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// The root of the cached repository that a canonical path lies in: ".../models--org--name".
std::optional<fs::path> repo_root_of(const fs::path& canonical) {
  std::vector<fs::path> parts(canonical.begin(), canonical.end());
  fs::path root;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    root /= parts[i];
    const bool snapshot = i + 2 < parts.size() && parts[i + 1] == "snapshots";
    if (snapshot && parts[i].string().starts_with(kRepoPrefix)) return root;
  }
  return std::nullopt;
}

// A branch, tag or commit to the commit's folder.
Result<std::string> snapshot_of(const io::Anchor& repo, const std::string& revision) {
  if (repo.list("snapshots/" + revision)) return "snapshots/" + revision;
  auto ref = repo.open_file("refs/" + revision);
  if (!ref) {
    std::string have = "nothing";
    if (const auto refs = repo.list("refs")) have = fmt::format("{}", fmt::join(*refs, ", "));
    return fail(Error(Code::kNotFound, fmt::format("the cached repository has no revision {}", quote(revision)))
                    .in_file(repo.path())
                    .wanted("a name under refs or a folder under snapshots")
                    .got(escape(have))
                    .try_this("Fetch it first, or name another with --revision"));
  }
  std::string commit(std::min<std::uint64_t>(ref->size_bytes(), 128), '\0');
  LADING_TRY(ref->read_exact(0, commit));
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == '\r' || commit.back() == ' ')) commit.pop_back();
  if (!is_hex(commit) || !repo.list("snapshots/" + commit)) {
    return fail(Error(Code::kCacheInvalid, "the ref does not name a snapshot")
                    .in_file(ref->path())
                    .wanted("the hash of a commit under snapshots")
                    .got(quote(commit))
                    .try_this("Fetch the repository again"));
  }
  return "snapshots/" + commit;
}

Result<Location> locate_repo(const fs::path& repo_directory, const LocateOptions& options) {
  LADING_ASSIGN_OR_RETURN(io::Anchor anchor, io::Anchor::open(repo_directory.string()));
  LADING_ASSIGN_OR_RETURN(std::string snapshot, snapshot_of(anchor, options.revision.value_or("main")));
  return Location{std::move(anchor), LocationKind::kDirectory, std::move(snapshot), true};
}

Result<Location> locate_in_cache(const std::string& id, const LocateOptions& options) {
  const fs::path cache = hub_cache(options.environment);
  std::string folder = std::string(kRepoPrefix) + id;
  if (const auto slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  std::error_code ignored;
  if (!fs::is_directory(cache / folder, ignored)) {
    return fail(
        Error(Code::kNotFound, fmt::format("no such path, and {} is not in the Hugging Face cache", quote(id)))
            .in_file(id)
            .wanted(fmt::format("a path, or the folder {}", quote((cache / folder).string())))
            .try_this("lading does not download: fetch it first (hf download), or set HF_HOME or HF_HUB_CACHE"));
  }
  return locate_repo(cache / folder, options);
}

// The directory in which names are looked up, as an anchor and a path below it.
Result<std::pair<io::Anchor, std::string>> anchor_for(const fs::path& directory, const LocateOptions& options) {
  std::error_code error;
  const fs::path canonical = fs::canonical(directory, error);
  if (error) return fail(Error(Code::kNotFound, error.message()).in_file(directory.string()));
  const auto repo = repo_root_of(canonical);
  const std::string base = options.root ? *options.root : repo ? repo->string() : canonical.string();
  LADING_ASSIGN_OR_RETURN(io::Anchor anchor, io::Anchor::open(base));
  const fs::path relative = canonical.lexically_relative(anchor.path());
  if (relative.empty() || *relative.begin() == "..") {
    return fail(Error(Code::kOutsideRoot, "the checkpoint is not beneath the root")
                    .in_file(canonical.string())
                    .by_rule("S4")
                    .wanted(fmt::format("a path beneath {}", quote(anchor.path())))
                    .try_this("Give a --root that contains it"));
  }
  return std::pair(std::move(anchor), relative == "." ? std::string() : relative.string());
}

std::string join(const std::string& directory, const std::string& name) {
  return directory.empty() ? name : directory + "/" + name;
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  };
}

Result<Location> locate(const std::string& path, const LocateOptions& options) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return fail(Error(Code::kUsage, "the path is empty or holds a NUL").in_file(path));
  }
  std::error_code error;
  const fs::file_status link_status = fs::symlink_status(path, error);
  if (!fs::exists(link_status)) {
    if (looks_like_repo_id(path)) return locate_in_cache(path, options);
    return fail(Error(Code::kNotFound, "no such file or directory").in_file(path));
  }
  if (fs::is_directory(path, error)) {
    const fs::path canonical = fs::canonical(path, error);
    const bool is_repo =
        canonical.filename().string().starts_with(kRepoPrefix) && fs::is_directory(canonical / "snapshots", error);
    if (is_repo && !options.root) return locate_repo(canonical, options);
    LADING_ASSIGN_OR_RETURN(auto place, anchor_for(path, options));
    const bool cached = repo_root_of(canonical).has_value();
    return Location{std::move(place.first), LocationKind::kDirectory, std::move(place.second), cached};
  }
  // A file: its directory is the user's word, the file itself is opened beneath the anchor.
  const fs::path as_path(path);
  const fs::path parent = as_path.has_parent_path() ? as_path.parent_path() : fs::path(".");
  LADING_ASSIGN_OR_RETURN(auto place, anchor_for(parent, options));
  const std::string name = as_path.filename().string();
  const auto kind = name.ends_with(".json") ? LocationKind::kIndex : LocationKind::kFile;
  const bool cached = repo_root_of(place.first.path() + "/" + place.second + "/x").has_value();
  return Location{std::move(place.first), kind, join(place.second, name), cached};
}

}  // namespace lading::source
