# Makes <sash/nn/layers/linear.h> and <sash/sash.h> work in the build tree as in an installation.
# Creates symbolic links to the public folders, and generates sash.h, which includes every public
# header.
function(sash_headers)
  set(root "${PROJECT_BINARY_DIR}/include/sash")
  file(MAKE_DIRECTORY "${root}")
  set(includes "")
  foreach(folder IN ITEMS core tensor ops nn optim)
    file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${folder}" "${root}/${folder}" SYMBOLIC)
    file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
         "${PROJECT_SOURCE_DIR}/${folder}/*.h")
    list(REMOVE_ITEM headers core/backend/plugin.h)
    list(FILTER headers EXCLUDE REGEX "/kernels/")
    foreach(header IN LISTS headers)
      string(APPEND includes "#include \"${header}\"\n")
    endforeach()
    install(DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}" DESTINATION
            "${CMAKE_INSTALL_INCLUDEDIR}/sash" COMPONENT dev FILES_MATCHING PATTERN "*.h")
  endforeach()
  file(CONFIGURE OUTPUT "${root}/sash.h" @ONLY CONTENT [[#pragma once

#if __cplusplus < 202002L
#error "sash needs C++20: compile with -std=c++20 or later"
#endif

/// All of sash.
@includes@]])
  install(FILES "${root}/sash.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/sash" COMPONENT dev)
endfunction()
