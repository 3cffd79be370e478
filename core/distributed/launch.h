#pragma once

#include <string>
#include <vector>

#include "../export.h"

namespace sash::distributed {

/// Starts `command`, a program and its arguments, `ranks` times on this host, with the variables of
/// torchrun: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, a free port. Each process
/// has an equal part of the cores in SASH_NUM_THREADS, unless that is set. Waits for all. If one
/// fails, the others have 5 s to end, then get SIGTERM, and SIGKILL 5 s later. SIGINT, SIGTERM and
/// SIGHUP are passed on.
///
/// Returns the exit status of the first process that failed (128 + signal for a killed one), else
/// 0. `ValueError` for no command or `ranks` below 1, `IoError` if a process cannot be started.
///
/// The CPU's collectives need processes that MPI has started: `mpirun -n 2 program`.
SASH_API int launch(int ranks, const std::vector<std::string>& command);

/// Starts this program `ranks` times with the arguments that it has.
SASH_API int launch_again(int ranks);

}  // namespace sash::distributed
