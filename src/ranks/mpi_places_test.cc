#include "ranks/mpi_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lading::ranks {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

TEST(MpiPlaces, ANamedFileIsTheOnlyPlace) {
  EXPECT_THAT(mpi_plugin_places({"/named/x.so", "/p/bin/lading", "/p/bin/lading", "lib"}), ElementsAre("/named/x.so"));
}

TEST(MpiPlaces, AnInstalledProgramLooksInTheLibrariesOfItsPrefix) {
  EXPECT_THAT(mpi_plugin_places({"", "/p/bin/lading", "/p/bin/lading", "lib/x86_64-linux-gnu"}),
              ElementsAre("/p/bin/liblading_mpi.so", "/p/lib/liblading_mpi.so", "/p/lib64/liblading_mpi.so",
                          "/p/lib/x86_64-linux-gnu/liblading_mpi.so", "liblading_mpi.so"));
}

// In the Python package the program is lading/bin/lading; of a process of Python only the library is known.
TEST(MpiPlaces, APackageHasItBesideTheLibrary) {
  EXPECT_THAT(mpi_plugin_places({"", "/site/lading/bin/lading", "/site/lading/bin/lading", "lib"}),
              Contains("/site/lading/lib/liblading_mpi.so"));
  EXPECT_EQ(mpi_plugin_places({"", "/usr/bin/python3", "/site/lading/lib/liblading.so", "lib"}).front(),
            "/site/lading/lib/liblading_mpi.so");
}

TEST(MpiPlaces, WithoutAnyPathTheLinkerIsAsked) { EXPECT_THAT(mpi_plugin_places({}), ElementsAre("liblading_mpi.so")); }

TEST(MpiPlaces, ThisProcessKnowsItsOwnFile) {
  const MpiPluginSearch search = mpi_plugin_search();
  EXPECT_TRUE(std::filesystem::is_regular_file(search.program));
  EXPECT_EQ(search.program, search.library) << "the tests are linked with the room itself";
  EXPECT_FALSE(search.lib_dir.empty());
}

}  // namespace
}  // namespace lading::ranks
