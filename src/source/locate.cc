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

// Nothing if there is no HOME: the current directory must not become the cache by accident.
std::optional<fs::path> expand_home(const std::string& path, const Environment& environment) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const auto home = environment("HOME");
  if (!home) return std::nullopt;
  return fs::path(*home) / path.substr(std::min<std::size_t>(2, path.size()));
}

// The same places, in the same order, as huggingface_hub looks at, with a leading "~" expanded as it does.
std::optional<fs::path> hub_cache(const Environment& environment) {
  const std::pair<const char*, const char*> places[] = {
      {"HF_HUB_CACHE", ""}, {"HUGGINGFACE_HUB_CACHE", ""}, {"HF_HOME", "hub"}, {"XDG_CACHE_HOME", "huggingface/hub"}};
  for (const auto& [variable, below] : places) {
    const auto value = environment(variable);
    if (!value) continue;
    const auto folder = expand_home(*value, environment);
    return folder ? std::optional(*folder / below) : std::nullopt;
  }
  const auto home = expand_home("~", environment);
  return home ? std::optional(*home / ".cache/huggingface/hub") : std::nullopt;
}

bool is_hex(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_repo_name(const fs::path& path) { return path.filename().string().starts_with(kRepoPrefix); }

// As it was typed, absolute, links left as they are: a cache that was moved is often linked from its old place.
fs::path typed_path(const fs::path& path) {
  std::error_code ignored;
  const fs::path typed = fs::absolute(path, ignored).lexically_normal();
  return typed.has_filename() ? typed : typed.parent_path();
}

// The root of the cached repository that an absolute path lies in: ".../models--org--name".
std::optional<fs::path> repo_root_of(const fs::path& absolute) {
  std::vector<fs::path> parts(absolute.begin(), absolute.end());
  fs::path root;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    root /= parts[i];
    const bool snapshot = i + 2 < parts.size() && parts[i + 1] == "snapshots";
    if (snapshot && parts[i].string().starts_with(kRepoPrefix)) return root;
  }
  return std::nullopt;
}

// An anchor and a directory beneath it.
struct Place {
  io::Anchor anchor;
  std::string directory;
};

// The anchor for names in `directory`: the root if one is given, else the cached repository, else itself.
Result<Place> anchor_for(const fs::path& directory, const LocateOptions& options) {
  std::error_code error;
  const fs::path canonical = fs::canonical(directory, error);
  if (error) return fail(Error(Code::kNotFound, error.message()).in_file(directory.string()));
  auto repo = repo_root_of(canonical);
  if (!repo) repo = repo_root_of(typed_path(directory));
  const std::string base = options.root ? *options.root : repo ? repo->string() : canonical.string();
  LADING_ASSIGN_OR_RETURN(io::Anchor anchor, io::Anchor::open(base));
  const fs::path relative = canonical.lexically_relative(anchor.path());
  if (relative.empty() || *relative.begin() == "..") {
    return fail(Error(Code::kOutsideRoot, "the checkpoint is not beneath the root")
                    .in_file(canonical.string())
                    .by_rule("S4")
                    .wanted(fmt::format("a path beneath {}", quote(anchor.path())))
                    .try_this("Pass a --root that contains the checkpoint."));
  }
  return Place{std::move(anchor), relative == "." ? std::string() : relative.string()};
}

// The command that puts a repository, named as its folder in the cache is, into the cache.
std::string download_command(std::string_view folder, const std::optional<std::string>& revision) {
  std::string id(folder.starts_with(kRepoPrefix) ? folder.substr(kRepoPrefix.size()) : "ORG/NAME");
  if (const auto dashes = id.find("--"); dashes != std::string::npos) id.replace(dashes, 2, "/");
  // A revision that a shell would take apart is left to the user.
  const bool is_plain = revision && std::all_of(revision->begin(), revision->end(),
                                                [](char c) { return is_name_character(c) || c == '/'; });
  return fmt::format("hf download {}{}", id, is_plain ? fmt::format(" --revision {}", *revision) : "");
}

std::string folder_name(const Place& repo) {
  return fs::path(repo.anchor.display(repo.directory)).lexically_normal().filename().string();
}

Error no_such_revision(const Place& repo, const std::string& revision) {
  std::string have = "nothing";
  if (const auto refs = repo.anchor.list(join(repo.directory, "refs")))
    have = fmt::format("{}", fmt::join(*refs, ", "));
  return Error(Code::kNotFound, fmt::format("the cached repository has no revision {}", quote(revision)))
      .in_file(repo.anchor.display(repo.directory))
      .wanted("a name under refs or a folder under snapshots")
      .got(shorten(have))
      .try_this(fmt::format("Run `{}` first, or pass another revision: lading does not download.",
                            download_command(folder_name(repo), revision)));
}

// "..", "" and the like would name other folders of the cache.
bool is_revision_name(const std::string& revision) {
  const fs::path path(revision);
  return !revision.empty() && revision.find('\0') == std::string::npos && path.is_relative() &&
         std::none_of(path.begin(), path.end(),
                      [](const fs::path& part) { return part.empty() || part == "." || part == ".."; });
}

