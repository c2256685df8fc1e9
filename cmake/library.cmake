# liblading, for programs: every room but the command line in one library, shared unless BUILD_SHARED_LIBS is OFF.
# Programs see the headers of include/lading and what LADING_API marks there; no room and no third party.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(lading_library)
add_library(lading::lading ALIAS lading_library)
set_target_properties(lading_library PROPERTIES
  OUTPUT_NAME lading EXPORT_NAME lading LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})  # 0.x: the ABI may change with x
target_compile_features(lading_library PUBLIC cxx_std_20)
file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/lading/*.h)
target_sources(lading_library PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${headers})

get_property(rooms GLOBAL PROPERTY LADING_ROOMS)
list(REMOVE_ITEM rooms cli)
foreach(room IN LISTS rooms)
  target_sources(lading_library PRIVATE $<TARGET_OBJECTS:lading_${room}>)
  get_target_property(of_room lading_${room} LINK_LIBRARIES)
  list(APPEND third_party ${of_room})
endforeach()
list(FILTER third_party EXCLUDE REGEX "^lading_")
list(REMOVE_DUPLICATES third_party)
if(NOT LADING_URING_IS_USED)
  list(REMOVE_ITEM third_party uring::uring)
endif()
target_link_libraries(lading_library PRIVATE ${third_party})
# Templates of the standard library are visible whatever the compiler is told, and so is a third party's archive.
target_link_options(lading_library PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)
set_property(TARGET lading_library PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)

if(LADING_DEVELOPER)
  set_target_properties(lading_library PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  add_custom_target(lading_headers_alone ALL)
  add_dependencies(lading_headers_alone all_verify_interface_header_sets)
endif()

# A static library leaves its third parties to the program that links it.
set(LADING_STATIC_MODULES "")
if(NOT BUILD_SHARED_LIBS)
  set(LADING_STATIC_MODULES fmt simdjson libcrypto re2 libxxhash libhwy)
  if(LADING_URING_IS_USED)
    list(APPEND LADING_STATIC_MODULES liburing)
  endif()
endif()
list(JOIN LADING_STATIC_MODULES " " LADING_PC_REQUIRES)
file(RELATIVE_PATH LADING_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" LADING_PC_PREFIX ${LADING_PC_PREFIX})
configure_file(cmake/lading.pc.in lading.pc @ONLY)
set(LADING_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/lading)
configure_package_config_file(cmake/lading-config.cmake.in lading-config.cmake INSTALL_DESTINATION ${LADING_CMAKE_DIR})
write_basic_package_version_file(lading-config-version.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS lading_library EXPORT lading-targets FILE_SET HEADERS)
install(EXPORT lading-targets NAMESPACE lading:: DESTINATION ${LADING_CMAKE_DIR})
install(FILES ${PROJECT_BINARY_DIR}/lading-config.cmake ${PROJECT_BINARY_DIR}/lading-config-version.cmake
  DESTINATION ${LADING_CMAKE_DIR})
install(FILES ${PROJECT_BINARY_DIR}/lading.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
