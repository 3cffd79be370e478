# Dependencies: the system's, or else a pinned version that is downloaded. libsash uses Eigen and
# nlohmann_json internally, and libsash_text Oniguruma and utf8proc; sash's headers need none of them.
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

# sash_compiled_dependency(<package> <library> HEADER <header> FOLDER <folder> GIT <url> COMMIT <hash>)
# Makes the target sash_<package>: the system's <library> with its <header>, or else the objects of
# CMake's target <library> in the sources <hash>, whose <folder> has the header. The global property
# SASH_HEADER_<package> gets the header's path, and SASH_LIBRARY_<package> the <library> of the system.
function(sash_compiled_dependency package library)
  cmake_parse_arguments(arg "" "HEADER;FOLDER;GIT;COMMIT" "" ${ARGN})
  string(TOUPPER ${package} upper)
  add_library(sash_${package} INTERFACE IMPORTED GLOBAL)
  if(NOT FETCHCONTENT_SOURCE_DIR_${upper})
    find_path(SASH_${upper}_INCLUDE ${arg_HEADER})
    find_library(SASH_${upper}_LIBRARY ${library})
    mark_as_advanced(SASH_${upper}_INCLUDE SASH_${upper}_LIBRARY)
    if(SASH_${upper}_INCLUDE AND SASH_${upper}_LIBRARY)
      set_property(GLOBAL PROPERTY SASH_HEADER_${package}
                   "${SASH_${upper}_INCLUDE}/${arg_HEADER}")
      target_include_directories(sash_${package} INTERFACE "${SASH_${upper}_INCLUDE}")
      target_link_libraries(sash_${package} INTERFACE "${SASH_${upper}_LIBRARY}")
      set_property(GLOBAL PROPERTY SASH_LIBRARY_${package} ${library})
      return()
    endif()
    message(STATUS "sash: the system has no ${package}; fetching it")
  endif()
  # Its own install rules are left out: the objects become a part of sash's library.
  FetchContent_Declare(${package} GIT_REPOSITORY ${arg_GIT} GIT_TAG ${arg_COMMIT}
                       SOURCE_SUBDIR not-built)
  FetchContent_MakeAvailable(${package})
  FetchContent_GetProperties(${package} SOURCE_DIR source BINARY_DIR build)
  set(BUILD_SHARED_LIBS OFF)
  set(BUILD_TEST OFF)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  set(CMAKE_C_VISIBILITY_PRESET hidden)
  set(CMAKE_POLICY_DEFAULT_CMP0063 NEW)  # visibility of static libraries
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)  # options are variables
  add_subdirectory("${source}" "${build}/sash" EXCLUDE_FROM_ALL)
  set_property(GLOBAL PROPERTY SASH_HEADER_${package} "${source}/${arg_FOLDER}/${arg_HEADER}")
  target_sources(sash_${package} INTERFACE $<TARGET_OBJECTS:${library}>)
  target_include_directories(sash_${package} INTERFACE "${source}/${arg_FOLDER}")
  target_compile_definitions(sash_${package} INTERFACE ONIG_STATIC UTF8PROC_STATIC)
endfunction()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
sash_dependency(Eigen3 Eigen3::Eigen INCLUDE .
  URL https://gitlab.com/libeigen/eigen/-/archive/3.4.0/eigen-3.4.0.tar.gz
  HASH 8586084f71f9bde545ee7fa6d00288b264a2b7ac3607b974e54d13e7162c1c72)
sash_dependency(nlohmann_json nlohmann_json::nlohmann_json INCLUDE include
  URL https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
  HASH d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d)
if(SASH_TEXT)
  sash_compiled_dependency(oniguruma onig HEADER oniguruma.h FOLDER src
    GIT https://github.com/kkos/oniguruma.git
    COMMIT 08d36110c5670c815ad6d6f969e578049d209080)  # 6.9.8
  sash_compiled_dependency(utf8proc utf8proc HEADER utf8proc.h FOLDER .
    GIT https://github.com/JuliaStrings/utf8proc.git
    COMMIT 1cb28a66ca79a0845e99433fd1056257456cef8b)  # 2.8.0
endif()
if(SASH_EXAMPLES OR SASH_BENCHMARKS OR SASH_FUZZ)
  sash_dependency(CLI11 CLI11::CLI11 INCLUDE include
    URL https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.3.2.tar.gz
    HASH aac0ab42108131ac5d3344a9db0fdf25c4db652296641955720a4fbe52334e22)
endif()
if(SASH_TESTS)
  sash_dependency(doctest doctest::doctest INCLUDE .
    URL https://github.com/doctest/doctest/archive/refs/tags/v2.4.11.tar.gz
    HASH 632ed2c05a7f53fa961381497bf8069093f0d6628c5f26286161fbd32a560186)
endif()
