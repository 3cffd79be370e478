# Which cards the CUDA backend holds machine code for. A driver refuses PTX of a toolkit newer than
# itself, so PTX is for cards that no machine code serves. Machine code also runs on cards of the
# same major and a higher minor capability; only that for 90a does not.
set(_sash_served 80 86 89 90a 100 120)
# From the oldest PTX a driver can make code for every card; on sm_90 it lacks Hopper's own kernels.
set(_sash_ptx 80-virtual)

# sash_find_cards(<out>): the compute capabilities of this machine's cards that sash can use, such
# as 8.6;9.0.
function(sash_find_cards out)
  find_program(SASH_NVIDIA_SMI nvidia-smi PATHS /usr/lib/wsl/lib
               DOC "The program that is asked which cards there are")
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

# sash_cuda_architectures(<out> <nvcc> CARDS <card>... | ALL): CMAKE_CUDA_ARCHITECTURES for these
# cards, or for every card; what this compiler does not know is left to older machine code or PTX.
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
