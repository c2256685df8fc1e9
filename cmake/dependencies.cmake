# The libraries of the system that lading is made with. All are looked for before any is missed, so that one message names
# every one that is not there, and what installs them.
set(missing_libraries "")
set(missing_packages "")

function(lading_missing library package)
  set(missing_libraries "${missing_libraries}  ${library} (Debian: ${package})\n" PARENT_SCOPE)
  set(missing_packages "${missing_packages} ${package}" PARENT_SCOPE)
endfunction()

# FindOpenSSL of CMake 3.25 calls this without asking whether pkg-config is there.
find_package(PkgConfig QUIET)
if(NOT PkgConfig_FOUND)
  function(pkg_check_modules)
  endfunction()
endif()

foreach(found IN ITEMS "fmt libfmt-dev" "simdjson libsimdjson-dev" "CLI11 libcli11-dev" "OpenSSL libssl-dev"
    "PkgConfig pkg-config")
  string(REPLACE " " ";" found "${found}")
  list(GET found 0 library)
  list(GET found 1 package)
  find_package(${library} QUIET)
  if(NOT ${library}_FOUND)
    lading_missing(${library} ${package})
  endif()
endforeach()

# Without pkg-config these cannot be looked for, and count as missing.
foreach(found IN ITEMS "re2 re2 libre2-dev" "xxhash libxxhash libxxhash-dev" "hwy libhwy libhwy-dev")
  string(REPLACE " " ";" found "${found}")
  list(GET found 0 library)
  list(GET found 1 module)
  list(GET found 2 package)
  if(PkgConfig_FOUND)
    pkg_check_modules(${library} QUIET IMPORTED_TARGET GLOBAL ${module})
  endif()
  if(${library}_FOUND)
    add_library(${library}::${library} ALIAS PkgConfig::${library})
  else()
    lading_missing(${module} ${package})
  endif()
endforeach()

if(LADING_DEVELOPER)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    lading_missing("GoogleTest, for the tests (-DLADING_DEVELOPER=OFF needs none)" "libgtest-dev libgmock-dev")
  endif()
endif()

if(missing_packages)
  message(FATAL_ERROR "lading needs libraries that were not found:\n${missing_libraries}"
    "On Debian and Ubuntu, install them with\n  apt-get install${missing_packages}\n"
    "Elsewhere, install them and name their prefix in CMAKE_PREFIX_PATH and PKG_CONFIG_PATH.")
endif()
find_package(Threads REQUIRED)
