# Makes <sash/nn/layers/linear.h> and <sash/sash.h> work in the build tree as in an installation.
# Creates symbolic links to the public folders, and generates sash.h, which includes every public
# header. Internal headers (cmake/internal_headers and the folders kernels/) and headers of parts that
# are not built are left out, and not installed. .ci/check_layers checks that no public header includes
# an internal one. Headers that moved can be included by their former paths, which cmake/moved_headers
# lists.
function(sash_headers)
  set(root "${PROJECT_BINARY_DIR}/include/sash")
  file(MAKE_DIRECTORY "${root}")
  set(list "${PROJECT_SOURCE_DIR}/cmake/internal_headers")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${list}")
  file(READ "${list}" internal)
  string(REGEX MATCHALL "[a-z_/]+\\.h" internal "${internal}")
  string(JOIN "|" internal_paths ${internal})
  string(REPLACE "." "[.]" internal_paths "${internal_paths}")
  list(TRANSFORM SASH_FOLDERS_LEFT_OUT APPEND "/.*" OUTPUT_VARIABLE left_out)
  list(JOIN left_out "|" left_out)
  if(left_out)
    string(APPEND internal_paths "|${left_out}")
  endif()
  # Public headers that sash.h leaves out, because they are slow to compile and few programs use them.
  set(apart tensor/io/gguf_value.h)
  set(includes "")
  foreach(folder IN ITEMS core tensor ops nn optim)
    file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${folder}" "${root}/${folder}" SYMBOLIC)
    file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
         "${PROJECT_SOURCE_DIR}/${folder}/*.h")
    list(REMOVE_ITEM headers ${internal} ${apart})
    list(FILTER headers EXCLUDE REGEX "/kernels/")
    if(left_out)
      list(FILTER headers EXCLUDE REGEX "^(${left_out})$")
    endif()
    foreach(header IN LISTS headers)
      string(APPEND includes "#include \"${header}\"\n")
    endforeach()
    install(DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}" DESTINATION
            "${CMAKE_INSTALL_INCLUDEDIR}/sash" COMPONENT dev FILES_MATCHING PATTERN "*.h"
            PATTERN "kernels" EXCLUDE REGEX "/(${internal_paths})$" EXCLUDE)
  endforeach()
  file(CONFIGURE OUTPUT "${root}/sash.h" @ONLY CONTENT [[#pragma once

#if __cplusplus < 202002L
#error "sash needs C++20: compile with -std=c++20 or later"
#endif

/// All of sash.
@includes@]])
  set(moved_list "${PROJECT_SOURCE_DIR}/cmake/moved_headers")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${moved_list}")
  file(STRINGS "${moved_list}" moved REGEX "^[a-z]")
  foreach(paths IN LISTS moved)
    string(REPLACE " " ";" paths "${paths}")
    list(GET paths 0 former)
    list(GET paths 1 present)
    if(NOT EXISTS "${PROJECT_SOURCE_DIR}/${present}")
      message(FATAL_ERROR "sash: cmake/moved_headers names ${present}, which does not exist")
    endif()
    file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/moved/sash/${former}"
         CONTENT "#pragma once\n#include <sash/${present}>\n")
  endforeach()
  install(DIRECTORY "${PROJECT_BINARY_DIR}/moved/sash" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
          COMPONENT dev)
  install(FILES "${root}/sash.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/sash" COMPONENT dev)
endfunction()
