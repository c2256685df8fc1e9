# The rooms and their one-way doors. This file is the only list.
#
#   lading_room(NAME USES rooms… [PUBLIC headers…] [EXCEPT headers…] [PRIVATE headers…] [TESTS_USE rooms…] THIRD_PARTY imported targets…)
#
# The compiler keeps the doors. A room is compiled with one folder of links, build/*/doors/NAME, which has the headers of the
# rooms that it uses and no others: not those that are private to a room, and not those that EXCEPT names, such as the
# arithmetic of the planner, which the checker must not share. An include without a door is a file that is not there.
# Tests of a room also see the rooms of TESTS_USE. PUBLIC: headers of include/lading that are the room's, and that programs
# see too; all others there are api's.

# The standard library, fmt and GoogleTest are half of what a file of ours takes to compile. One target's precompiled header serves
# all targets of its kind. That target defines nothing of its own: g++ rejects a precompiled header that was made with a macro
# that the file does not have. Not for the build that shows whether each file includes what it uses.
option(LADING_PRECOMPILE "Precompile the headers that everything includes" OFF)
function(lading_precompile target first)
  if(NOT LADING_PRECOMPILE)
    return()
  endif()
  if(NOT TARGET ${first})
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/${first}.cc CONTENT "")
    if("<gtest/gtest.h>" IN_LIST ARGN)
      add_executable(${first} ${PROJECT_BINARY_DIR}/generated/${first}.cc)
      target_link_libraries(${first} PRIVATE lading_options GTest::gmock GTest::gtest_main fmt::fmt)
    else()
      add_library(${first} STATIC ${PROJECT_BINARY_DIR}/generated/${first}.cc)
      set_target_properties(${first} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
      target_link_libraries(${first} PRIVATE lading_options fmt::fmt)
    endif()
    target_precompile_headers(${first} PRIVATE <algorithm> <functional> <map> <memory> <optional> <span> <string> <vector> ${ARGN})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${first})
endfunction()

