#include <optional>

#include "../common/diagonals.cuh"
#include "../families.h"
#include "backward.cuh"

namespace sash::cuda {
namespace {

template <class T>
void backward(const KernelContext& context, const AttentionInputs& inputs,
              const AttentionParams& params, const AttentionGradients& gradients) {
  using namespace mma;
  const BoundsSummary summary(context, inputs, params);
  Backward<T> call{.dims = AttentionDims<T>(inputs, params, summary.bounds()),
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
                   .stats = nullptr,
                   .diagonals = nullptr,
                   .kept_by_query = nullptr,
                   .kept_by_key = nullptr};
  const int64_t heads = int64_t{call.dims.batches} * call.dims.heads;
  const Workspace stats(context, heads * call.padded_queries() * int64_t{sizeof(RowStats)});
  call.stats = stats.ptr<RowStats>();

  std::optional<KeptTiles<T>> kept;
  if (call.kind() == Kind::dropout) {
    kept.emplace(context, call.dims, params.kept, AttentionPass::backward, true, true);
    call.kept_by_query = kept->by_query();
    call.kept_by_key = kept->by_key();
  }

  const int64_t blocks = call.padded_queries() / query_rows<T>(call.features());
  std::optional<Workspace> diagonals;
  if (gradients.drelative) {
    const int64_t columns = gradients.drelative->shape[2];
    diagonals.emplace(context, heads * blocks * columns * int64_t{sizeof(float)});
    call.diagonals = diagonals->template ptr<float>();
  }
  backward_queries(context, call);
  if (diagonals) sum_diagonals(context, call.diagonals, blocks, *gradients.drelative);
  diagonals.reset();
  backward_keys(context, call);
}

}  // namespace

void attention_mma_backward(KernelContext& context, const AttentionInputs& inputs,
                            const AttentionParams& params, const AttentionGradients& gradients) {
  mma::with_type(inputs.q.dtype,
                 [&]<class T>() { backward<T>(context, inputs, params, gradients); });
}

}  // namespace sash::cuda
