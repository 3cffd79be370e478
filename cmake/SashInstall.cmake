# The CMake package: sash::sash in the component core, libsash_cuda in the component cuda.
include(CMakePackageConfigHelpers)
set(sash_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/sash")

install(TARGETS sash EXPORT sashTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT core
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT core)
foreach(target IN LISTS SASH_LEVEL_TARGETS)
  get_target_property(folder ${target} SASH_FOLDER)
  install(TARGETS ${target} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/${folder}"
          COMPONENT core NAMELINK_SKIP)
endforeach()
install(EXPORT sashTargets NAMESPACE sash:: DESTINATION "${sash_package_dir}" COMPONENT core)
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/sashConfig.cmake.in" "${PROJECT_BINARY_DIR}/sashConfig.cmake"
  INSTALL_DESTINATION "${sash_package_dir}" PATH_VARS CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/sashConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/sashConfig.cmake"
        "${PROJECT_BINARY_DIR}/sashConfigVersion.cmake"
        DESTINATION "${sash_package_dir}" COMPONENT core)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/sash"
        COMPONENT core)

if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_PACKAGE_VENDOR "the sash authors")
  set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
  set(CPACK_STRIP_FILES ON)
  set(CPACK_PACKAGE_FILE_NAME "sash-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
  include(CPack)
endif()
