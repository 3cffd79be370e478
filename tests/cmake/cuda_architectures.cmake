# cmake -Dscratch=<folder> -P cuda_architectures.cmake: what is compiled for which cards, told by
# programs that answer like nvcc and nvidia-smi.
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/SashCudaArchitectures.cmake")

function(expect what expected got)
  if(NOT got STREQUAL expected)
    message(SEND_ERROR "${what}: expected '${expected}', got '${got}'")
  endif()
endfunction()

# A program that prints `text` and exits with `status`.
function(program path text status)
  file(WRITE "${path}" "#!/bin/sh\nprintf '${text}'\nexit ${status}\n")
  file(CHMOD "${path}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

set(nvcc "${scratch}/nvcc")
function(expect_architectures expected)
  sash_cuda_architectures(got "${nvcc}" ${ARGN})
  expect("${ARGN}" "${expected}" "${got}")
endfunction()

program("${nvcc}" [[sm_75\nsm_80\nsm_86\nsm_87\nsm_89\nsm_90\nsm_100\nsm_110\nsm_103\nsm_120\nsm_121\n]] 0)
expect_architectures("80-real;86-real;89-real;90a-real;100-real;120-real;80-virtual" ALL)
expect_architectures("80-real" CARDS 8.0)
expect_architectures("90a-real" CARDS 9.0)
expect_architectures("86-real;90a-real;121-real" CARDS 8.6 9.0 12.1)
expect_architectures("120-real;80-virtual" CARDS 12.0 13.0)  # a card after this compiler

program("${nvcc}" [[sm_80\nsm_86\nsm_87\nsm_89\nsm_90\nsm_90a\n]] 0)
expect_architectures("80-real;86-real;89-real;90a-real;80-virtual" ALL)
expect_architectures("80-virtual" CARDS 12.0)
program("${nvcc}" [[sm_100\nsm_120\n]] 0)
expect_architectures("120-real" CARDS 12.1)  # 12.0's code runs on it

# Toolkits that are too old.
foreach(release IN ITEMS 11.8 12.0 12.1 12.5 13.0)
  program("${nvcc}" "Cuda compilation tools, release ${release}, V${release}.1" 0)
  sash_check_toolkit(got "${nvcc}")
  set(expected "")
  if(release VERSION_LESS 12.1)
    set(expected "${nvcc} is of CUDA ${release}, and sash needs 12.1 or later")
  endif()
  expect("release ${release}" "${expected}" "${got}")
endforeach()

function(expect_cards expected text status)
  set(SASH_NVIDIA_SMI "${scratch}/nvidia-smi")
  program("${SASH_NVIDIA_SMI}" "${text}" ${status})
  sash_find_cards(got)
  expect("cards of '${text}'" "${expected}" "${got}")
endfunction()

expect_cards("9.0" [[9.0\n]] 0)
expect_cards("8.6;9.0;12.0" [[12.0\n9.0\n8.6\n9.0\n]] 0)
expect_cards("" [[7.5\n]] 0)
expect_cards("" [[No devices were found\n]] 6)
expect_cards("" [[NVIDIA-SMI has failed because it could not reach driver 535.86\n]] 9)
set(SASH_NVIDIA_SMI "${scratch}/no such program")
sash_find_cards(got)
expect("cards without nvidia-smi" "" "${got}")
