// Times attention that chooses its blocks by data, whole: pooling, choice, and all branches with
// gates. One line of JSON per case. On CUDA, calls are captured.

#include <sash/nn/attention/native_sparse.h>
#include <sash/ops/attention/approximate/select_blocks.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "bench.h"

namespace nn = sash::nn;
using sash::AttentionMask;
using sash::Tensor;

namespace {

constexpr int kCalls = 5;

struct Case {
  bool nsa;
  int64_t heads, kv_heads, length, dim;

  std::string name() const {
    return std::string(nsa ? "nsa" : "moba") + "_d" + std::to_string(dim) + "_s" +
           std::to_string(length);
  }
};

std::vector<Case> cases(sash::Device device, const sash::TensorOptions&) {
  if (device.is_cpu()) return {{true, 16, 1, 2048, 64}, {false, 4, 4, 2048, 64}};
  std::vector<Case> all;
  for (const int64_t length : {16384, 65536}) {
    for (const int64_t dim : {64, 128}) {
      all.push_back({true, 64, 4, length, dim});
      all.push_back({false, 16, 16, length, dim});
    }
  }
  return all;
}

/// Each query of a head to its own block and the blocks with the best mean keys.
Tensor moba(const Tensor& q, const Tensor& k, const Tensor& v, int64_t block, int64_t count) {
  const Tensor index = select_blocks(q, k, {.block = block, .count = count});
  return attention(q, k, v,
                   {.mask = AttentionMask::causal() & AttentionMask::selected(index, block)});
}

void time_case(const Case& setup, sash::Device device, sash::TensorOptions options) {
  using sash::bench::rounded;
  const auto make = [&](int64_t heads) {
    return sash::randn({1, heads, setup.length, setup.dim}, options).requires_grad_();
  };
  const Tensor q = make(setup.heads), k = make(setup.kv_heads), v = make(setup.kv_heads);
  const Tensor g_out = make(setup.heads).detach();
  const Tensor x = sash::randn({1, setup.length, setup.dim}, options);  // what the gates see
  nn::NativeSparseBranches branches({setup.dim, setup.heads, setup.kv_heads, setup.dim, setup.dim},
                                    {});
  branches.to(device).to(*options.dtype);
  const auto forward = [&] {
    return setup.nsa ? branches.forward(x, q, k, v, {})
                     : moba(q, k, v, device.is_cpu() ? 128 : 512, 8);
  };
  std::vector<Tensor> inputs{q, k, v};
  if (setup.nsa) inputs.push_back(branches.gate.weight);
  const auto both = [&] { return sash::grad({forward()}, inputs, {g_out}); };
  const double peak = sash::bench::peak_mb(device, both);
  const auto ms = [&](const auto& call) {
    return device.is_cpu() ? sash::bench::median_ms(device, kCalls, call)
                           : sash::bench::graph_ms(device, call);
  };
  const double training = ms(forward), step = ms(both);
  sash::bench::print({{"kind", "chosen"},
                      {"case", setup.name()},
                      {"dtype", sash::name(*options.dtype)},
                      {"fwd_ms", rounded(training, 4)},
                      {"bwd_ms", rounded(step - training, 4)},
                      {"peak_mb", peak}});
}

}  // namespace

int main(int argc, char** argv) {
  return sash::bench::run_cases("Times attention that chooses its blocks: NSA and MoBA", argc, argv,
                                cases, time_case);
}
