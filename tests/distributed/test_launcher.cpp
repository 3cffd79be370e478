#include <doctest/doctest.h>
#include <sash/core/error.h>
#include <sash/core/launcher.h>

#include <map>
#include <string>

#include "check_error.h"

using sash::distributed::find_place;
using sash::distributed::Place;

namespace {

Place place_of(const std::map<std::string, std::string>& variables) {
  return find_place([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void check(const Place& place, int rank, int size, int local_rank, const std::string& host,
           int port) {
  CHECK(place.rank == rank);
  CHECK(place.size == size);
  CHECK(place.local_rank == local_rank);
  CHECK(place.host == host);
  CHECK(place.port == port);
}

}  // namespace

TEST_CASE("launcher: a process that nobody launched is alone") {
  check(place_of({}), 0, 1, 0, "", 0);
  check(place_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), 0, 1, 0, "", 0);
  // A batch script of Slurm, outside srun.
  check(place_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}), 0, 1, 0, "", 0);
}

TEST_CASE("launcher: torchrun") {
  const std::map<std::string, std::string> torchrun = {{"RANK", "3"},
                                                       {"WORLD_SIZE", "4"},
                                                       {"LOCAL_RANK", "1"},
                                                       {"MASTER_ADDR", "10.0.0.1"},
                                                       {"MASTER_PORT", "29500"}};
  check(place_of(torchrun), 3, 4, 1, "10.0.0.1", 29501);
  std::map<std::string, std::string> other = torchrun;
  other["SASH_PORT"] = "1234";
  check(place_of(other), 3, 4, 1, "10.0.0.1", 1234);
}

TEST_CASE("launcher: mpirun and srun") {
  const Place open_mpi = place_of({{"OMPI_COMM_WORLD_RANK", "1"},
                                   {"OMPI_COMM_WORLD_SIZE", "2"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                   {"PMIX_NAMESPACE", "1234"}});
  check(open_mpi, 1, 2, 1, "127.0.0.1", open_mpi.port);
  CHECK(open_mpi.port >= 20000);
  CHECK(open_mpi.port < 32768);
  const Place mpich = place_of({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "0"}});
  check(mpich, 2, 3, 0, "127.0.0.1", mpich.port);
  std::map<std::string, std::string> slurm = {{"SLURM_PROCID", "5"},
                                              {"SLURM_STEP_NUM_TASKS", "8"},
                                              {"SLURM_LOCALID", "1"},
                                              {"SLURM_STEP_NODELIST", "node[03-06,9],other"},
                                              {"SLURM_JOB_ID", "77"}};
  const Place of_slurm = place_of(slurm);
  check(of_slurm, 5, 8, 1, "node03", of_slurm.port);
  slurm["SLURM_STEP_NODELIST"] = "a1,a[2-3]";
  CHECK(place_of(slurm).host == "a1");
  slurm["SLURM_JOB_ID"] = "78";
  CHECK(place_of(slurm).port != of_slurm.port);
}

TEST_CASE("launcher: variables that no launcher sets so") {
  using sash::ValueError;
  CHECK_ERROR(place_of({{"RANK", "0"}}), ValueError,
              "distributed: expected the launcher to set WORLD_SIZE, got no such variable");
  CHECK_ERROR(place_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), ValueError,
              "distributed: expected a number in [0, 1] in the variable RANK, got '2'");
  CHECK_ERROR(place_of({{"RANK", "1x"}, {"WORLD_SIZE", "2"}}), ValueError,
              "distributed: expected a number in [0, 1] in the variable RANK, got '1x'");
  CHECK_ERROR(
      place_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"SASH_PORT", "70000"}}), ValueError,
      "distributed: expected a number in [1, 65535] in the variable SASH_PORT, got '70000'");
  for (const std::string port : {"0", "99999999999", ""}) {
    CHECK_ERROR(place_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"SASH_PORT", port}}), ValueError,
                "distributed: expected a number in [1, 65535] in the variable SASH_PORT, got '" +
                    port + "'");
  }
  // Slurm's list of hosts is for Slurm's ranks.
  CHECK(place_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"SLURM_STEP_NODELIST", "a[1-2]"}}).host ==
        "127.0.0.1");
}
