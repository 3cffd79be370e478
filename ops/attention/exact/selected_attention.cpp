#include "selected_attention.h"

#include <algorithm>

namespace sash {

namespace kernels {
constinit decltype(selected_attention_forward) selected_attention_forward{
    "selected_attention_forward"};
constinit decltype(selected_attention_backward) selected_attention_backward{
    "selected_attention_backward"};
}  // namespace kernels

bool has_selected_kernels(const AttentionTensors& x) {
  const Device device = x.q.device();
  return use_fused(kernels::selected_attention_forward, device) &&
         use_fused(kernels::selected_attention_backward, device) &&
         (device.is_cpu() || std::max(x.q.size(3), x.v.size(3)) <= kernels::kSelectedHeadDim);
}

SelectedParams::SelectedParams(const AttentionCall& call)
    : index_(call.selection.index.contiguous()) {
  const int64_t reach = call.shape.queries + call.shape.keys;  // sees every key
  params_ = {.scale = call.scale,
             .index = index_.tensor_view(),
             .block = std::min(call.selection.block, std::max<int64_t>(call.shape.keys, 1)),
             .queries_per_row =
                 std::min(call.selection.queries_per_row, std::max<int64_t>(call.shape.queries, 1)),
             .left = std::min(call.window.left, reach),
             .right = std::min(call.window.right, reach),
             .bounds = views_(call.bounds)};
}

}  // namespace sash
