# Within a project that sets no build type, nothing would be optimised. Ours is, by options of our
# own targets: the build type is that project's.
set(sash_optimise "")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND NOT CMAKE_CXX_FLAGS MATCHES "(^| )-O")
  set(sash_optimise -O3 -DNDEBUG)
  message(STATUS "sash: no build type is set; sash itself is compiled with -O3 -DNDEBUG")
endif()

# sash_compile_options(target): visibility, warnings and the default above, for our targets only.
function(sash_compile_options target)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  set(cxx ${sash_optimise} -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    list(APPEND cxx -Wno-restrict)  # warns of "literal" + std::string (GCC bug 105651)
  endif()
  set(cuda ${sash_optimise} -Xcompiler=-Wall,-Wextra,-Wshadow)
  if(SASH_WERROR)
    list(APPEND cxx -Werror)
    list(APPEND cuda -Xcompiler=-Werror --Werror=all-warnings)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${cxx}>"
                         "$<$<COMPILE_LANGUAGE:CUDA>:${cuda}>")
endfunction()

# sash_sanitize(target): instruments the target and, through it, what links it in this build.
function(sash_sanitize target)
  if(NOT SASH_SANITIZE)
    return()
  endif()
  set(flags -fsanitize=${SASH_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(${target} PUBLIC "$<$<COMPILE_LANGUAGE:CXX>:$<BUILD_INTERFACE:${flags}>>")
  target_link_options(${target} PUBLIC "$<BUILD_INTERFACE:${flags}>")
endfunction()
