# The rooms and their one-way doors. This file is the only list: CMake builds from it, and
# tools/check_rooms reads it and fails when an include goes where no door is.
#
#   lading_room(NAME USES other rooms… THIRD_PARTY imported targets…)

# The standard library, fmt and GoogleTest are half of what a file of ours takes to compile. One target's precompiled header serves
# all, which are compiled alike. Not for the build that shows whether each file includes what it uses.
option(LADING_PRECOMPILE "Precompile the headers that everything includes" OFF)
function(lading_precompile target first)
  if(NOT LADING_PRECOMPILE)
    return()
  endif()
  if(target STREQUAL first)
    target_precompile_headers(${target} PRIVATE <algorithm> <functional> <map> <memory> <optional> <span> <string> <vector> ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${first})
  endif()
endfunction()

function(lading_room room)
  cmake_parse_arguments(ROOM "" "" "USES;THIRD_PARTY" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${room}/*.cc ${PROJECT_SOURCE_DIR}/src/${room}/*/*.cc)
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  list(FILTER sources EXCLUDE REGEX "/ranks/mpi/")  # a library of its own: cmake/mpi.cmake
  list(FILTER sources EXCLUDE REGEX "${LADING_URING_TWIN_LEFT_OUT}")
  list(FILTER sources EXCLUDE REGEX "${LADING_KERNELS_TWIN_LEFT_OUT}")
  add_library(lading_${room} STATIC ${sources})
  set_target_properties(lading_${room} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  set_property(GLOBAL APPEND PROPERTY LADING_ROOMS ${room})
  target_link_libraries(lading_${room} PRIVATE lading_options ${ROOM_THIRD_PARTY})
  foreach(used IN LISTS ROOM_USES)
    target_link_libraries(lading_${room} PUBLIC lading_${used})
  endforeach()
  target_include_directories(lading_${room} PUBLIC
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
  lading_precompile(lading_${room} lading_base <fmt/format.h>)
  if(LADING_DEVELOPER)
    lading_room_tests(${room})
  endif()
endfunction()

lading_room(base THIRD_PARTY fmt::fmt simdjson::simdjson)
lading_room(checkpoint USES base THIRD_PARTY fmt::fmt)
lading_room(io USES base THIRD_PARTY fmt::fmt uring::uring)
lading_room(source USES base checkpoint io THIRD_PARTY fmt::fmt OpenSSL::Crypto xxhash::xxhash)
lading_room(model USES base THIRD_PARTY fmt::fmt)
lading_room(layout USES base THIRD_PARTY fmt::fmt)
lading_room(mapping USES base THIRD_PARTY fmt::fmt re2::re2)
lading_room(policy USES base model THIRD_PARTY fmt::fmt)
lading_room(plan USES base checkpoint model layout mapping policy THIRD_PARTY fmt::fmt xxhash::xxhash)
lading_room(ranks USES base THIRD_PARTY fmt::fmt xxhash::xxhash Threads::Threads)
lading_room(device USES base THIRD_PARTY fmt::fmt hwy::hwy)
lading_room(ledger USES base model layout mapping plan device THIRD_PARTY fmt::fmt)
lading_room(exec USES base checkpoint model layout mapping plan io device ledger THIRD_PARTY fmt::fmt Threads::Threads)
lading_room(api USES base checkpoint io source model layout mapping policy plan device ledger exec ranks THIRD_PARTY fmt::fmt)
lading_room(cli USES base api THIRD_PARTY fmt::fmt CLI11::CLI11)

# Random values are the same bits everywhere (docs/random.md): what is not written as fma is not fused.
set_source_files_properties(src/device/random.cc src/device/random_recipe.cc src/device/random_tail.cc
  src/device/cuda/sample_body_test.cc PROPERTIES COMPILE_OPTIONS -ffp-contract=off)

# Where an installation has liblading_mpi.so.
include(GNUInstallDirs)
set_source_files_properties(src/ranks/mpi_places.cc PROPERTIES COMPILE_DEFINITIONS "LADING_LIBDIR=\"${CMAKE_INSTALL_LIBDIR}\"")

if(LADING_KERNEL_IMAGES_SOURCE)
  target_sources(lading_device PRIVATE ${LADING_KERNEL_IMAGES_SOURCE})
  add_dependencies(lading_device lading_kernels)
endif()
