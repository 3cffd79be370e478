#include <optional>

#include "attention_mma.h"
#include "attention_mma_backward.cuh"

namespace sash::cuda {
namespace {

constexpr int kSumThreads = 128;

/// drelative[i, d] = sum of diagonals[i, block, d], in the order of the blocks.
__global__ void __launch_bounds__(kSumThreads)
    sum_blocks_kernel(const float* diagonals, int blocks, int64_t columns, int64_t count,
                      float* drelative) {
  const int64_t at = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (at >= count) return;
  const float* from = diagonals + at / columns * blocks * columns + at % columns;
  float sum = 0;
  for (int block = 0; block < blocks; ++block) sum += from[block * columns];
  drelative[at] = sum;
}

void sum_blocks(const KernelContext& context, const float* diagonals, int64_t blocks,
                const TensorView& drelative) {
  const int64_t count = drelative.numel();
  if (count == 0) return;
  const CardGuard guard(context.device.index);
  const auto grid = static_cast<unsigned>((count + kSumThreads - 1) / kSumThreads);
  sum_blocks_kernel<<<grid, kSumThreads, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(
      diagonals, static_cast<int>(blocks), drelative.shape[2], count, drelative.ptr<float>());
  SASH_CUDA_CHECK(cudaGetLastError());
}

template <class T>
void backward(const KernelContext& context, const kernels::AttentionInputs& inputs,
              const kernels::AttentionParams& params,
              const kernels::AttentionGradients& gradients) {
  using namespace mma;
  const BoundsSummary summary(context, inputs, params);
  Backward<T> call{.problem = Problem<T>(inputs, params, summary.bounds()),
                   .q = rows_of<const T>(inputs.q),
                   .k = rows_of<const T>(inputs.k),
                   .v = rows_of<const T>(inputs.v),
                   .g = rows_of<const T>(gradients.g),
                   .out = rows_of<const T>(gradients.out),
                   .lse = gradients.lse.ptr<const float>(),
                   .g_lse = gradients.g_lse ? gradients.g_lse->ptr<const float>() : nullptr,
                   .dq = rows_of<T>(gradients.dq),
                   .dk = rows_of<T>(gradients.dk),
                   .dv = rows_of<T>(gradients.dv),
                   .dbias = gradients.dbias ? gradients.dbias->ptr<float>() : nullptr,
                   .terms = nullptr,
                   .diagonals = nullptr};
  const int64_t heads = int64_t{call.problem.batches} * call.problem.heads;
  const Workspace terms(context,
                        heads * call.padded_queries() * static_cast<int64_t>(sizeof(RowTerms)));
  call.terms = terms.ptr<RowTerms>();

  const int64_t blocks =
      call.padded_queries() / query_rows<T>(std::max(call.q.width, call.v.width));
  std::optional<Workspace> diagonals;
  if (gradients.drelative) {
    const int64_t columns = gradients.drelative->shape[2];
    diagonals.emplace(context, heads * blocks * columns * static_cast<int64_t>(sizeof(float)));
    call.diagonals = diagonals->template ptr<float>();
  }
  backward_queries(context, call);
  if (diagonals) sum_blocks(context, call.diagonals, blocks, *gradients.drelative);
  diagonals.reset();
  backward_keys(context, call);
}

}  // namespace

void attention_mma_backward(KernelContext& context, const kernels::AttentionInputs& inputs,
                            const kernels::AttentionParams& params,
                            const kernels::AttentionGradients& gradients) {
  mma::with_type(inputs.q.dtype,
                 [&]<class T>() { backward<T>(context, inputs, params, gradients); });
}

}  // namespace sash::cuda
