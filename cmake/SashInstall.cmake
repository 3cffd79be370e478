# The CMake package: sash::sash in component core, libsash_cuda in component cuda.
install(TARGETS sash EXPORT sashTargets COMPONENT core
        RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
