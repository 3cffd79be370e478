#include "launcher.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "error.h"
#include "quote.h"

namespace sash::distributed {
namespace {

constexpr const char* kOp = "distributed";
constexpr int kMostRanks = 1 << 20;

// The variables in which a launcher says the place of a process.
struct Launcher {
  const char* rank;
  const char* size;
  const char* local_rank;
};

constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    // Not SLURM_NTASKS, which a batch script has too.
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
};

int read_number(const char* name, const char* text, int least, int most) {
  const std::string_view digits(text);
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error == std::errc() && end == digits.data() + digits.size() && number >= least &&
      number <= most) {
    return number;
  }
  throw ValueError(kOp,
                   std::string("a number in [") + std::to_string(least) + ", " +
                       std::to_string(most) + "] in the variable " + name,
                   in_quotes(text));
}

int read_variable(const Variables& variables, const char* name, int least, int most) {
  const char* const text = variables(name);
  if (!text) {
    throw ValueError(kOp, std::string("the launcher to set ") + name, "no such variable");
  }
  return read_number(name, text, least, most);
}

// The first host of Slurm's list: "node[03-07,9],other" gives "node03".
std::string first_host(std::string_view list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  if (bracket == std::string_view::npos || comma < bracket)
    return std::string(list.substr(0, comma));
  const std::string_view numbers = list.substr(bracket + 1);
  return std::string(list.substr(0, bracket)) +
         std::string(numbers.substr(0, numbers.find_first_of(",-]")));
}

// A port in [20000, 32768) for a job's name, so that two jobs of a host rarely collide. Linux takes
// the ports from 32768 on for outgoing connections.
int port_of(std::string_view job) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 20000 + static_cast<int>(hash % 12768u);
}

int find_port(const Variables& variables) {
  constexpr int kMostPort = std::numeric_limits<uint16_t>::max();
  if (const char* text = variables("SASH_PORT"))
    return read_number("SASH_PORT", text, 1, kMostPort);
  if (const char* text = variables("MASTER_PORT")) {
    return read_number("MASTER_PORT", text, 1, kMostPort - 1) + 1;  // torchrun listens on it
  }
  std::string job;
  for (const char* name : {"PMIX_NAMESPACE", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    if (const char* text = variables(name)) job += std::string(text) + ".";
  }
  return port_of(job);
}

}  // namespace

Place find_place(const Variables& variables) {
  for (const Launcher& launcher : kLaunchers) {
    if (!variables(launcher.rank) || (!variables(launcher.size) && &launcher != kLaunchers))
      continue;
    Place place;
    place.size = read_variable(variables, launcher.size, 1, kMostRanks);
    place.rank = read_variable(variables, launcher.rank, 0, place.size - 1);
    if (place.size == 1) return {};
    place.local_rank = variables(launcher.local_rank)
                           ? read_variable(variables, launcher.local_rank, 0, place.size - 1)
                           : place.rank;
    const char* const nodes = variables("SLURM_STEP_NODELIST");
    if (const char* host = variables("MASTER_ADDR")) {
      place.host = host;
    } else if (nodes && std::string_view(launcher.rank).starts_with("SLURM")) {
      place.host = first_host(nodes);
    } else {
      place.host = "127.0.0.1";
    }
    place.port = find_port(variables);
    return place;
  }
  return {};
}

Place find_place() {
  return find_place([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace sash::distributed
