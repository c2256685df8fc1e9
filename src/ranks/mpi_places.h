// Where liblading_mpi.so is looked for. A build tree has it beside the program, an installation in lib, the Python
// package in lading/lib; the program may be called through a link.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lading::ranks {

inline constexpr const char* kMpiPluginName = "liblading_mpi.so";

struct MpiPluginSearch {
  std::string named;              ///< $LADING_MPI_PLUGIN: if it is set, the only place
  std::filesystem::path program;  ///< this process's file, links resolved; empty if unknown
  std::filesystem::path library;  ///< the file that holds lading's code, links resolved: the program, or liblading.so
  std::filesystem::path lib_dir;  ///< that CMake installs libraries to, below the prefix: "lib", "lib/x86_64-linux-gnu"
};

/// For this process.
[[nodiscard]] MpiPluginSearch mpi_plugin_search();

/// In the order in which they are tried, each once. The last is the bare name, for the dynamic linker's own search.
[[nodiscard]] std::vector<std::string> mpi_plugin_places(const MpiPluginSearch& search);

}  // namespace lading::ranks
