// Graphs destroyed after main, and after the thread_local objects of their thread.
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <sash/ops/elementwise/binary.h>
#include <sash/tensor/factories.h>

using namespace sash;

namespace {

Tensor chain(const Tensor& x) {
  Tensor y = x;
  for (int i = 0; i < 1000; ++i) y = y * 1.0 + x * 0.0;
  return y;
}

struct Late {
  Tensor x, visited, dropped;

  void fill() {
    x = tensor<double>({2}, {.requires_grad = true});
    visited = chain(x);
    dropped = chain(x);
    chain(x);  // destroyed here
  }
  ~Late() {
    visited.backward();
    if (x.grad().item<double>() == 1) return;
    std::fputs("wrong gradient\n", stderr);
    std::abort();
  }
};

Late of_program;
thread_local Late of_thread;

}  // namespace

int main() {
  of_program.fill();
  std::thread([] { of_thread.fill(); }).join();
}
