# An overlay port: `vcpkg install sash --overlay-ports=<clone of sash>/cmake/packaging` builds the
# clone that it lies in (docs/packages.md).
cmake_path(SET SOURCE_PATH NORMALIZE "${CURRENT_PORT_DIR}/../../..")

set(cuda OFF)
if("cuda" IN_LIST FEATURES)
  set(cuda ON)
endif()
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DSASH_CUDA=${cuda} -DSASH_TESTS=OFF -DSASH_EXAMPLES=OFF -DSASH_BENCHMARKS=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/sash)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
