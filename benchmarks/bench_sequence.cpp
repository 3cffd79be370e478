// Times attention over a sequence that ranks share (nn::SequenceParallel) against attention over a
// rank's stretch alone. Prints one line of JSON per case:
//
//     sash launch -n 2 bench_sequence --device cuda --tokens 1048576

#include <sash/nn/attention/sequence_parallel.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "bench.h"

using namespace sash;

namespace {

struct Case {
  const char* name;
  AttentionMask mask;
};

void run(const Case& c, const nn::SequenceParallel& split, int64_t heads, int64_t width,
         Device device) {
  const TensorOptions options{.dtype = device.is_cuda() ? DType::bfloat16 : DType::float32,
                              .device = device};
  const Shape shape{1, heads, split.length(), width};
  const auto leaf = [&] { return randn(shape, options).requires_grad_(); };
  const Tensor q = leaf(), k = leaf(), v = leaf(), g = randn(shape, options);
  const auto time = [&](const auto& attend) {
    const double forward = bench::median_ms_of_ranks(device, [&] {
      const NoGradGuard no_grad;
      attend();
    });
    const double both = bench::median_ms_of_ranks(device, [&] {
      for (const Tensor& x : {q, k, v}) Tensor(x).zero_grad();
      attend().backward(g);
    });
    return std::pair(forward, both);
  };
  const auto [alone, alone_both] = time([&] { return attention(q, k, v, {.mask = c.mask}); });
  const auto [shared, shared_both] =
      time([&] { return split.attention(q, k, v, {.mask = c.mask}); });
  const distributed::Group ranks = distributed::world();
  if (ranks.rank() > 0) return;
  bench::print({{"case", c.name},
                {"ranks", ranks.size()},
                {"tokens", split.total()},
                {"alone_forward_ms", bench::rounded(alone, 3)},
                {"forward_ms", bench::rounded(shared, 3)},
                {"alone_both_ms", bench::rounded(alone_both, 3)},
                {"both_ms", bench::rounded(shared_both, 3)},
                {"forward_share", bench::rounded(alone / shared, 3)},
                {"both_share", bench::rounded(alone_both / shared_both, 3)}});
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times attention over sequences that ranks share", "cpu");
  int64_t tokens = 1 << 15, window = 1024, dense = 0, heads = 16, width = 128;
  flags.add("--tokens", tokens, "of the sequence");
  flags.add("--window", window, "keys that a query sees");
  flags.add("--dense", dense, "also a causal sequence of so many tokens");
  flags.add("--heads", heads);
  flags.add("--dim", width, "of a head");
  return bench::run(flags, argc, argv, [&](Device device) {
    const distributed::Group ranks = distributed::world();
    const auto parts = [&](int64_t total) {
      return nn::SequenceParallel(ranks, total / ranks.size());
    };
    run({"window", AttentionMask::causal_window(window)}, parts(tokens), heads, width, device);
    if (dense > 0) run({"causal", AttentionMask::causal()}, parts(dense), heads, width, device);
    return true;
  });
}
