#include "api/convert/check_place.h"

#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

namespace lading {
namespace {

namespace fs = std::filesystem;

// The directory and all above it, without links. Nothing of one that is not there.
std::vector<fs::path> with_parents(const fs::path& directory) {
  std::error_code error;
  fs::path at = fs::canonical(directory, error);
  std::vector<fs::path> all;
  if (error) return all;
  for (; at != at.parent_path(); at = at.parent_path()) all.push_back(at);
  all.push_back(at);
  return all;
}

bool is_one_of(const fs::path& directory, const std::vector<fs::path>& others) {
  for (const fs::path& other : others) {
    std::error_code ignored;  // of one that is not there, which is no other's
    if (fs::equivalent(directory, other, ignored)) return true;
  }
  return false;
}

Error refused(const std::string& place, std::string message, const fs::path& input) {
  return Error(Code::kUsage, std::move(message))
      .in_file(place)
      .got(input.string())
      .try_this("Pass a path outside the checkpoint that is converted.");
}

// Of the index or the only file, and of all that links lead to.
std::set<fs::path> folders_of(const source::CheckpointSource& checkpoint) {
  const fs::path anchor = checkpoint.anchor().path();
  std::set<fs::path> folders;
  const auto add = [&](const source::SourceFile& file) {
    folders.insert((anchor / file.relative).parent_path());
    folders.insert((anchor / file.resolved).parent_path());
  };
  for (const source::SourceFile& shard : checkpoint.shards()) add(shard);
  if (checkpoint.index()) add(*checkpoint.index());
  return folders;
}

}  // namespace

Result<void> check_place(const source::CheckpointSource& checkpoint, const std::string& place) {
  fs::path whole(place);
  if (!whole.has_filename()) whole = whole.parent_path();  // a slash at the end
  const std::vector<fs::path> above = with_parents(whole.has_parent_path() ? whole.parent_path() : fs::path("."));
  std::set<fs::path> folders = folders_of(checkpoint);
  for (const fs::path& folder : folders) {
    if (is_one_of(whole, with_parents(folder))) {
      return fail(refused(place, "the checkpoint that is converted is in the directory that would be made", folder));
    }
  }
  if (checkpoint.in_hub_cache()) folders.insert(checkpoint.anchor().path());
  for (const fs::path& folder : folders) {
    if (is_one_of(folder, above)) {
      return fail(refused(place, "the new directory would be in the checkpoint that is converted", folder));
    }
  }
  return {};
}

}  // namespace lading
