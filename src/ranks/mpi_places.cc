#include "ranks/mpi_places.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>

namespace lading::ranks {
namespace {

namespace fs = std::filesystem;

}  // namespace

MpiPluginSearch mpi_plugin_search() {
  MpiPluginSearch search;
  if (const char* named = std::getenv("LADING_MPI_PLUGIN"); named != nullptr) search.named = named;
  std::error_code ignored;
  search.program = fs::read_symlink("/proc/self/exe", ignored);
  Dl_info self{};
  if (::dladdr(reinterpret_cast<const void*>(&mpi_plugin_search), &self) != 0 && self.dli_fname != nullptr) {
    search.library = fs::canonical(self.dli_fname, ignored);
  }
  search.lib_dir = LADING_LIBDIR;
  return search;
}

std::vector<std::string> mpi_plugin_places(const MpiPluginSearch& search) {
  if (!search.named.empty()) return {search.named};
  std::vector<std::string> places;
  for (const fs::path& file : {search.library, search.program}) {
    if (!file.has_parent_path()) continue;
    const fs::path folder = file.parent_path();
    for (const fs::path& place :
         {folder, folder / ".." / "lib", folder / ".." / "lib64", folder / ".." / search.lib_dir}) {
      const std::string path = (place / kMpiPluginName).lexically_normal().string();
      if (std::find(places.begin(), places.end(), path) == places.end()) places.push_back(path);
    }
  }
  places.emplace_back(kMpiPluginName);
  return places;
}

}  // namespace lading::ranks