// A branch, tag or commit to the commit's folder.
Result<std::string> snapshot_of(const Place& repo, const std::string& revision) {
  if (!is_revision_name(revision)) return fail(no_such_revision(repo, revision));
  const std::string snapshots = join(repo.directory, "snapshots");
  if (revision.find('/') == std::string::npos) {
    const auto by_commit = repo.anchor.list(join(snapshots, revision));
    if (by_commit) return join(snapshots, revision);
    if (by_commit.error().code != Code::kNotFound) return fail(by_commit.error());
  }
  const auto ref = repo.anchor.open_file(join(repo.directory, "refs/" + revision));
  if (!ref) return fail(ref.error().code == Code::kNotFound ? no_such_revision(repo, revision) : ref.error());
  // A ref is one line of hex digits; anything longer is none.
  std::string commit(std::min<std::uint64_t>(ref->size_bytes(), 128), '\0');
  LADING_TRY(ref->read_exact(0, commit));
  commit.erase(commit.find_last_not_of("\n\r ") + 1);
  if (ref->size_bytes() > 128) commit.clear();
  const auto snapshot = is_hex(commit) ? repo.anchor.list(join(snapshots, commit)) : repo.anchor.list("");
  if (is_hex(commit) && snapshot) return join(snapshots, commit);
  if (!snapshot && snapshot.error().code != Code::kNotFound) return fail(snapshot.error());
  return fail(Error(Code::kCacheInvalid, "the ref does not lead to a snapshot")
                  .in_file(ref->path())
                  .wanted("the hash of a commit under snapshots")
                  .got(quote(commit))
                  .try_this(fmt::format("Download the repository again with `{}`.",
                                        download_command(folder_name(repo), revision))));
}

Result<Location> locate_repo(const fs::path& repo_directory, LocateOptions options) {
  // Inside the repository the anchor is the repository itself, unless the user widened it.
  if (!options.root) options.root = repo_directory.string();
  LADING_ASSIGN_OR_RETURN(Place repo, anchor_for(repo_directory, options));
  LADING_ASSIGN_OR_RETURN(std::string snapshot, snapshot_of(repo, options.revision.value_or("main")));
  return Location{std::move(repo.anchor), LocationKind::kDirectory, std::move(snapshot), true};
}

Error no_revisions(const std::string& path) {
  return Error(Code::kUsage, "a revision was given, but the path is not a cached repository")
      .in_file(path)
      .wanted("org/name, or a folder models--org--name")
      .try_this("Omit --revision.");
}

Result<Location> locate_in_cache(const std::string& id, const LocateOptions& options) {
  const auto cache = hub_cache(options.environment);
  if (!cache) {
    return fail(Error(Code::kNotFound, "no such path, and without HOME the place of the Hugging Face cache is unknown")
                    .in_file(id)
                    .try_this("Correct the path, or set HF_HOME or HF_HUB_CACHE."));
  }
  std::string folder = std::string(kRepoPrefix) + id;
  if (const auto slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  std::error_code ignored;
  if (!fs::is_directory(*cache / folder, ignored)) {
    return fail(Error(Code::kNotFound, fmt::format("no such path, and {} is not in the Hugging Face cache", quote(id)))
                    .in_file(id)
                    .wanted(fmt::format("a path, or the folder {}", quote((*cache / folder).string())))
                    .try_this(fmt::format("Run `{}` first, or set HF_HOME or HF_HUB_CACHE: lading does not download.",
                                          download_command(folder, options.revision))));
  }
  return locate_repo(*cache / folder, options);
}

}  // namespace

std::string join(const std::string& directory, std::string_view name) {
  return directory.empty() ? std::string(name) : fmt::format("{}/{}", directory, name);
}

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  };
}

Result<Location> locate(const std::string& path, const LocateOptions& options) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return fail(Error(Code::kUsage, "the path is empty or contains a NUL").in_file(path).try_this("Correct the path."));
  }
  std::error_code error;
  const fs::file_status link_status = fs::symlink_status(path, error);
  if (error == std::errc::too_many_symbolic_link_levels) {
    return fail(Error(Code::kSymlinkLoop, "too many symbolic links").in_file(path));
  }
  const bool absent = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory ||
                      link_status.type() == fs::file_type::not_found;
  if (error && !absent) return fail(Error(Code::kOpenFailed, error.message()).in_file(path));
  if (absent) {
    if (looks_like_repo_id(path)) return locate_in_cache(path, options);
    return fail(Error(Code::kNotFound, "no such file or directory").in_file(path));
  }
  if (fs::is_directory(path, error)) {
    const fs::path canonical = fs::canonical(path, error);
    const bool is_repo = is_repo_name(canonical) || is_repo_name(typed_path(path));
    if (is_repo && fs::is_directory(canonical / "snapshots", error)) return locate_repo(canonical, options);
    if (options.revision) return fail(no_revisions(path));
    LADING_ASSIGN_OR_RETURN(Place place, anchor_for(path, options));
    const bool cached = repo_root_of(canonical).has_value() || repo_root_of(typed_path(path)).has_value();
    return Location{std::move(place.anchor), LocationKind::kDirectory, std::move(place.directory), cached};
  }
  if (options.revision) return fail(no_revisions(path));
  // A file: its directory is the user's word, the file itself is opened beneath the anchor.
  const fs::path as_path(path);
  const fs::path parent = as_path.has_parent_path() ? as_path.parent_path() : fs::path(".");
  LADING_ASSIGN_OR_RETURN(Place place, anchor_for(parent, options));
  const std::string name = as_path.filename().string();
  const auto kind = name.ends_with(".json") ? LocationKind::kIndex : LocationKind::kFile;
  const bool cached = repo_root_of(place.anchor.display(join(place.directory, name))).has_value() ||
                      repo_root_of(typed_path(path)).has_value();
  return Location{std::move(place.anchor), kind, join(place.directory, name), cached};
}

}  // namespace lading::source
