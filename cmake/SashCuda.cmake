# Builds the CUDA backend from SASH_CUDA_SOURCES if SASH_CUDA allows it and there is a toolkit, and
# prints the decision. In shared builds the backend is libsash_cuda.so, which libsash loads on the
# first use of CUDA. In static builds it is part of libsash.
include(SashCudaArchitectures)

# Sets `problem` to the reason why CUDA cannot be used, or to "". Sets the environment's CUDACXX.
function(_sash_find_cuda)
  set(problem "" PARENT_SCOPE)
  find_program(SASH_NVCC nvcc HINTS "$ENV{CUDACXX}" ENV CUDA_HOME ENV CUDA_PATH
               PATHS /usr/local/cuda PATH_SUFFIXES bin DOC "The CUDA compiler")
  mark_as_advanced(SASH_NVCC)
  if(NOT DEFINED ENV{CUDACXX} AND SASH_NVCC)
    set(ENV{CUDACXX} "${SASH_NVCC}")
  endif()
  if(NOT DEFINED ENV{CUDACXX})
    set(problem "no CUDA toolkit found" PARENT_SCOPE)
    return()
  endif()
  sash_check_toolkit(old "$ENV{CUDACXX}")
  if(old)
    set(problem "${old}" PARENT_SCOPE)
    return()
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(problem "$ENV{CUDACXX} does not work" PARENT_SCOPE)
    return()
  endif()
  find_package(CUDAToolkit QUIET)
  foreach(part IN ITEMS cudart_static cublasLt nvtx3)
    if(NOT TARGET CUDA::${part})
      set(problem "the toolkit of ${CMAKE_CUDA_COMPILER} has no ${part}" PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

set(SASH_HAS_CUDA OFF)
set(cards "")
set(no_card "nvidia-smi shows no card of capability 8.0 or above")
if(NOT SASH_CUDA MATCHES "^(AUTO|CARD|ON|OFF)$")
  message(FATAL_ERROR "sash: SASH_CUDA is AUTO, CARD, ON or OFF, not '${SASH_CUDA}'")
elseif(SASH_CUDA STREQUAL "OFF")
  set(problem "SASH_CUDA=OFF")
  if(NOT PROJECT_IS_TOP_LEVEL)
    string(APPEND problem ", the default within another project; ON builds it")
  endif()
elseif(NOT SASH_CUDA_SOURCES)
  set(problem "it has no sources")
else()
  _sash_find_cuda()
  if(NOT problem)
    sash_find_cards(cards)
    if(SASH_CUDA STREQUAL "CARD" AND NOT cards)
      set(problem "there is a toolkit, but ${no_card}; SASH_CUDA=ON builds it anyway")
    endif()
  endif()
endif()
if(problem)
  if(SASH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "sash: SASH_CUDA=ON, but ${problem}")
  endif()
  message(STATUS "sash: CUDA backend left out (${problem})")
  # libsash would load a stale one of an earlier configuration.
  file(REMOVE "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libsash_cuda.so")
  return()
endif()

# Resolved here because CMake's own `native` gives 90 for Hopper, where the kernels need 90a.
if(CMAKE_CUDA_ARCHITECTURES STREQUAL "native" AND NOT cards)
  message(FATAL_ERROR "sash: CMAKE_CUDA_ARCHITECTURES=native, but ${no_card}")
elseif(CMAKE_CUDA_ARCHITECTURES STREQUAL "native"
       OR (NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND "$ENV{CUDAARCHS}" STREQUAL ""))
  if(cards AND (SASH_NATIVE OR DEFINED CMAKE_CUDA_ARCHITECTURES))
    sash_cuda_architectures(CMAKE_CUDA_ARCHITECTURES "${CMAKE_CUDA_COMPILER}" CARDS ${cards})
  elseif(SASH_NATIVE)
    set(CMAKE_CUDA_ARCHITECTURES "90a-real;80-virtual")  # the fewest that compile every kernel
  else()
    sash_cuda_architectures(CMAKE_CUDA_ARCHITECTURES "${CMAKE_CUDA_COMPILER}" ALL)
  endif()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(SASH_HAS_CUDA ON)
message(STATUS "sash: CUDA backend for ${CMAKE_CUDA_ARCHITECTURES}, "
               "toolkit ${CUDAToolkit_VERSION}")
if(CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)90(-real|-virtual)?(;|$)")
  message(STATUS "sash: the Hopper attention kernels need 90a; with 90, the general ones are used")
endif()

foreach(target IN ITEMS sash ${SASH_LEVEL_TARGETS})
  target_compile_definitions(${target} PRIVATE SASH_BUILT_WITH_CUDA)
endforeach()
if(BUILD_SHARED_LIBS)
  set(sash_cuda_target sash_cuda)
  add_library(sash_cuda MODULE ${SASH_CUDA_SOURCES})
  sash_compile_options(sash_cuda)
  target_link_libraries(sash_cuda PRIVATE sash)
  target_link_options(sash_cuda PRIVATE LINKER:-soname,libsash_cuda.so)
  set_target_properties(sash_cuda PROPERTIES INSTALL_RPATH "$ORIGIN"
                        BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS sash_cuda OPTIONAL LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          COMPONENT cuda)
else()
  set(sash_cuda_target sash)
  target_sources(sash PRIVATE ${SASH_CUDA_SOURCES})
  target_compile_definitions(sash PRIVATE SASH_STATIC_CUDA)
endif()
set_target_properties(${sash_cuda_target} PROPERTIES
                      CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
# The Hopper attention kernels rely on asynchronous products. A launcher that the user sets, such as
# ccache, is kept.
set_property(TARGET ${sash_cuda_target} PROPERTY CUDA_COMPILER_LAUNCHER
             "${PROJECT_SOURCE_DIR}/cmake/without_slow_wgmma" ${CMAKE_CUDA_COMPILER_LAUNCHER})
# A compile option, because CMake 3.25.1 does not accept CUDA_STANDARD 20 for nvcc.
target_compile_options(${sash_cuda_target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
# Compressed, machine code and PTX are less than half as large.
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
  target_compile_options(${sash_cuda_target}
                         PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
endif()
target_link_libraries(${sash_cuda_target} PRIVATE CUDA::cudart_static CUDA::cublasLt
                      CUDA::nvtx3)
