# If the parent project sets no build type, optimise our own targets by their compile options. The
# project's build type stays unset.
set(sash_optimise "")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND NOT CMAKE_CXX_FLAGS MATCHES "(^| )-O")
  set(sash_optimise -O3 -DNDEBUG)
  message(STATUS "sash: no build type is set; sash itself is compiled with -O3 -DNDEBUG")
endif()

# sash_compile_options(target): sets visibility, warnings and the default above on one target.
function(sash_compile_options target)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  set(cxx ${sash_optimise} -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    list(APPEND cxx -Wno-restrict)  # false warning on "literal" + std::string (GCC bug 105651)
  endif()
  set(cuda ${sash_optimise} -Xcompiler=-Wall,-Wextra,-Wshadow)
  if(SASH_WERROR)
    list(APPEND cxx -Werror)
    list(APPEND cuda -Xcompiler=-Werror --Werror=all-warnings)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${cxx}>"
                         "$<$<COMPILE_LANGUAGE:CUDA>:${cuda}>")
endfunction()

# sash_sanitize(target): instruments the target. The thread sanitizer has to see all code, so targets
# of this build that link it are instrumented, too; otherwise they compile in half the time without.
function(sash_sanitize target)
  if(NOT SASH_SANITIZE)
    return()
  endif()
  set(flags -fsanitize=${SASH_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  set(scope PRIVATE)
  if(SASH_SANITIZE MATCHES "thread")
    set(scope PUBLIC)
  endif()
  target_compile_options(${target} ${scope}
                         "$<$<COMPILE_LANGUAGE:CXX>:$<BUILD_INTERFACE:${flags}>>")
  target_link_options(${target} PUBLIC "$<BUILD_INTERFACE:${flags}>")
endfunction()
