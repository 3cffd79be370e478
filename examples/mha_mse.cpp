#include <cstdio>

#include <sash/sash.h>

using namespace sash;

// Multi-head attention from queries to keys and values of other lengths and widths, with padding
// and dropout, trained against the mean squared error.
int main() {
  set_default_device("auto");
  manual_seed(1);
  const int64_t batch = 8, queries = 12, keys = 16, dim = 32;
  nn::MultiheadAttention attention(dim, 4, {.dropout = 0.1, .kdim = 24, .vdim = 20});
  const Tensor q = randn({batch, queries, dim}), k = randn({batch, keys, 24}),
               v = randn({batch, keys, 20}), target = randn({batch, queries, dim}) * 0.1;
  // Of each item, the first keys are real, the rest padding.
  const Tensor lengths = tensor(std::vector<int32_t>{16, 12, 9, 16, 5, 7, 16, 3}, {batch});
  const AttentionMask mask = AttentionMask::key_lengths(lengths);

  optim::AdamW optimizer(attention.parameters(), {.lr = 1e-2, .weight_decay = 0});
  double first = 0, last = 0;
  for (int step = 0; step <= 200; ++step) {
    const Tensor loss = mse_loss(attention(q, k, v, mask), target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
    if (step % 50 == 0) std::printf("step %3d  mse %.5f\n", step, last);
  }

  attention.eval();
  const nn::AttentionWithWeights seen = attention.forward_with_weights(q, k, v, mask);
  std::printf("weights of the padding of item 7: %.1f\n",
              seen.weights.select(0, 7).narrow(1, 3, keys - 3).sum().item<double>());
  return last < first / 2 ? 0 : 1;
}
