# One test executable per room, from src/<room>/*_test.cc.
find_package(GTest REQUIRED)
include(GoogleTest)
enable_testing()

function(lading_gtest target)
  cmake_parse_arguments(TEST "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${target} ${TEST_SOURCES})
  target_link_libraries(${target} PRIVATE lading_options GTest::gmock GTest::gtest_main ${TEST_LIBRARIES})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  gtest_discover_tests(${target} TEST_PREFIX "${target}." DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
endfunction()

function(lading_room_tests room)
  file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${room}/*_test.cc ${PROJECT_SOURCE_DIR}/src/${room}/*/*_test.cc)
  if(tests)
    lading_gtest(${room}_tests SOURCES ${tests} LIBRARIES lading_${room} fmt::fmt)
  endif()
endfunction()
