# Builds libsash_mpi.so, the CPU's collectives, from SASH_MPI_SOURCES where SASH_MPI allows it and MPI is
# found. libsash loads it when a program of several processes first uses them on the CPU. Static
# builds have none, and neither have builds within another project by default.
set(sash_default_mpi OFF)
if(PROJECT_IS_TOP_LEVEL)
  set(sash_default_mpi AUTO)
endif()
set(SASH_MPI ${sash_default_mpi} CACHE STRING
    "Build the CPU's collectives: AUTO (if MPI is found), ON, OFF")
set_property(CACHE SASH_MPI PROPERTY STRINGS AUTO ON OFF)
set(SASH_HAS_MPI OFF)
if(NOT SASH_MPI MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "sash: SASH_MPI is AUTO, ON or OFF, not '${SASH_MPI}'")
elseif(SASH_MPI AND BUILD_SHARED_LIBS)
  find_package(MPI QUIET COMPONENTS CXX)
  set(SASH_HAS_MPI ${MPI_CXX_FOUND})
endif()
if(SASH_MPI STREQUAL "ON" AND NOT SASH_HAS_MPI)
  message(FATAL_ERROR "sash: SASH_MPI=ON, but CMake finds no MPI, or BUILD_SHARED_LIBS is OFF")
endif()
if(NOT SASH_HAS_MPI)
  # libsash would load a stale one of an earlier configuration.
  file(REMOVE "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libsash_mpi.so")
  return()
endif()

add_library(sash_mpi MODULE ${SASH_MPI_SOURCES})
sash_compile_options(sash_mpi)
sash_sanitize(sash_mpi)
target_link_libraries(sash_mpi PRIVATE sash MPI::MPI_CXX)
target_compile_definitions(sash_mpi PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
set_target_properties(sash_mpi PROPERTIES INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON
                      INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS sash_mpi OPTIONAL LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT mpi)
