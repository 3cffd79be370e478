# What an installation holds, by component: core, the library that programs load; a component for each
# part (SashParts.cmake); dev, what building against them needs; cuda, the CUDA backend of shared builds.
include(CMakePackageConfigHelpers)
include(SashSbom)
set(sash_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/sash")

install(TARGETS sash EXPORT sashTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT core NAMELINK_COMPONENT dev
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT dev)
foreach(target IN LISTS SASH_LEVEL_TARGETS)
  get_target_property(folder ${target} SASH_FOLDER)
  install(TARGETS ${target} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/${folder}"
          COMPONENT core NAMELINK_SKIP)
endforeach()
install(EXPORT sashTargets NAMESPACE sash:: DESTINATION "${sash_package_dir}" COMPONENT dev)
# After a build of some targets, what was built is installed: the other parts, plug-ins and the command
# are OPTIONAL. Each part has export files of its own, which sashConfig.cmake reads where the part is installed.
foreach(part IN LISTS SASH_PARTS)
  install(TARGETS sash_${part} EXPORT sash_${part}
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT ${part} NAMELINK_COMPONENT dev
          OPTIONAL
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT dev OPTIONAL)
  install(EXPORT sash_${part} NAMESPACE sash:: DESTINATION "${sash_package_dir}" COMPONENT dev)
endforeach()
string(JOIN ", " sash_parts_text ${SASH_PARTS})
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/sashConfig.cmake.in" "${PROJECT_BINARY_DIR}/sashConfig.cmake"
  INSTALL_DESTINATION "${sash_package_dir}" PATH_VARS CMAKE_INSTALL_LIBDIR)
# While the major version is 0, each minor version has an ABI of its own (docs/packages.md).
write_basic_package_version_file("${PROJECT_BINARY_DIR}/sashConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/sashConfig.cmake"
        "${PROJECT_BINARY_DIR}/sashConfigVersion.cmake"
        DESTINATION "${sash_package_dir}" COMPONENT dev)

# pkg-config. Paths are relative to the file, so that the installation can be moved.
set(folder "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH sash_pc_includedir "${folder}" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
set(sash_pc_cflags "")
set(sash_pc_libs "")
set(sash_pc_requires "")
if(NOT BUILD_SHARED_LIBS)
  set(sash_pc_cflags " -DSASH_STATIC")
  set(sash_pc_libs " -pthread -ldl")
  if(SASH_HAS_CUDA)
    string(PREPEND sash_pc_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lcublasLt -lrt")
  endif()
endif()
set(sash_pc_name sash)
set(sash_pc_lib " -lsash${sash_pc_libs}")
set(sash_pc_description "${PROJECT_DESCRIPTION}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/sash.pc.in" "${PROJECT_BINARY_DIR}/sash.pc" @ONLY)
set(pc_files "${PROJECT_BINARY_DIR}/sash.pc")
foreach(part IN LISTS SASH_PARTS ITEMS all)
  set(sash_pc_name sash-${part})
  set(sash_pc_lib "")
  set(sash_pc_description "libsash and all of its parts")
  list(TRANSFORM SASH_PARTS PREPEND sash- OUTPUT_VARIABLE needs)
  if(NOT part STREQUAL "all")
    set(sash_pc_lib " -lsash_${part}")
    set(sash_pc_description "sash: ${SASH_PART_DESCRIPTION_${part}}")
    list(TRANSFORM SASH_PART_NEEDS_${part} PREPEND sash- OUTPUT_VARIABLE needs)
    foreach(package IN LISTS SASH_PART_LINKS_${part})
      get_property(library GLOBAL PROPERTY SASH_LIBRARY_${package})
      if(library AND NOT BUILD_SHARED_LIBS)
        string(APPEND sash_pc_lib " -l${library}")
      endif()
    endforeach()
  endif()
  list(APPEND needs sash)
  list(TRANSFORM needs APPEND " = ${PROJECT_VERSION}")
  list(JOIN needs ", " sash_pc_requires)
  set(file "${PROJECT_BINARY_DIR}/sash-${part}.pc")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/sash.pc.in" "${file}" @ONLY)
  list(APPEND pc_files "${file}")
endforeach()
install(FILES ${pc_files} DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT dev)

sash_sbom("${PROJECT_BINARY_DIR}/sash.spdx.json")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_BINARY_DIR}/sash.spdx.json"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/sash" COMPONENT core)

if(PROJECT_IS_TOP_LEVEL)
  set(components core dev)
  if(BUILD_SHARED_LIBS)
    list(APPEND components ${SASH_PARTS})
    if(TARGET sash_mpi)
      list(APPEND components mpi)
    endif()
  endif()
  set(no_cuda "this build has no CUDA backend; SASH_CUDA=ON makes one")
  if(SASH_HAS_CUDA AND BUILD_SHARED_LIBS)
    list(APPEND components cuda)
  elseif(SASH_HAS_CUDA)
    set(no_cuda "in static builds, the CUDA backend is a part of the component dev")
  endif()
  # Without this, CMake installs nothing and reports success.
  string(JOIN "|" names ${components})
  string(JOIN ", " listed ${components})
  install(CODE "
    if(CMAKE_INSTALL_COMPONENT STREQUAL \"cuda\" AND NOT \"cuda\" MATCHES \"^(${names})$\")
      message(FATAL_ERROR \"sash: cannot install the component cuda: ${no_cuda}\")
    elseif(CMAKE_INSTALL_COMPONENT AND NOT CMAKE_INSTALL_COMPONENT MATCHES \"^(${names})$\")
      message(FATAL_ERROR \"sash: this build has the components ${listed}, but no \"
                          \"'\${CMAKE_INSTALL_COMPONENT}'\")
    endif()" ALL_COMPONENTS)
  foreach(component IN LISTS components)
    if(TARGET sash_${component})
      install(CODE "
    if(CMAKE_INSTALL_COMPONENT STREQUAL \"${component}\" AND
       NOT EXISTS \"$<TARGET_FILE:sash_${component}>\")
      message(FATAL_ERROR \"sash: the component ${component} is not built; the target is \"
                          \"sash_${component}\")
    endif()" ALL_COMPONENTS)
    endif()
  endforeach()
  include(SashPackages)
endif()
