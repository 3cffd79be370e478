#include "few_rows.h"

#include "../norm/rows.cuh"
#include "../runtime/dependent_launch.cuh"

namespace sash::cuda {
namespace {

constexpr int kRowThreads = 128;
constexpr int64_t kMostRows = 4, kManyOutputs = 2048;

/// x [M, k], w [n, k] and y [M, n]; ld is the step from row to row.
template <class T>
struct FewRows {
  const T *x, *w, *bias;
  T* y;
  int64_t x_ld, w_ld, n, k;
};

/// 16 bytes that are read once: they do not displace x from the L1 cache.
template <class T>
__device__ Vector<T, 16 / sizeof(T)> load_once(const T* from) {
  const int4 bits = __ldcs(reinterpret_cast<const int4*>(from));
  return *reinterpret_cast<const Vector<T, 16 / sizeof(T)>*>(&bits);
}

/// Asks for the line's way to the L2 cache. Later writes reach it there, so this may come before
/// `wait_for_previous_kernel`.
__device__ void prefetch(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

/// L lanes sum row `output` of w, each `kAhead` vectors at a time.
template <int M, int L, int kAhead, class T>
__global__ void __launch_bounds__(kRowThreads)
    few_rows_kernel(const __grid_constant__ FewRows<T> f) {
  constexpr int V = 16 / sizeof(T), kLine = 128 / sizeof(T);
  const int lane = static_cast<int>(threadIdx.x) % L;
  const int64_t output = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / L;
  const T* const w = f.w + min(output, f.n - 1) * f.w_ld;
  start_next_kernel();
  for (int64_t at = lane * kLine; at < f.k; at += L * kLine) prefetch(w + at);
  wait_for_previous_kernel();
  float sum[M] = {};
  for (int64_t first = lane * V; first < f.k; first += L * kAhead * V) {
    Vector<T, V> held[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t at = first + u * L * V;
      if (at < f.k) held[u] = load_once(w + at);
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t at = first + u * L * V;
      if (at >= f.k) break;
      const auto wide = widened(held[u]);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const auto x = read<V>(f.x + m * f.x_ld + at);
#pragma unroll
        for (int i = 0; i < V; ++i) sum[m] = fmaf(x.element[i], wide.element[i], sum[m]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) sum[m] = reduce_warp<L>(sum[m], Plus{});
  if (lane != 0 || output >= f.n) return;
  const float bias = f.bias ? widen(f.bias[output]) : 0.f;
#pragma unroll
  for (int m = 0; m < M; ++m) f.y[m * f.n + output] = narrow<T>(sum[m] + bias);
}

template <int M, class T>
void launch(const KernelContext& context, const FewRows<T>& f) {
  constexpr int V = 16 / sizeof(T);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const auto with = [&]<int L, int kAhead>(std::integral_constant<int, L>,
                                           std::integral_constant<int, kAhead>) {
    const auto blocks = static_cast<unsigned>((f.n * L + kRowThreads - 1) / kRowThreads);
    launch_dependent(few_rows_kernel<M, L, kAhead, T>, blocks, kRowThreads, stream, f);
  };
  // Few lanes waste none of them on short rows; many fill the card where there are few outputs.
  constexpr std::integral_constant<int, 8> few{};
  constexpr std::integral_constant<int, 12> rows_ahead{};
  if (f.n >= kManyOutputs && f.k <= few * rows_ahead * V) return with(few, rows_ahead);
  with(std::integral_constant<int, kWarp>{}, std::integral_constant<int, 8>{});
}

template <class T>
bool fits(const FewRows<T>& f) {
  constexpr int64_t V = 16 / sizeof(T);
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  return f.k % V == 0 && f.x_ld % V == 0 && f.w_ld % V == 0 && aligned(f.x) && aligned(f.w);
}

bool in_rows(const TensorView& x) {
  return x.strides[1] == 1 && (x.shape[0] == 1 || x.strides[0] >= x.shape[1]);
}

}  // namespace

bool few_rows_product(const KernelContext& context, const TensorView& x, const TensorView& w,
                      const TensorView* bias, const TensorView& y) {
  const int64_t rows = y.shape[0];
  if (rows > kMostRows || y.dtype == DType::float64 || !in_rows(x) || !in_rows(w)) return false;
  bool taken = false;
  sash::detail::dispatch_over<float, float16, bfloat16>(
      y.dtype, "linear", [&]<class S>(TypeTag<S>) {
        using T = device_t<S>;
        const FewRows<T> f{x.ptr<T>(),
                           w.ptr<T>(),
                           bias ? bias->ptr<T>() : nullptr,
                           y.ptr<T>(),
                           rows == 1 ? x.shape[1] : x.strides[0],
                           w.shape[0] == 1 ? w.shape[1] : w.strides[0],
                           w.shape[0],
                           w.shape[1]};
        taken = fits(f);
        if (!taken) return;
        const CardGuard guard(context.device.index);
        switch (rows) {
          case 1:
            return launch<1>(context, f);
          case 2:
            return launch<2>(context, f);
          case 3:
            return launch<3>(context, f);
          default:
            return launch<4>(context, f);
        }
      });
  return taken;
}

}  // namespace sash::cuda
