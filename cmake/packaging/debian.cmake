# CPack runs this before it makes Debian packages. Gives each its documents in the folder of its own
# name, and gives up those of the archive.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()
file(READ "${CPACK_RESOURCE_FILE_LICENSE}" licence)
string(REGEX REPLACE "^.*(Copyright[^\n]+)\n+(.*[^\n])\n*$" "\\2" text "${licence}")
set(holder "${CMAKE_MATCH_1}")
string(REGEX REPLACE "\n\n" "\n.\n" text "${text}")
string(REPLACE "\n" "\n " text "${text}")
set(copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: sash
Comment: libsash contains code of Eigen (MPL-2.0, https://gitlab.com/libeigen/eigen) and
 nlohmann/json (Expat); libsash_cuda contains NVIDIA's CUDA runtime (CUDA Toolkit EULA). Their versions
 are in sash.spdx.json, in the package of libsash.

Files: *
${holder}
License: Expat
 ${text}
")
string(REPLACE "Copyright (c)" "Copyright:" copyright "${copyright}")
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} upper)
  set(package "${CPACK_DEBIAN_${upper}_PACKAGE_NAME}")
  set(share "${CPACK_TEMPORARY_DIRECTORY}/${component}/usr/share/doc")
  set(folder "${share}/${package}")
  file(MAKE_DIRECTORY "${folder}")
  if(EXISTS "${share}/sash/sash.spdx.json")
    file(RENAME "${share}/sash/sash.spdx.json" "${folder}/sash.spdx.json")
  endif()
  file(REMOVE_RECURSE "${share}/sash")
  # Debian's packages find each other in the system's folders.
  file(GLOB_RECURSE libraries "${CPACK_TEMPORARY_DIRECTORY}/${component}/usr/lib/*.so.*.*.*"
       "${CPACK_TEMPORARY_DIRECTORY}/${component}/usr/lib/libsash_cuda.so")
  foreach(library IN LISTS libraries)
    file(RPATH_REMOVE FILE "${library}")
  endforeach()
  file(WRITE "${folder}/copyright" "${copyright}")
  set(changelog "${CPACK_TEMPORARY_DIRECTORY}/changelog")
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  file(WRITE "${changelog}" "sash (${CPACK_PACKAGE_VERSION}) unstable; urgency=low

  * Release ${CPACK_PACKAGE_VERSION}.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  execute_process(COMMAND gzip -9n INPUT_FILE "${changelog}"
                  OUTPUT_FILE "${folder}/changelog.gz" COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE "${changelog}")
endforeach()
