# sash_library_options(target): what libsash and the libraries of its parts have in common.
function(sash_library_options target)
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
                        INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
  sash_compile_options(${target})
  sash_sanitize(${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/moved>)
  target_link_libraries(${target} PRIVATE Threads::Threads
                        $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
  if(NOT BUILD_SHARED_LIBS)
    target_compile_definitions(${target} PUBLIC SASH_STATIC)
  elseif(NOT SASH_SANITIZE)
    target_link_options(${target} PRIVATE LINKER:--no-undefined)
  endif()
  if(SASH_SANITIZE)
    # The sanitizers cannot see errors inside memory that is kept for reuse.
    target_compile_definitions(${target} PRIVATE SASH_NO_MEMORY_REUSE)
  endif()
  if(SASH_NATIVE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
  endif()
endfunction()

# sash_configure_library(target): sources, options, definitions and links of libsash.
function(sash_configure_library target)
  target_sources(${target} PRIVATE ${SASH_SOURCES})
  sash_library_options(${target})
  target_compile_definitions(${target} PRIVATE EIGEN_MPL2_ONLY EIGEN_DONT_PARALLELIZE)
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS} $<BUILD_INTERFACE:Eigen3::Eigen>)
endfunction()

# sash_levels(): builds libsash once per level of SASH_LEVELS, each whole with its own -march. The
# first level is that of lib/libsash.so. The others lie in lib/glibc-hwcaps/<level>/ under the same
# name, where glibc's loader (2.33 or later) finds the best one that the processor has. Results
# have the same bits on all processors of one level. Other loaders and processors take the first.
function(sash_levels)
  set(levels "${SASH_LEVELS}")
  if(levels AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    list(FILTER levels EXCLUDE REGEX "^x86-64")
    message(STATUS "sash: the levels of x86-64 are left out on ${CMAKE_SYSTEM_PROCESSOR}")
  endif()
  if(NOT levels)
    return()
  endif()
  if(SASH_NATIVE OR NOT BUILD_SHARED_LIBS)
    message(FATAL_ERROR "sash: SASH_LEVELS needs SASH_NATIVE=OFF and BUILD_SHARED_LIBS=ON")
  endif()
  list(POP_FRONT levels base)
  target_compile_options(sash PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-march=${base}>)
  set(targets "")
  foreach(level IN LISTS levels)
    string(MAKE_C_IDENTIFIER "sash_${level}" target)
    add_library(${target})
    sash_configure_library(${target})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-march=${level}>)
    set(folder glibc-hwcaps/${level})
    set_target_properties(${target} PROPERTIES OUTPUT_NAME sash SASH_FOLDER ${folder}
                          LIBRARY_OUTPUT_DIRECTORY "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/${folder}")
    list(APPEND targets ${target})
  endforeach()
  set(SASH_LEVEL_TARGETS ${targets} PARENT_SCOPE)
endfunction()
