#pragma once

#include <string>

#include "export.h"

/// How the registry reaches each backend. Every function returns an empty string once the backend
/// is installed, else why it cannot be.
namespace sash::detail {

/// Generated from the list of ops: fills the CPU's slots and installs its backend.
std::string open_cpu();

/// Opens `libsash_cuda`: at `SASH_CUDA_LIBRARY`, else beside libsash (or in the folder the build
/// put it in). In a static build, calls the CUDA part directly if it is linked.
std::string open_cuda();

/// `open_cuda` with the library's path given; for tests.
SASH_API std::string open_cuda_library(const std::string& path);

}  // namespace sash::detail
