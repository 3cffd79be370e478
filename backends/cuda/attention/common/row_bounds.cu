#include <algorithm>

#include "../../../../ops/kernels/attention.h"
#include "../../../../tensor/kernels/view.h"

#include "../../runtime/index_flag.h"
#include "../../runtime/launch.cuh"

namespace sash::cuda {
namespace {

constexpr int kThreads = 256;

/// int32 [B or 1, H or 1, S_q] by strides.
struct Limits {
  const int32_t* data = nullptr;  ///< null: none
  int64_t step[3] = {};

  explicit Limits(const TensorView* view) {
    if (!view) return;
    data = view->ptr<const int32_t>();
    for (int axis = 0; axis < 3; ++axis) {
      step[axis] = view->shape[axis] == 1 ? 0 : view->strides[axis];
    }
  }
};

struct Call {
  int64_t heads, queries, rows;  ///< heads and all rows of `bounds`
  int32_t keys;
  const int32_t* lengths;
  const int32_t* cu_seqlens;
  int64_t sequences;
  Limits first, past;
  bool narrow;
  int2* bounds;
  IndexFlag* flag;
  const char* op;  ///< on the host

  __device__ int32_t clamped(int32_t x) const { return max(0, min(x, keys)); }
  __device__ bool outside(int32_t x) const { return x < 0 || x > keys; }
};

__device__ void check_sequences(const Call& x, int64_t at) {
  const int32_t here = x.cu_seqlens[at];
  const bool bad = (at == 0 && here != 0) || (at > 0 && here < x.cu_seqlens[at - 1]) ||
                   (at == x.sequences && here != x.queries) || x.outside(here);
  if (bad) report(x.flag, IndexOp::attention_cu_seqlens, here, x.queries, at, x.op);
}

/// The sequence that holds query i: the last whose start is not past it.
__device__ int64_t sequence_of(const Call& x, int64_t i) {
  int64_t low = 0, high = x.sequences;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (x.cu_seqlens[middle] <= i) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ int32_t limit(const Call& x, const Limits& from, int64_t b, int64_t h, int64_t i) {
  const int32_t value = from.data[b * from.step[0] + h * from.step[1] + i * from.step[2]];
  if (x.outside(value)) report(x.flag, IndexOp::attention_ranges, value, x.keys, i, x.op);
  return x.clamped(value);
}

/// A thread for each query, and for each entry of cu_seqlens.
__global__ void __launch_bounds__(kThreads) row_bounds_kernel(const __grid_constant__ Call x) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (x.cu_seqlens && row <= x.sequences) check_sequences(x, row);
  if (row >= x.rows) return;
  const int64_t head = row / x.queries, i = row - head * x.queries;
  const int64_t b = head / x.heads, h = head - b * x.heads;
  int2 range = x.narrow ? x.bounds[row] : int2{0, x.keys};
  if (x.lengths) {
    const int32_t length = x.lengths[b];
    if (i == 0 && h == 0 && x.outside(length)) {
      report(x.flag, IndexOp::attention_lengths, length, x.keys, b, x.op);
    }
    range.y = min(range.y, x.clamped(length));
  }
  if (x.cu_seqlens && x.sequences > 0) {
    const int64_t n = sequence_of(x, i);
    range.x = max(range.x, x.clamped(x.cu_seqlens[n]));
    range.y = min(range.y, x.clamped(x.cu_seqlens[n + 1]));
  }
  if (x.first.data) range.x = max(range.x, limit(x, x.first, b, h, i));
  if (x.past.data) range.y = min(range.y, limit(x, x.past, b, h, i));
  x.bounds[row] = range.x < range.y ? range : int2{x.keys, 0};
}

void row_bounds(KernelContext& context, const kernels::RowBoundsParams& params, bool narrow,
                View bounds) {
  const int64_t rows = bounds.shape[0] * bounds.shape[1] * bounds.shape[2];
  const int64_t sequences = params.cu_seqlens ? params.cu_seqlens->shape[0] - 1 : 0;
  const auto data = [](const TensorView* x) { return x ? x->ptr<const int32_t>() : nullptr; };
  const Call call{bounds.shape[1],
                  bounds.shape[2],
                  rows,
                  static_cast<int32_t>(params.keys),
                  data(params.lengths),
                  data(params.cu_seqlens),
                  sequences,
                  Limits(params.first),
                  Limits(params.past),
                  narrow,
                  bounds.ptr<int2>(),
                  index_flag(context.device.index),
                  params.op};
  const int64_t threads = std::max(rows, params.cu_seqlens ? sequences + 1 : 0);
  if (threads == 0) return;
  launch_kernel(context, ceil_div(threads, kThreads), kThreads, 0, row_bounds_kernel, call);
}

}  // namespace

void register_row_bounds() { kernels::row_bounds.set(DeviceType::cuda, row_bounds); }

}  // namespace sash::cuda
