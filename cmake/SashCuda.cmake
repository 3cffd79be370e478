# Builds the CUDA backend from SASH_CUDA_SOURCES, if it is wanted and there is a toolkit, and says
# which. Shared builds get libsash_cuda.so, which libsash opens when CUDA is first asked for; static
# builds get it as part of libsash.

# Sets `problem` to why there can be no CUDA here, or to nothing. CUDACXX then names the compiler.
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
  execute_process(COMMAND "$ENV{CUDACXX}" --version OUTPUT_VARIABLE text ERROR_QUIET)
  # C++20 and code for sm_90a came with 12.0.
  if(text MATCHES "release ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_LESS 12.0)
    set(problem "$ENV{CUDACXX} is ${CMAKE_MATCH_1}, older than 12.0" PARENT_SCOPE)
    return()
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(problem "$ENV{CUDACXX} does not work" PARENT_SCOPE)
  endif()
endfunction()

set(SASH_HAS_CUDA OFF)
if(SASH_CUDA STREQUAL "OFF")
  set(problem "SASH_CUDA=OFF")
elseif(NOT SASH_CUDA_SOURCES)
  set(problem "it has no sources")
else()
  _sash_find_cuda()
endif()
if(problem)
  if(SASH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "sash: SASH_CUDA=ON, but ${problem}")
  endif()
  message(STATUS "sash: CUDA backend left out (${problem})")
  return()
endif()

# Hopper's own machine code, and PTX from which every card since Ampere can be served.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "90a-real;80-virtual")
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(SASH_HAS_CUDA ON)
message(STATUS "sash: CUDA backend for ${CMAKE_CUDA_ARCHITECTURES}, "
               "toolkit ${CUDAToolkit_VERSION}")

target_compile_definitions(sash PRIVATE SASH_BUILT_WITH_CUDA)
if(BUILD_SHARED_LIBS)
  set(sash_cuda_target sash_cuda)
  add_library(sash_cuda MODULE ${SASH_CUDA_SOURCES})
  sash_compile_options(sash_cuda)
  target_link_libraries(sash_cuda PRIVATE sash)
  set_target_properties(sash_cuda PROPERTIES INSTALL_RPATH "$ORIGIN"
                        BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS sash_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT cuda)
else()
  set(sash_cuda_target sash)
  target_sources(sash PRIVATE ${SASH_CUDA_SOURCES})
  target_compile_definitions(sash PRIVATE SASH_STATIC_CUDA)
endif()
set_target_properties(${sash_cuda_target} PROPERTIES
                      CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
# Attention for sm_90 counts on asynchronous products. What a user has launch the compiler, such as
# ccache, still does.
set_property(TARGET ${sash_cuda_target} PROPERTY CUDA_COMPILER_LAUNCHER
             "${PROJECT_SOURCE_DIR}/cmake/without_slow_wgmma" ${CMAKE_CUDA_COMPILER_LAUNCHER})
# As an option, because CMake 3.25.1 does not know that nvcc has CUDA_STANDARD 20.
target_compile_options(${sash_cuda_target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
# Machine code and PTX then take less than half the room.
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
  target_compile_options(${sash_cuda_target}
                         PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
endif()
target_link_libraries(${sash_cuda_target} PRIVATE CUDA::cudart_static CUDA::cublasLt
                      CUDA::nvtx3)
