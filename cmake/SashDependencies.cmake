# Header-only dependencies: the system's, or else a pinned version that is downloaded. libsash uses
# Eigen and nlohmann_json internally; its headers and its package need neither.
include(FetchContent)

# sash_dependency(<package> <target> URL <url> HASH <sha256> INCLUDE <folder>)
# Makes sure that the header-only target <target> exists. The global property
# SASH_VERSION_<package> gets its version, unless a parent project provides the target.
function(sash_dependency package target)
  cmake_parse_arguments(arg "" "URL;HASH;INCLUDE" "" ${ARGN})
  if(TARGET ${target})
    return()  # the parent project provides it
  endif()
  string(TOUPPER ${package} upper)
  if(NOT FETCHCONTENT_SOURCE_DIR_${upper})
    find_package(${package} QUIET)
    if(TARGET ${target})
      set_property(GLOBAL PROPERTY SASH_VERSION_${package} "${${package}_VERSION}")
      return()
    endif()
    message(STATUS "sash: the system has no ${package}; fetching it")
  endif()
  # SOURCE_SUBDIR is a folder that does not exist: the library's own CMakeLists.txt is not used.
  FetchContent_Declare(${package} URL ${arg_URL} URL_HASH SHA256=${arg_HASH}
                       SOURCE_SUBDIR not-built DOWNLOAD_EXTRACT_TIMESTAMP OFF)
  FetchContent_MakeAvailable(${package})
  FetchContent_GetProperties(${package} SOURCE_DIR source)
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" version "${arg_URL}")
  set_property(GLOBAL PROPERTY SASH_VERSION_${package} "${version}")
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} INTERFACE "${source}/${arg_INCLUDE}")
endfunction()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
sash_dependency(Eigen3 Eigen3::Eigen INCLUDE .
  URL https://gitlab.com/libeigen/eigen/-/archive/3.4.0/eigen-3.4.0.tar.gz
  HASH 8586084f71f9bde545ee7fa6d00288b264a2b7ac3607b974e54d13e7162c1c72)
sash_dependency(nlohmann_json nlohmann_json::nlohmann_json INCLUDE include
  URL https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
  HASH d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d)
if(SASH_EXAMPLES OR SASH_BENCHMARKS)
  sash_dependency(CLI11 CLI11::CLI11 INCLUDE include
    URL https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.3.2.tar.gz
    HASH aac0ab42108131ac5d3344a9db0fdf25c4db652296641955720a4fbe52334e22)
endif()
if(SASH_TESTS)
  sash_dependency(doctest doctest::doctest INCLUDE .
    URL https://github.com/doctest/doctest/archive/refs/tags/v2.4.11.tar.gz
    HASH 632ed2c05a7f53fa961381497bf8069093f0d6628c5f26286161fbd32a560186)
endif()
