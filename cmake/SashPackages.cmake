# CPack: one archive of everything, and Debian packages: libsash<ABI>, libsash-<part><ABI>, libsash-dev,
# libsash-mpi, libsash-cuda.
set(CPACK_PACKAGE_VENDOR "the sash authors")
if(NOT CPACK_PACKAGE_CONTACT)
  set(CPACK_PACKAGE_CONTACT "The sash authors <sash@packages.invalid>")
endif()
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_FILE_NAME "sash-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_COMPONENTS_ALL ${components})
set(CPACK_GENERATOR TGZ)
find_program(SASH_SHLIBDEPS dpkg-shlibdeps DOC "Tells what Debian packages depend on")
mark_as_advanced(SASH_SHLIBDEPS)
if(SASH_SHLIBDEPS AND BUILD_SHARED_LIBS AND NOT CMAKE_CROSSCOMPILING)
  list(APPEND CPACK_GENERATOR DEB)
endif()

set(abi ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(runtime libsash${abi})
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_CORE_PACKAGE_NAME ${runtime})
set(CPACK_DEBIAN_CORE_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_CORE_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_CORE_DESCRIPTION
    "The library that programs load. The package libsash-cuda adds the CUDA backend.")
# Written here, because CPack would list each level's libsash in shlibs.
file(WRITE "${PROJECT_BINARY_DIR}/shlibs" "libsash ${abi} ${runtime} (>= ${PROJECT_VERSION})\n")
file(WRITE "${PROJECT_BINARY_DIR}/triggers" "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_CORE_PACKAGE_CONTROL_EXTRA "${PROJECT_BINARY_DIR}/shlibs"
    "${PROJECT_BINARY_DIR}/triggers")
set(CPACK_DEBIAN_CUDA_PACKAGE_CONTROL_EXTRA "${PROJECT_BINARY_DIR}/triggers")

# Parts depend on this one libsash, and on the packages of what else they link.
set(needed "${runtime} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")
foreach(part IN LISTS SASH_PARTS)
  string(TOUPPER ${part} upper)
  set(name libsash-${part}${abi})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION libs)
  set(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS ON)
  list(TRANSFORM SASH_PART_NEEDS_${part} REPLACE "(.+)"
       "libsash-\\1${abi} (= ${PROJECT_VERSION})" OUTPUT_VARIABLE needs)
  list(JOIN needs ", " needs)
  string(JOIN ", " CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${runtime} (= ${PROJECT_VERSION})" ${needs})
  file(WRITE "${PROJECT_BINARY_DIR}/packages/${part}/shlibs"
       "libsash_${part} ${abi} ${name} (>= ${PROJECT_VERSION})\n")
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA
      "${PROJECT_BINARY_DIR}/packages/${part}/shlibs" "${PROJECT_BINARY_DIR}/triggers")
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "The part of sash with ${SASH_PART_DESCRIPTION_${part}}.")
  string(APPEND needed ", ${name} (= ${PROJECT_VERSION})")
endforeach()

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libsash-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
# The shell of that name is /usr/bin/sash too.
set(CPACK_DEBIAN_DEV_PACKAGE_CONFLICTS sash)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS
    "${needed}, libc6, libgcc-s1, libstdc++6")
set(CPACK_COMPONENT_DEV_DESCRIPTION "Headers, files for CMake and pkg-config, and the command sash.")

# The CPU's collectives, which libsash loads.
set(CPACK_DEBIAN_MPI_PACKAGE_NAME libsash-mpi)
set(CPACK_DEBIAN_MPI_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_MPI_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_MPI_PACKAGE_DEPENDS "${runtime} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_MPI_PACKAGE_CONTROL_EXTRA "${PROJECT_BINARY_DIR}/triggers")
set(CPACK_COMPONENT_MPI_DESCRIPTION "Collectives of the CPU by MPI, for training with several processes.")

# The CUDA backend fills the kernel slots of one libsash. cuBLAS is only recommended, because it often
# comes without a Debian package. Without it, the first use of CUDA fails and names the file.
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME libsash-cuda)
set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS
    "${runtime} (= ${PROJECT_VERSION}), libc6, libgcc-s1, libstdc++6")
if(SASH_HAS_CUDA)
  set(toolkit "${CUDAToolkit_VERSION_MAJOR}-${CUDAToolkit_VERSION_MINOR}")
  set(CPACK_DEBIAN_CUDA_PACKAGE_RECOMMENDS
      "libcublas-${toolkit} | libcublaslt${CUDAToolkit_VERSION_MAJOR}")
  set(CPACK_COMPONENT_CUDA_DESCRIPTION
      "The CUDA backend, which libsash loads on the first use of a CUDA device.
It needs NVIDIA's driver and cuBLAS of CUDA ${CUDAToolkit_VERSION_MAJOR}.")
endif()

set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/packaging/debian.cmake")
include(CPack)
