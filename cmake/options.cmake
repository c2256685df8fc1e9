# What every target of ours is compiled with. -Werror is for developers: a user's newer compiler
# may warn of something new, and must still be able to build.
add_library(lading_options INTERFACE)
target_compile_features(lading_options INTERFACE cxx_std_20)
target_compile_options(lading_options INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wnon-virtual-dtor -Wold-style-cast
  -fno-strict-overflow -fstack-protector-strong -pthread)
if(LADING_DEVELOPER)
  target_compile_options(lading_options INTERFACE -Werror)
else()
  # What users get does not say where it was built.
  target_compile_options(lading_options INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
endif()

set(LADING_SANITIZE "" CACHE STRING "Sanitizers to build with, such as address,undefined")
if(LADING_SANITIZE)
  # For everything in the build, tests and fuzzers included.
  add_compile_options(-fsanitize=${LADING_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LADING_SANITIZE})
endif()
