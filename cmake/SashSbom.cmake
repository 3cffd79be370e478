# sash_sbom(<file>): a bill of materials in SPDX 2.3 (JSON): what this build of sash is made of, with
# versions and licences. Equal builds give equal files, if SOURCE_DATE_EPOCH is set.
#
# Relationships: STATIC_LINK for what is compiled into libsash or libsash_cuda, DYNAMIC_LINK for what
# is loaded beside it, DEV_DEPENDENCY_OF and TEST_DEPENDENCY_OF for what only examples and tests use.

# Adds one package to `packages` and its place in the build to `relations`, both JSON.
macro(_sash_sbom_package name version licence relation source)
  set(id "SPDXRef-${name}")
  set(_version "${version}")
  if(NOT _version)
    set(_version NOASSERTION)
  endif()
  string(APPEND packages ",
    {\"name\": \"${name}\", \"SPDXID\": \"${id}\", \"versionInfo\": \"${_version}\",
     \"supplier\": \"NOASSERTION\", \"downloadLocation\": \"${source}\", \"filesAnalyzed\": false,
     \"licenseConcluded\": \"${licence}\", \"licenseDeclared\": \"${licence}\",
     \"copyrightText\": \"NOASSERTION\"}")
  set(from SPDXRef-sash)
  set(to ${id})
  if("${relation}" MATCHES "_OF$")
    set(from ${id})
    set(to SPDXRef-sash)
  endif()
  string(APPEND relations ",
    {\"spdxElementId\": \"${from}\", \"relationshipType\": \"${relation}\",
     \"relatedSpdxElement\": \"${to}\"}")
endmacro()

# Reads the number of a macro from a C header, or "".
function(_sash_sbom_number out header name)
  set(number "")
  if(EXISTS "${header}")
    file(STRINGS "${header}" line REGEX "define +${name} +[0-9]+" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+$" number "${line}")
  endif()
  set(${out} "${number}" PARENT_SCOPE)
endfunction()

# A package of sash_compiled_dependency: the system's, or its objects in sash's library. The header has
# the version in three macros.
macro(_sash_sbom_compiled package macros major minor patch licence source)
  get_property(header GLOBAL PROPERTY SASH_HEADER_${package})
  get_property(system GLOBAL PROPERTY SASH_LIBRARY_${package})
  set(numbers "")
  foreach(part IN ITEMS ${major} ${minor} ${patch})
    _sash_sbom_number(number "${header}" ${macros}_${part})
    list(APPEND numbers ${number})
  endforeach()
  list(JOIN numbers "." numbers)
  set(link STATIC_LINK)
  if(system)
    set(link DYNAMIC_LINK)
  endif()
  _sash_sbom_package(${package} "${numbers}" ${licence} ${link} ${source})
endmacro()

function(sash_sbom file)
  set(packages "")
  set(relations "")
  set(texts "")
  foreach(package IN ITEMS Eigen3 nlohmann_json CLI11 doctest)
    get_property(${package}_version GLOBAL PROPERTY SASH_VERSION_${package})
  endforeach()
  _sash_sbom_package(Eigen "${Eigen3_version}" MPL-2.0 STATIC_LINK https://gitlab.com/libeigen/eigen)
  _sash_sbom_package(nlohmann-json "${nlohmann_json_version}" MIT STATIC_LINK
                     https://github.com/nlohmann/json)
  if(SASH_TEXT)
    _sash_sbom_compiled(oniguruma ONIGURUMA_VERSION MAJOR MINOR TEENY BSD-2-Clause
                        https://github.com/kkos/oniguruma)
    _sash_sbom_compiled(utf8proc UTF8PROC_VERSION MAJOR MINOR PATCH MIT
                        https://github.com/JuliaStrings/utf8proc)
  endif()
  if(SASH_EXAMPLES OR SASH_BENCHMARKS)
    _sash_sbom_package(CLI11 "${CLI11_version}" BSD-3-Clause DEV_DEPENDENCY_OF
                       https://github.com/CLIUtils/CLI11)
  endif()
  if(SASH_TESTS)
    _sash_sbom_package(doctest "${doctest_version}" MIT TEST_DEPENDENCY_OF
                       https://github.com/doctest/doctest)
  endif()
  if(SASH_HAS_MPI)
    _sash_sbom_package(MPI "${MPI_CXX_VERSION}" NOASSERTION DYNAMIC_LINK https://www.mpi-forum.org)
  endif()
  if(SASH_HAS_CUDA)
    list(GET CUDAToolkit_INCLUDE_DIRS 0 include)
    _sash_sbom_number(runtime "${include}/cuda_runtime_api.h" CUDART_VERSION)
    if(runtime)
      math(EXPR major "${runtime} / 1000")
      math(EXPR minor "${runtime} % 1000 / 10")
      set(runtime ${major}.${minor})
    endif()
    _sash_sbom_number(major "${include}/cublas_api.h" CUBLAS_VER_MAJOR)
    _sash_sbom_number(minor "${include}/cublas_api.h" CUBLAS_VER_MINOR)
    _sash_sbom_number(patch "${include}/cublas_api.h" CUBLAS_VER_PATCH)
    set(nvidia https://developer.nvidia.com/cuda-toolkit)
    _sash_sbom_package(CUDA-Runtime "${runtime}" LicenseRef-CUDA-EULA STATIC_LINK ${nvidia})
    _sash_sbom_package(cuBLAS "${major}.${minor}.${patch}" LicenseRef-CUDA-EULA DYNAMIC_LINK
                       ${nvidia})
    _sash_sbom_package(NVTX 3 Apache-2.0 STATIC_LINK https://github.com/NVIDIA/NVTX)
    set(texts [[
  "hasExtractedLicensingInfos": [
    {"licenseId": "LicenseRef-CUDA-EULA", "name": "NVIDIA CUDA Toolkit EULA",
     "extractedText": "https://docs.nvidia.com/cuda/eula/index.html"}
  ],
]])
  endif()

  string(MD5 digest "${PROJECT_VERSION} ${packages} ${CMAKE_CXX_COMPILER_VERSION} ${SASH_LEVELS}")
  string(TIMESTAMP created UTC)
  file(CONFIGURE OUTPUT "${file}" @ONLY CONTENT [[{
  "spdxVersion": "SPDX-2.3",
  "dataLicense": "CC0-1.0",
  "SPDXID": "SPDXRef-DOCUMENT",
  "name": "sash-@PROJECT_VERSION@",
  "documentNamespace": "https://spdx.org/spdxdocs/sash-@PROJECT_VERSION@-@digest@",
  "creationInfo": {"created": "@created@", "creators": ["Tool: CMake-@CMAKE_VERSION@"]},
  "comment": "Compiled by @CMAKE_CXX_COMPILER_ID@ @CMAKE_CXX_COMPILER_VERSION@ for @CMAKE_SYSTEM_PROCESSOR@.",
@texts@  "packages": [
    {"name": "sash", "SPDXID": "SPDXRef-sash", "versionInfo": "@PROJECT_VERSION@",
     "supplier": "NOASSERTION", "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
     "licenseConcluded": "MIT", "licenseDeclared": "MIT",
     "copyrightText": "Copyright (c) 2026 the sash authors"}@packages@
  ],
  "relationships": [
    {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
     "relatedSpdxElement": "SPDXRef-sash"}@relations@
  ]
}
]])
  file(READ "${file}" text)
  string(JSON kind ERROR_VARIABLE error TYPE "${text}" packages)
  if(error)
    message(FATAL_ERROR "sash: ${file} is no JSON: ${error}")
  endif()
endfunction()
