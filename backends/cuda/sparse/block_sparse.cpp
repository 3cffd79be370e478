#include "block_sparse.h"

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "../attention/common/limits.h"
#include "../shape/readable.h"

namespace sash::cuda {
namespace {

/// A contiguous operand, copied if its memory does not begin at a multiple of 16 bytes.
Readable aligned(KernelContext& context, View x) {
  return {context, x, reinterpret_cast<uintptr_t>(x.data) % 16 == 0};
}

/// Whether the kernels of sm_90a take a call: `rows` is the most that a matrix has.
/// SASH_SPARSE_KERNEL=mma keeps to the kernels of sm_80.
bool takes_hopper(const KernelContext& context, View data, int64_t rows) {
  constexpr int64_t most = int64_t{1} << 30;
  const char* const forced = std::getenv("SASH_SPARSE_KERNEL");
  return is_half(data.dtype) && data.numel() > 0 && rows < most &&
         data.shape[0] * data.shape[1] < most && !(forced && std::string_view(forced) == "mma") &&
         has_hopper_code(context.device);
}

void block_sparse_matmul(KernelContext& context, View a, View data, const TensorView* bias,
                         const kernels::BlockPatternView& pattern, bool transposed, View y) {
  if (y.numel() == 0) return;
  const Readable left = aligned(context, a), blocks = aligned(context, data);
  const sparse::ProductCall call{.a = left.view(),
                                 .data = blocks.view(),
                                 .y = y,
                                 .bias = bias ? bias->data : nullptr,
                                 .lines = transposed ? pattern.rows : pattern.columns,
                                 .block = pattern.block,
                                 .transposed = transposed};
  if (takes_hopper(context, data, y.shape[0])) {
    return (pattern.block < 64 ? sparse::multiply_narrow_hopper : sparse::multiply_wide_hopper)(
        context, call);
  }
  (is_half(y.dtype) ? sparse::multiply_halves : sparse::multiply_simple)(context, call);
}

void sampled_matmul(KernelContext& context, View a, View b,
                    const kernels::BlockPatternView& pattern, View data) {
  if (data.numel() == 0) return;
  if (a.shape[0] == 0) return kernels::fill(context, data, 0);
  const Readable left = aligned(context, a), right = aligned(context, b);
  if (takes_hopper(context, data, a.shape[0])) {
    return (pattern.block < 64 ? sparse::sample_narrow_hopper : sparse::sample_wide_hopper)(
        context, left.view(), right.view(), pattern, data);
  }
  (is_half(data.dtype) ? sparse::sample_halves : sparse::sample_simple)(
      context, left.view(), right.view(), pattern, data);
}

}  // namespace

void register_block_sparse() {
  kernels::block_sparse_matmul.set(DeviceType::cuda, block_sparse_matmul);
  kernels::sampled_matmul.set(DeviceType::cuda, sampled_matmul);
}

}  // namespace sash::cuda
