# sash_ops(<family>... [CPU_HELPERS <stem>...] [CUDA_HELPERS <stem>...])
#
# The family `x` consists of those of these files that exist:
#   ops/x.h, ops/x.cpp      the differentiable functions
#   ops/kernels/x.h         their kernel slots (tensor/kernels/x.h for those of tensor/)
#   backends/cpu/x.cpp      the kernels; defines void sash::cpu::register_x()
#   backends/cuda/x.cu      the kernels; defines void sash::cuda::register_x()
# Helpers are sources of a backend that register nothing.
#
# Adds the sources to the target `sash`, those of CUDA to SASH_CUDA_SOURCES, and to both a generated
# source that calls every register function. A word without files, and a source without a word, are
# errors: nothing is left out in silence.

function(sash_ops)
  cmake_parse_arguments(arg "" "" "CPU_HELPERS;CUDA_HELPERS" ${ARGN})
  set(patterns ops/*.h ops/*.cpp ops/kernels/*.h tensor/kernels/*.h backends/cpu/*.cpp
      backends/cuda/*.cpp backends/cuda/*.cu)
  list(TRANSFORM patterns PREPEND "${PROJECT_SOURCE_DIR}/")
  file(GLOB present CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" ${patterns})

  set(used "")
  set(cpu_families "")
  set(cuda_families "")
  foreach(family IN LISTS arg_UNPARSED_ARGUMENTS)
    set(files "${present}")
    list(FILTER files INCLUDE REGEX "/${family}\\.(h|cpp|cu)$")
    if(NOT files)
      message(FATAL_ERROR "sash_ops: no file belongs to '${family}'")
    endif()
    list(APPEND used ${files})
    foreach(backend IN ITEMS cpu cuda)
      if(files MATCHES "backends/${backend}/")
        list(APPEND ${backend}_families ${family})
      endif()
    endforeach()
  endforeach()
  foreach(backend IN ITEMS cpu cuda)
    string(TOUPPER ${backend} upper)
    foreach(helper IN LISTS arg_${upper}_HELPERS)
      set(files "${present}")
      list(FILTER files INCLUDE REGEX "^backends/${backend}/${helper}\\.")
      if(NOT files)
        message(FATAL_ERROR "sash_ops: backends/${backend} has no helper '${helper}'")
      endif()
      list(APPEND used ${files})
    endforeach()
  endforeach()

  set(unlisted ${present})
  list(REMOVE_ITEM unlisted ${used})
  list(FILTER unlisted EXCLUDE REGEX "\\.h$")
  if(unlisted)
    message(FATAL_ERROR "sash_ops: no word in CMakeLists.txt stands for ${unlisted}")
  endif()

  list(FILTER used EXCLUDE REGEX "\\.h$")
  set(cuda_sources ${used})
  list(FILTER cuda_sources INCLUDE REGEX "^backends/cuda/")
  list(FILTER used EXCLUDE REGEX "^backends/cuda/")
  set(cpu_sources ${used})
  list(FILTER cpu_sources INCLUDE REGEX "^backends/cpu/")
  # Kernels never look at errno or at the floating-point flags; this alone lets loops vectorise.
  # GCC 12 takes the undefined lanes of its own AVX-512 intrinsics for uninitialised variables.
  set(flags "")
  if(SASH_SANITIZE MATCHES "undefined")
    # A check at every access of an inlined loop takes kernels minutes to compile; the address
    # sanitizer sees bad pointers anyway.
    set(flags ";-fno-sanitize=null,alignment,object-size,pointer-overflow")
  endif()
  set_source_files_properties(${cpu_sources} PROPERTIES
                              COMPILE_OPTIONS
    "-fno-math-errno;-fno-trapping-math;$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized$<SEMICOLON>-Wno-uninitialized>${flags}")

  _sash_registration(cpu "${cpu_families}" [[
#include <string>

#include <sash/core/plugin.h>

namespace sash::cpu {
@declarations@void register_cpu_backend();
}  // namespace sash::cpu

std::string sash::detail::open_cpu() {
  using namespace sash::cpu;
@calls@  register_cpu_backend();  // last: other threads then use the slots without a lock
  return "";
}
]])
  _sash_registration(cuda "${cuda_families}" [[
namespace sash::cuda {
@declarations@void register_ops();

void register_ops() {
@calls@}
}  // namespace sash::cuda
]])
  target_sources(sash PRIVATE ${used} "${PROJECT_BINARY_DIR}/generated/cpu_registration.cpp")
  if(cuda_sources)
    list(APPEND cuda_sources "${PROJECT_BINARY_DIR}/generated/cuda_registration.cpp")
  endif()
  set(SASH_CUDA_SOURCES ${cuda_sources} PARENT_SCOPE)
endfunction()

# Writes generated/<backend>_registration.cpp, which calls register_<family>() for each family.
function(_sash_registration backend families template)
  set(declarations "")
  set(calls "")
  foreach(family IN LISTS families)
    string(APPEND declarations "void register_${family}();\n")
    string(APPEND calls "  register_${family}();\n")
  endforeach()
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/${backend}_registration.cpp"
       CONTENT "// Generated from sash_ops() in CMakeLists.txt.\n${template}" @ONLY)
endfunction()
