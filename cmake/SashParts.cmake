# Parts of sash are libraries of their own beside libsash: sash_<part>, for programs sash::<part>. The
# option SASH_<PART> builds one. sash::all links libsash and every part that is built.
include(CMakeDependentOption)

# sash_part(<name> <description> FOLDERS <folder>... [NEEDS <part>...] [LINKS <package>...])
#
# Declares a part of all sources in these folders. It links libsash, the parts that it needs and,
# privately, packages of sash_compiled_dependency. sash_add_parts() makes the targets.
macro(sash_part name description)
  cmake_parse_arguments(arg "" "" "FOLDERS;NEEDS;LINKS" ${ARGN})
  string(TOUPPER SASH_${name} option)
  list(TRANSFORM arg_NEEDS TOUPPER OUTPUT_VARIABLE needed)
  list(TRANSFORM needed PREPEND SASH_)
  cmake_dependent_option(${option} "Build ${description}: the library sash_${name}" ON "${needed}"
                         OFF)
  list(APPEND SASH_PART_FOLDERS ${arg_FOLDERS})
  if(${option})
    list(APPEND SASH_PARTS ${name})
    foreach(list IN ITEMS FOLDERS NEEDS LINKS)
      set(SASH_PART_${list}_${name} ${arg_${list}})
    endforeach()
    set(SASH_PART_DESCRIPTION_${name} "${description}")
  else()
    list(APPEND SASH_FOLDERS_LEFT_OUT ${arg_FOLDERS})
  endif()
endmacro()

# Makes the targets of all parts, and sash::all.
function(sash_add_parts)
  add_library(sash_all INTERFACE)
  add_library(sash::all ALIAS sash_all)
  target_link_libraries(sash_all INTERFACE sash)
  foreach(part IN LISTS SASH_PARTS)
    set(target sash_${part})
    list(TRANSFORM SASH_PART_FOLDERS_${part} REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/\\1/*.cpp"
         OUTPUT_VARIABLE patterns)
    file(GLOB sources CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" ${patterns})
    sash_unity(sources ${sources})
    add_library(${target} ${sources})
    add_library(sash::${part} ALIAS ${target})
    sash_library_options(${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${part})
    list(TRANSFORM SASH_PART_NEEDS_${part} PREPEND sash_ OUTPUT_VARIABLE needs)
    target_link_libraries(${target} PUBLIC sash ${needs})
    foreach(package IN LISTS SASH_PART_LINKS_${part})
      # An installed static library links the system's library by its name.
      get_property(library GLOBAL PROPERTY SASH_LIBRARY_${package})
      target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:sash_${package}>
                            $<INSTALL_INTERFACE:${library}>)
    endforeach()
    target_link_libraries(sash_all INTERFACE ${target})
  endforeach()
endfunction()
