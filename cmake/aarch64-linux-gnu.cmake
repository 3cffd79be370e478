# Toolchain file: cross-compiles for 64-bit Arm with Debian's g++-aarch64-linux-gnu. Header-only
# dependencies are the host's. Tests run under qemu-aarch64-static, if that is installed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
find_program(SASH_QEMU qemu-aarch64-static DOC "Runs the tests of a cross build")
mark_as_advanced(SASH_QEMU)
if(SASH_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${SASH_QEMU}" -L /usr/aarch64-linux-gnu)
endif()
