#include <optional>

#include "../../tensor/kernels/memory.h"
#include "attention_hopper.h"
#include "attention_hopper_backward.cuh"

namespace sash::cuda {
namespace {

bool is_hopper(Device device) {
  int major = 0, minor = 0;
  SASH_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
  SASH_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index));
  return major == 9 && minor == 0;
}

/// A view whose rows the copy engine can read: itself, or a contiguous copy.
class Readable {
 public:
  Readable(KernelContext& context, const TensorView& x) : view_(x) {
    if (fits_tensor_map(x)) return;
    copy_.emplace(context, x.numel() * size_of(x.dtype));
    view_.strides = contiguous_strides(x.shape);
    view_.data = copy_->ptr<void>();
    kernels::copy(context, x, view_);
  }
  const TensorView& view() const { return view_; }

 private:
  TensorView view_;
  std::optional<Workspace> copy_;
};

}  // namespace

bool attention_hopper_takes(const KernelContext& context, const kernels::AttentionInputs& inputs,
                            const kernels::AttentionParams& params) {
  const auto& [q, k, v] = inputs;
  const bool plain = params.scale > 0 && params.softcap == 0 && params.dropout == 0 &&
                     !params.bias && !params.relative_bias && !params.slopes;
  const auto fits = [](const TensorView& x) {
    return fits_tensor_map(x) && x.shape[3] % 8 == 0 && x.shape[3] <= 256;
  };
  return plain && fits(q) && fits(k) && fits(v) && is_hopper(context.device);
}

void attention_hopper_backward(KernelContext& context, const kernels::AttentionInputs& inputs,
                               const kernels::AttentionParams& params,
                               const kernels::AttentionGradients& gradients) {
  using namespace hopper;
  const auto& [q, k, v] = inputs;
  const Readable g(context, gradients.g);
  const BoundsSummary summary(context, inputs, params, true);
  with_tiles(q.dtype, std::max(q.shape[3], v.shape[3]), [&]<class T, int width>() {
    Backward<T> call{
        .problem = Problem(inputs, params, summary.bounds()),
        .q = tensor_map(q, slab_of(width)),
        .k = tensor_map(k, slab_of(width)),
        .v = tensor_map(v, slab_of(width)),
        .g = tensor_map(g.view(), slab_of(width)),
        .out = gradients.out.ptr<const T>(),
        .lse = gradients.lse.ptr<const float>(),
        .g_lse = gradients.g_lse ? gradients.g_lse->ptr<const float>() : nullptr,
        .dq = gradients.dq.ptr<T>(),
        .dk = gradients.dk.ptr<T>(),
        .dv = gradients.dv.ptr<T>(),
        .terms = nullptr,
        .qk_width = static_cast<int>(q.shape[3]),
        .v_width = static_cast<int>(v.shape[3]),
        .schedule = {},
    };
    const Problem& p = call.problem;
    const Workspace terms(context, int64_t{p.batches} * p.heads * p.map.query_blocks *
                                       static_cast<int64_t>(sizeof(Terms)));
    call.terms = terms.ptr<Terms>();
    backward_queries<T, width>(context, call);
    backward_keys<T, width>(context, call);
  });
}

}  // namespace sash::cuda
