// Tests that need several processes: mpirun -n 2 sash_rank_tests. SASH_DEVICE says where they run.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <sash/tensor/distributed/group.h>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  try {
    const sash::distributed::Group world = sash::distributed::world();
    std::printf("rank %d of %d\n", world.rank(), world.size());
    doctest::Context context(argc, argv);
    return context.run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
