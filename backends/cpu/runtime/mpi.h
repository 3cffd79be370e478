#pragma once

#include <memory>

#include "../../../core/distributed/engine.h"

namespace sash::cpu {

/// Collectives of the CPU, by MPI: libsash_mpi, a plug-in beside libsash, because few programs need
/// MPI. `NotImplemented` if there is no plug-in, or if MPI has not started this process as number
/// `rank` of `size`.
std::unique_ptr<distributed::Engine> open_mpi(int rank, int size);

/// The signature of `sash_make_mpi_engine`, the one function that libsash_mpi exports. Returns null
/// and sets `reason` if MPI cannot be used.
using MakeMpiEngine = distributed::Engine* (*)(unsigned abi_version, int rank, int size,
                                               const char** reason);

}  // namespace sash::cpu
