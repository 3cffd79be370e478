#include <sash/sash.h>

#include <cstdio>
#include <vector>

// Runs a gradient through the installed library.
int main() {
  const sash::Tensor x = sash::full({2, 3}, 3.0, {.requires_grad = true});
  (x * x).sum().backward();
  const auto gradient = x.grad().to_vector<float>();
  for (const float value : gradient) {
    if (value != 6.0F) {
      std::printf("expected a gradient of 6, got %g\n", static_cast<double>(value));
      return 1;
    }
  }
  std::printf("gradient of %zu elements as expected, on %s\n", gradient.size(),
              sash::backend(sash::kCPU.type).description(sash::kCPU).c_str());
  return 0;
}
