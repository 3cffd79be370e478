#pragma once

#include <functional>
#include <string>

#include "export.h"

namespace sash::distributed {

/// The process of a job, as its launcher describes it.
struct Place {
  int rank = 0;        ///< number of this process, from 0
  int size = 1;        ///< processes of the job
  int local_rank = 0;  ///< number of the process on its host, and of its CUDA card
  std::string host{};  ///< of rank 0
  int port = 0;        ///< on which rank 0 listens
};

/// Returns the value of an environment variable, or null.
using Variables = std::function<const char*(const char* name)>;

/// Reads the variables of torchrun and `sash launch` (RANK, WORLD_SIZE, LOCAL_RANK), of Open MPI
/// (OMPI_COMM_WORLD_*), of MPICH and its like (PMI_*), or of Slurm (SLURM_*, set by srun). The
/// first of these that is set counts. A job of one process if none is set.
///
/// Rank 0's host is MASTER_ADDR, else Slurm's first host, else this host. The port is SASH_PORT,
/// else MASTER_PORT + 1, else a number that depends on the job alone. `ValueError` that names the
/// variable if one is missing, is not a number, or is out of range.
SASH_API Place find_place(const Variables& variables);
/// The same from the environment of the process.
SASH_API Place find_place();

}  // namespace sash::distributed
