# GPU kernels are optional: without them src/device/cuda/no_kernels.cc is built instead. They need a clang++ that knows
# NVPTX and nothing of CUDA; where ptxas is found, machine code is made too (docs/how-it-works/gpu-kernels.md).
#
# Gives LADING_KERNELS_TWIN_LEFT_OUT, LADING_KERNEL_IMAGES_SOURCE (empty without kernels), and lading_kernels, the target
# that makes the images.
set(LADING_WITH_CUDA_KERNELS "AUTO" CACHE STRING "Build kernels for NVIDIA GPUs: AUTO, ON (a clang++ with NVPTX must be there) or OFF")
set_property(CACHE LADING_WITH_CUDA_KERNELS PROPERTY STRINGS AUTO ON OFF)

set(LADING_KERNEL_FLAGS -x cuda --cuda-device-only -nocudainc -nocudalib --cuda-path=/nonexistent
  --cuda-gpu-arch=sm_50 -std=c++20 -O2 -fno-unroll-loops -ffp-contract=off -Wall -Wextra)

set(LADING_CUDA_KERNELS_ARE_BUILT OFF)
if(LADING_WITH_CUDA_KERNELS)
  find_program(LADING_KERNEL_CLANG NAMES clang++ clang++-20 clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14
    DOC "The clang++ that compiles kernels")
  if(LADING_KERNEL_CLANG)
    file(WRITE ${PROJECT_BINARY_DIR}/kernels/probe.cu "#include <cstdint>\nextern \"C\" __attribute__((global)) void probe(std::uint64_t*) {}\n")
    execute_process(
      COMMAND ${LADING_KERNEL_CLANG} ${LADING_KERNEL_FLAGS} -S ${PROJECT_BINARY_DIR}/kernels/probe.cu -o ${PROJECT_BINARY_DIR}/kernels/probe.ptx
      RESULT_VARIABLE probe_result OUTPUT_VARIABLE probe_output ERROR_VARIABLE probe_output)
    if(probe_result EQUAL 0)
      set(LADING_CUDA_KERNELS_ARE_BUILT ON)
    endif()
  endif()
  if(NOT LADING_CUDA_KERNELS_ARE_BUILT AND NOT LADING_WITH_CUDA_KERNELS STREQUAL "AUTO")
    message(FATAL_ERROR "LADING_WITH_CUDA_KERNELS is ON, but no clang++ compiles for NVPTX: ${LADING_KERNEL_CLANG}\n${probe_output}")
  endif()
endif()

if(NOT LADING_CUDA_KERNELS_ARE_BUILT)
  set(LADING_KERNELS_TWIN_LEFT_OUT "^$")
  set(LADING_KERNEL_IMAGES_SOURCE "")
  message(STATUS "GPU kernels: none")
  return()
endif()

set(LADING_KERNELS_TWIN_LEFT_OUT "/no_kernels\\.cc$")
set(kernels_dir ${PROJECT_BINARY_DIR}/kernels)
set(kernels_source ${PROJECT_SOURCE_DIR}/src/device/cuda/kernels.cu)
add_custom_command(OUTPUT ${kernels_dir}/kernels.ptx
  COMMAND ${LADING_KERNEL_CLANG} ${LADING_KERNEL_FLAGS} -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src
    -MD -MF ${kernels_dir}/kernels.d -MT kernels/kernels.ptx -S ${kernels_source} -o ${kernels_dir}/kernels.ptx
  DEPENDS ${kernels_source} DEPFILE ${kernels_dir}/kernels.d
  COMMENT "Compiling kernels to PTX" VERBATIM)

# Machine code of x.y runs on x.z with z >= y, so one for each generation is enough; later ones compile the PTX.
find_program(LADING_PTXAS ptxas HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin DOC "Makes machine code of PTX; optional")
set(kernel_files ${kernels_dir}/kernels.ptx)
set(LADING_KERNEL_INCBINS "LADING_INCBIN(0, \"${kernels_dir}/kernels.ptx\")\n")
set(LADING_KERNEL_LIST "    image(0, lading_kernels_0_begin, lading_kernels_0_end),\n")
if(LADING_PTXAS)
  execute_process(COMMAND ${LADING_PTXAS} --help OUTPUT_VARIABLE ptxas_help ERROR_QUIET)
  foreach(sm IN ITEMS 70 75 80 90 100 120)
    if(NOT ptxas_help MATCHES "'sm_${sm}'")
      continue()
    endif()
    set(cubin ${kernels_dir}/kernels_sm_${sm}.cubin)
    add_custom_command(OUTPUT ${cubin}
      COMMAND ${LADING_PTXAS} -arch=sm_${sm} ${kernels_dir}/kernels.ptx -o ${cubin}
      DEPENDS ${kernels_dir}/kernels.ptx COMMENT "Assembling kernels for sm_${sm}" VERBATIM)
    list(APPEND kernel_files ${cubin})
    string(APPEND LADING_KERNEL_INCBINS "LADING_INCBIN(${sm}, \"${cubin}\")\n")
    string(APPEND LADING_KERNEL_LIST "    image(${sm}, lading_kernels_${sm}_begin, lading_kernels_${sm}_end),\n")
    string(APPEND kernel_archs " sm_${sm}")
  endforeach()
endif()
message(STATUS "GPU kernels: PTX${kernel_archs}")

set(LADING_KERNEL_IMAGES_SOURCE ${PROJECT_BINARY_DIR}/generated/kernel_images.cc)
configure_file(${PROJECT_SOURCE_DIR}/cmake/kernel_images.cc.in ${LADING_KERNEL_IMAGES_SOURCE} @ONLY)
set_source_files_properties(${LADING_KERNEL_IMAGES_SOURCE} PROPERTIES OBJECT_DEPENDS "${kernel_files}")
add_custom_target(lading_kernels DEPENDS ${kernel_files})
