#include "mpi.h"

#include <dlfcn.h>

#include <string>

#include "../../../core/backend/plugin.h"
#include "../../../core/error.h"

namespace sash::cpu {
namespace {

MakeMpiEngine find_entry() {
  const std::string path = detail::library_folder() + "/libsash_mpi.so";
  // RTLD_GLOBAL: Open MPI opens parts of its own that look for its symbols.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
  if (!library) {
    const char* const error = dlerror();
    throw NotImplemented("distributed",
                         "collectives of the CPU need libsash_mpi.so, which is "
                         "built where CMake finds MPI: " +
                             std::string(error ? error : path));
  }
  return reinterpret_cast<MakeMpiEngine>(dlsym(library, "sash_make_mpi_engine"));
}

}  // namespace

std::unique_ptr<distributed::Engine> open_mpi(int rank, int size) {
  const MakeMpiEngine entry = find_entry();
  const char* reason = "libsash_mpi.so is not a plug-in of sash";
  distributed::Engine* const made = entry ? entry(kPluginAbiVersion, rank, size, &reason) : nullptr;
  if (!made) throw NotImplemented("distributed", reason);
  return std::unique_ptr<distributed::Engine>(made);
}

}  // namespace sash::cpu