# Sixteen files of a room at once: each header is read once for all of them. Not for the build that shows whether each file
# includes what it uses, nor where single files are changed and built again.
option(LADING_UNITY "Compile the files of a room together" OFF)
if(LADING_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ takes a file that is compiled with others for a header, whose types must not use anonymous namespaces.
  target_compile_options(lading_options INTERFACE -Wno-subobject-linkage)
endif()

# The folder of links for `target`, which is `room` or its tests.
function(lading_doors target room)
  cmake_parse_arguments(DOORS "" "" "USES;EXCEPT" ${ARGN})
  set(folder ${PROJECT_BINARY_DIR}/doors/${target})
  file(REMOVE_RECURSE ${folder})
  file(MAKE_DIRECTORY ${folder})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${room} ${folder}/${room} SYMBOLIC)
  foreach(used IN LISTS DOORS_USES)
    set(source ${PROJECT_SOURCE_DIR}/src/${used})
    file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${source} ${source}/*.h)
    get_property(private GLOBAL PROPERTY LADING_PRIVATE_${used})
    foreach(header IN LISTS headers)
      if("${header}" IN_LIST private OR "${used}/${header}" IN_LIST DOORS_EXCEPT)
        continue()
      endif()
      get_filename_component(below ${folder}/${used}/${header} DIRECTORY)
      file(MAKE_DIRECTORY ${below})
      file(CREATE_LINK ${source}/${header} ${folder}/${used}/${header} SYMBOLIC)
    endforeach()
  endforeach()
  if(room STREQUAL "api" OR "api" IN_LIST DOORS_USES)
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/include/lading ${folder}/lading SYMBOLIC)
  else()
    file(MAKE_DIRECTORY ${folder}/lading)
    foreach(owner IN LISTS room DOORS_USES)
      get_property(public GLOBAL PROPERTY LADING_PUBLIC_${owner})
      foreach(header IN LISTS public)
        if("lading/${header}" IN_LIST DOORS_EXCEPT)
          continue()
        endif()
        get_filename_component(below ${folder}/lading/${header} DIRECTORY)
        file(MAKE_DIRECTORY ${below})
        file(CREATE_LINK ${PROJECT_SOURCE_DIR}/include/lading/${header} ${folder}/lading/${header} SYMBOLIC)
      endforeach()
    endforeach()
  endif()
  target_include_directories(${target} PRIVATE ${folder} ${PROJECT_BINARY_DIR}/generated)
endfunction()

function(lading_room room)
  cmake_parse_arguments(ROOM "" "" "USES;PUBLIC;EXCEPT;PRIVATE;TESTS_USE;THIRD_PARTY" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${room}/*.cc ${PROJECT_SOURCE_DIR}/src/${room}/*/*.cc)
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  list(FILTER sources EXCLUDE REGEX "/ranks/mpi/")  # a library of its own: cmake/mpi.cmake
  list(FILTER sources EXCLUDE REGEX "${LADING_URING_TWIN_LEFT_OUT}")
  list(FILTER sources EXCLUDE REGEX "${LADING_KERNELS_TWIN_LEFT_OUT}")
  add_library(lading_${room} STATIC ${sources})
  set_target_properties(lading_${room} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  set_target_properties(lading_${room} PROPERTIES UNITY_BUILD ${LADING_UNITY} UNITY_BUILD_BATCH_SIZE 16)
  set_property(GLOBAL APPEND PROPERTY LADING_ROOMS ${room})
  set_property(GLOBAL PROPERTY LADING_PRIVATE_${room} ${ROOM_PRIVATE})
  set_property(GLOBAL PROPERTY LADING_PUBLIC_${room} ${ROOM_PUBLIC})
  target_link_libraries(lading_${room} PRIVATE lading_options ${ROOM_THIRD_PARTY})
  lading_doors(lading_${room} ${room} USES ${ROOM_USES} EXCEPT ${ROOM_EXCEPT})
  foreach(used IN LISTS ROOM_USES)
    target_link_libraries(lading_${room} PUBLIC $<LINK_ONLY:lading_${used}>)  # what may be included is said by doors
  endforeach()
  # Fuzzers, benchmarks, probes and the program see what they link, and what that is made of.
  target_include_directories(lading_${room} INTERFACE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
  lading_precompile(lading_${room} lading_precompiled <fmt/format.h>)
  if(LADING_DEVELOPER)
    lading_room_tests(${room} USES ${ROOM_USES} ${ROOM_TESTS_USE})
  endif()
endfunction()

lading_room(base PUBLIC byte_range.h decoding.h detail/inline_vector.h dtype.h error.h export.h name_pattern.h provenance.h result.h shape.h THIRD_PARTY fmt::fmt simdjson::simdjson)
lading_room(manual USES base PUBLIC help.h THIRD_PARTY fmt::fmt)
lading_room(checkpoint USES base THIRD_PARTY fmt::fmt)
lading_room(io USES base PUBLIC read_method.h THIRD_PARTY fmt::fmt uring::uring)
lading_room(source USES base checkpoint io THIRD_PARTY fmt::fmt OpenSSL::Crypto xxhash::xxhash)
lading_room(model USES base PUBLIC skeleton.h PRIVATE skeleton_parts.h THIRD_PARTY fmt::fmt)
lading_room(layout USES base PUBLIC layout.h PRIVATE chunk.h cut_checks.h THIRD_PARTY fmt::fmt)
lading_room(mapping USES base PUBLIC expression.h mapping.h PRIVATE cut_pieces.h name_index.h resolve_state.h rule_check.h THIRD_PARTY fmt::fmt re2::re2)
lading_room(policy USES base model PUBLIC policy.h THIRD_PARTY fmt::fmt)
lading_room(plan USES base model layout mapping PUBLIC exchange.h plan_facts.h TESTS_USE checkpoint policy planner checker THIRD_PARTY fmt::fmt xxhash::xxhash)
lading_room(planner USES base checkpoint model layout mapping policy plan PUBLIC save_options.h PRIVATE adapter_keys.h save/output_keys.h quantized/dequantize.h quantized/kept_cuts.h quantized/quantization_config.h quantized/quantized_checks.h quantized/scale_reads.h source_table.h TESTS_USE checker THIRD_PARTY fmt::fmt)
lading_room(checker USES base model layout mapping plan
  EXCEPT base/loop_nest.h layout/region.h layout/region_table.h layout/presence.h layout/owned_runs.h layout/strategy.h mapping/mapping.h mapping/pieces.h mapping/resolve.h mapping/template.h lading/mapping.h
  PRIVATE cast_rules.h check_decoding.h check_fsdp_units.h check_scales.h meeting_places.h problem.h TESTS_USE planner THIRD_PARTY fmt::fmt)
lading_room(ranks USES base THIRD_PARTY fmt::fmt xxhash::xxhash Threads::Threads)
lading_room(device USES base THIRD_PARTY fmt::fmt hwy::hwy)
lading_room(ledger USES base model layout mapping plan device TESTS_USE checkpoint policy planner checker THIRD_PARTY fmt::fmt)
lading_room(exec USES base checkpoint model layout mapping plan io device ledger TESTS_USE policy planner checker THIRD_PARTY fmt::fmt Threads::Threads)
lading_room(doctor USES base io device exec PUBLIC doctor.h THIRD_PARTY fmt::fmt)
lading_room(api USES base checkpoint io source model layout mapping policy plan planner checker device ledger exec ranks doctor manual THIRD_PARTY fmt::fmt)
lading_room(cli USES base api THIRD_PARTY fmt::fmt CLI11::CLI11)

# The texts of `lading help` are pages of docs.
set(manual_source ${PROJECT_BINARY_DIR}/generated/manual_pages.cc)
set(manual_docs ${PROJECT_SOURCE_DIR}/docs)
add_custom_command(OUTPUT ${manual_source}
  COMMAND ${CMAKE_COMMAND} -DDOCS=${manual_docs} -DOUTPUT=${manual_source} -P ${PROJECT_SOURCE_DIR}/cmake/manual_pages.cmake
  DEPENDS ${PROJECT_SOURCE_DIR}/cmake/manual_pages.cmake ${manual_docs}/contract.md ${manual_docs}/error-codes.md
    ${manual_docs}/exit-codes.md ${manual_docs}/policy-words.md
  COMMENT "Taking pages of docs into the library" VERBATIM)
target_sources(lading_manual PRIVATE ${manual_source})

# Random values and merged weights are the same bits everywhere (docs/how-it-works/random.md): what is not written as fma is not fused.
set_source_files_properties(src/device/random.cc src/device/random_recipe.cc src/device/random_tail.cc
  src/device/low_rank.cc src/device/cuda/sample_body_test.cc PROPERTIES COMPILE_OPTIONS -ffp-contract=off
  SKIP_PRECOMPILE_HEADERS ON)  # g++ takes the option from the precompiled header, for functions of an instruction set

# Highway includes these in themselves, once for each instruction set, which several in one translation unit cannot do.
set_source_files_properties(src/device/cast_float.cc src/device/quantized/code_bytes.cc src/device/digest.cc src/device/low_rank.cc src/device/random.cc
  PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

# Where an installation has liblading_mpi.so.
include(GNUInstallDirs)
set_source_files_properties(src/ranks/mpi_places.cc PROPERTIES COMPILE_DEFINITIONS "LADING_LIBDIR=\"${CMAKE_INSTALL_LIBDIR}\"")

if(LADING_KERNEL_IMAGES_SOURCE)
  target_sources(lading_device PRIVATE ${LADING_KERNEL_IMAGES_SOURCE})
  add_dependencies(lading_device lading_kernels)
endif()
