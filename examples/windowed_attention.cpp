#include <cstdio>

#include <sash/sash.h>

using namespace sash;

int main() {
  const TensorOptions variable{.device = "auto", .requires_grad = true};
  const Tensor q = randn({1, 8, 2048, 64}, variable);  // batch, heads, tokens, features
  const Tensor k = randn({1, 2, 2048, 64}, variable);  // 2 key heads, each read by 4 query heads
  const Tensor v = randn({1, 2, 2048, 64}, variable);

  // Each token sees the last 256 tokens, itself included, and the first 4; never a later one.
  const AttentionMask mask =
      (AttentionMask::causal_window(256) | AttentionMask::sinks(4)) & AttentionMask::causal();
  const Tensor o = attention(q, k, v, {.mask = mask});
  (o * o).mean().backward();  // the 2048 x 2048 scores are never stored

  std::printf("%s%.0f %% of dense attention's work\n", mask_picture(mask, 2048, 2048, 32).c_str(),
              100 * mask_statistics(mask, 2048, 2048).share_of_dense());
}
