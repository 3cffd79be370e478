// A job in which one rank fails: sash_failing_rank <how> <rank>. The others wait for it for ever,
// and must end within seconds. tests/distributed/failures.sh runs it.
#include <sash/core/error.h>
#include <sash/tensor/distributed/group.h>
#include <sash/tensor/factories.h>

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  const std::string how = argv[1];
  const sash::distributed::Group world = sash::distributed::world();
  if (how == "wait") return sleep(4) == 0 ? 0 : 2;  // without collectives, as below
  if (how == "alien") std::thread([] { throw 42; }).join();
  const sash::Tensor x = sash::ones({1000});
  world.all_reduce(x);
  if (world.rank() == std::atoi(argv[2])) {
    if (how == "throw") throw std::runtime_error("no space left on device");
    if (how == "status") return 3;
    if (how == "kill") std::raise(SIGKILL);
    if (how == "stop") {
      std::raise(SIGSTOP);
      for (;;) pause();  // mpirun continues it to end it
    }
    if (how == "leave") return 0;
    return 2;
  }
  if (how == "none") return 0;
  for (;;) world.all_reduce(x);
} catch (const sash::Error& error) {  // there is no job
  std::fprintf(stderr, "%s\n", error.what());
  return 4;
}
