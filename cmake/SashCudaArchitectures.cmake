# Architectures with machine code in the CUDA backend. Machine code runs on GPUs of the same major
# and the same or a higher minor compute capability; code for 90a runs on 9.0 only. PTX is for all
# other GPUs. Machine code is preferred because a driver refuses PTX from a newer toolkit.
set(_sash_served 80 86 89 90a 100 120)
# A driver can compile this PTX for every newer GPU. It does not contain the Hopper kernels.
set(_sash_ptx 80-virtual)

# sash_check_toolkit(<out> <nvcc>): "", or why this toolkit is too old. 12.0 is the first with C++20
# and sm_90a, 12.1 with PTX 8.1, whose `red.global.add.v4.f32` the Hopper kernels use.
function(sash_check_toolkit out nvcc)
  set(oldest 12.1)
  set(${out} "" PARENT_SCOPE)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE text ERROR_QUIET)
  if(text MATCHES "release ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_LESS oldest)
    set(${out} "${nvcc} is of CUDA ${CMAKE_MATCH_1}, and sash needs ${oldest} or later" PARENT_SCOPE)
  endif()
endfunction()

# sash_find_cards(<out>): compute capabilities of this machine's GPUs, for example 8.6;9.0. GPUs
# below 8.0 are left out.
function(sash_find_cards out)
  find_program(SASH_NVIDIA_SMI nvidia-smi PATHS /usr/lib/wsl/lib
               DOC "The program that lists the GPUs")
  mark_as_advanced(SASH_NVIDIA_SMI)
  set(cards "")
  if(SASH_NVIDIA_SMI)
    execute_process(COMMAND "${SASH_NVIDIA_SMI}" --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE cards ERROR_QUIET TIMEOUT 60)
    string(REGEX REPLACE "[\r\n]+" ";" cards "${cards}")
    list(FILTER cards INCLUDE REGEX "^([89]|[1-9][0-9])\\.[0-9]$")
    list(REMOVE_DUPLICATES cards)
    list(SORT cards COMPARE NATURAL)
  endif()
  set(${out} "${cards}" PARENT_SCOPE)
endfunction()

# sash_cuda_architectures(<out> <nvcc> CARDS <capability>... | ALL): CMAKE_CUDA_ARCHITECTURES for
# these GPUs, or for all. For a GPU newer than the compiler: machine code of an older GPU with the
# same major capability, or PTX.
function(sash_cuda_architectures out nvcc)
  cmake_parse_arguments(PARSE_ARGV 2 arg "ALL" "" "CARDS")
  execute_process(COMMAND "${nvcc}" --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  string(REGEX MATCHALL "sm_[0-9]+" known "${known}")
  list(TRANSFORM known REPLACE "sm_" "")
  set(wanted "")
  set(ptx "")
  if(arg_ALL)
    foreach(code IN LISTS _sash_served)
      string(REPLACE a "" number "${code}")
      if(number IN_LIST known)
        list(APPEND wanted ${code}-real)
      endif()
    endforeach()
    set(ptx ${_sash_ptx})
  endif()
  foreach(card IN LISTS arg_CARDS)
    string(REGEX MATCH "^([0-9]+)\\.([0-9])" card "${card}")
    set(best -1)
    foreach(minor RANGE ${CMAKE_MATCH_2})
      if(${CMAKE_MATCH_1}${minor} IN_LIST known)
        set(best ${CMAKE_MATCH_1}${minor})
      endif()
    endforeach()
    if(best EQUAL -1)
      set(ptx ${_sash_ptx})
    elseif(best EQUAL 90)
      list(APPEND wanted 90a-real)
    else()
      list(APPEND wanted ${best}-real)
    endif()
  endforeach()
  list(APPEND wanted ${ptx})
  list(REMOVE_DUPLICATES wanted)
  set(${out} "${wanted}" PARENT_SCOPE)
endfunction()
