#include "few_rows.h"

#include "../../../core/error.h"
#include "../elementwise/glu.cuh"
#include "../norm/rows.cuh"
#include "../runtime/dependent_launch.cuh"

namespace sash::cuda {
namespace {

constexpr int kRowThreads = 128;
constexpr int64_t kMostRows = 4, kManyOutputs = 4096, kMostBytes = 47 << 10;

/// x [rows, k], w [n, k] or, with a gate, [2 n, k], and y [rows, n]; ld is the step from row to
/// row.
template <class T>
struct FewRows {
  const T *x, *w, *norm, *bias, *residual;
  T* y;
  int64_t x_ld, w_ld, n, k;
  int rows;
  float eps, offset;
  Gate gate;
};

/// 16 bytes that are read once.
template <class T>
__device__ Vector<T, 16 / sizeof(T)> load_once(const T* from) {
  const int4 bits = __ldcs(reinterpret_cast<const int4*>(from));
  return *reinterpret_cast<const Vector<T, 16 / sizeof(T)>*>(&bits);
}

/// Asks for the line's way to the L2 cache. Later writes reach it there, so this may come before
/// `wait_for_previous_kernel`.
__device__ void prefetch(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

/// Row m of x, normalised, to shared memory. All threads of the block call it.
template <class T>
__device__ void normalise(const FewRows<T>& f, int m, T* to) {
  constexpr int V = 16 / sizeof(T);
  const T* const from = f.x + m * f.x_ld;
  const int64_t first = int64_t{threadIdx.x} * V;
  float squares = 0;
  for (int64_t at = first; at < f.k; at += kRowThreads * V) {
    const auto x = read<V>(from + at);
#pragma unroll
    for (int i = 0; i < V; ++i) squares += x.element[i] * x.element[i];
  }
  squares = reduce_block<kRowThreads>(squares, Plus{});
  const float r = 1 / std::sqrt(squares / static_cast<float>(f.k) + f.eps);
  for (int64_t at = first; at < f.k; at += kRowThreads * V) {
    auto x = read<V>(from + at);
    const auto w = read<V>(f.norm + at);
#pragma unroll
    for (int i = 0; i < V; ++i) x.element[i] = x.element[i] * r * (w.element[i] + f.offset);
    write<V>(to + at, x);
  }
}

/// L lanes sum row `output` of w for each of up to M rows of x, kAhead vectors at a time; with
/// kGated, also the row of its value.
template <int M, bool kGated, int L, class T>
__global__ void __launch_bounds__(kRowThreads)
    few_rows_kernel(const __grid_constant__ FewRows<T> f) {
  constexpr int V = 16 / sizeof(T), kLine = 128 / sizeof(T), R = kGated ? 2 : 1;
  constexpr int kAhead = (L < kWarp ? 12 : 8) / R;
  extern __shared__ __align__(16) unsigned char memory[];
  const int lane = static_cast<int>(threadIdx.x) % L;
  const int64_t output = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / L;
  const T* const w = f.w + min(output, f.n - 1) * f.w_ld;
  const int64_t to_value = f.n * f.w_ld;
  start_next_kernel();
  for (int64_t at = lane * kLine; at < f.k; at += L * kLine) {
#pragma unroll
    for (int r = 0; r < R; ++r) prefetch(w + r * to_value + at);
  }
  wait_for_previous_kernel();
  const T* x = f.x;
  int64_t x_ld = f.x_ld;
  if (f.norm) {
    T* const rows = reinterpret_cast<T*>(memory);
    for (int m = 0; m < f.rows; ++m) normalise(f, m, rows + m * f.k);
    __syncthreads();
    x = rows;
    x_ld = f.k;
  }
  float sum[R][M] = {};
  for (int64_t first = lane * V; first < f.k; first += L * kAhead * V) {
    Vector<T, V> held[R][kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t at = first + u * L * V;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (at < f.k) held[r][u] = load_once(w + r * to_value + at);
      }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t at = first + u * L * V;
      if (at >= f.k) break;
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const auto a = read<V>(x + min(m, f.rows - 1) * x_ld + at);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const auto b = widened(held[r][u]);
#pragma unroll
          for (int i = 0; i < V; ++i) sum[r][m] = fmaf(a.element[i], b.element[i], sum[r][m]);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int r = 0; r < R; ++r) sum[r][m] = reduce_warp<L>(sum[r][m], Plus{});
  }
  if (lane != 0 || output >= f.n) return;
  // Rounded where separate kernels would store.
  const auto product = [&](int r, int m) {
    return narrow<T>(f.bias ? sum[r][m] + widen(f.bias[output + r * f.n]) : sum[r][m]);
  };
#pragma unroll
  for (int m = 0; m < M; ++m) {
    if (m >= f.rows) break;
    T y = product(0, m);
    if constexpr (kGated) y = narrow<T>(gated(f.gate, widen(y), widen(product(1, m))));
    const int64_t at = m * f.n + output;
    f.y[at] = f.residual ? narrow<T>(widen(y) + widen(f.residual[at])) : y;
  }
}

template <int M, bool kGated, class T>
void launch(const KernelContext& context, const FewRows<T>& f) {
  constexpr int kFew = 8;
  constexpr int64_t kVectorsOfFew = kFew * 12;
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const auto bytes = f.norm ? f.rows * f.k * static_cast<int64_t>(sizeof(T)) : 0;
  const auto with = [&]<int L>(std::integral_constant<int, L>) {
    const auto blocks = static_cast<unsigned>((f.n * L + kRowThreads - 1) / kRowThreads);
    launch_dependent({.grid = blocks, .threads = kRowThreads, .shared = bytes},
                     few_rows_kernel<M, kGated, L, T>, stream, f);
  };
  // Few lanes waste none of them on short rows; many fill the card where there are few outputs.
  if (f.n >= kManyOutputs && f.k * static_cast<int64_t>(sizeof(T)) <= kVectorsOfFew * 16) {
    return with(std::integral_constant<int, kFew>{});
  }
  with(std::integral_constant<int, kWarp>{});
}

template <class T>
bool fits(const FewRows<T>& f) {
  constexpr int64_t V = 16 / sizeof(T);
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  return f.k % V == 0 && f.x_ld % V == 0 && f.w_ld % V == 0 && aligned(f.x) && aligned(f.w) &&
         (!f.norm || (aligned(f.norm) && f.rows * f.k * int64_t{sizeof(T)} <= kMostBytes));
}

bool in_rows(const TensorView& x) {
  return x.strides[1] == 1 && (x.shape[0] == 1 || x.strides[0] >= x.shape[1]);
}

template <class T>
FewRows<T> rows_of(const TensorView& x, const TensorView& w,
                   const kernels::LinearStepParams& params, const TensorView& y) {
  const auto pointer = [](const TensorView* view) -> const T* {
    return view ? view->ptr<T>() : nullptr;
  };
  FewRows<T> f{};
  f.x = x.ptr<T>();
  f.w = w.ptr<T>();
  f.norm = pointer(params.norm_weight);
  f.bias = pointer(params.bias);
  f.residual = pointer(params.residual);
  f.y = y.ptr<T>();
  f.x_ld = x.shape[0] == 1 ? x.shape[1] : x.strides[0];
  f.w_ld = w.shape[0] == 1 ? w.shape[1] : w.strides[0];
  f.n = y.shape[1];
  f.k = w.shape[1];
  f.rows = static_cast<int>(y.shape[0]);
  f.eps = static_cast<float>(params.eps);
  f.offset = params.unit_offset ? 1.f : 0.f;
  f.gate = params.gate.value_or(Gate::silu);
  return f;
}

void linear_step(KernelContext& context, const TensorView& x, const TensorView& w,
                 const kernels::LinearStepParams& params, const TensorView& y) {
  if (few_rows_product(context, x, w, params, y)) return;
  throw ShapeError("linear_step", "few rows of aligned vectors", to_string(x.shape));
}

}  // namespace

bool few_rows_product(const KernelContext& context, const TensorView& x, const TensorView& w,
                      const kernels::LinearStepParams& params, const TensorView& y) {
  const int64_t rows = y.shape[0];
  if (rows > kMostRows || y.dtype == DType::float64 || !in_rows(x) || !in_rows(w)) return false;
  bool taken = false;
  sash::detail::dispatch_over<float, float16, bfloat16>(
      y.dtype, "linear", [&]<class S>(TypeTag<S>) {
        const auto f = rows_of<device_t<S>>(x, w, params, y);
        taken = fits(f);
        if (!taken || f.n == 0) return;
        const CardGuard guard(context.device.index);
        if (params.gate)
          return rows == 1 ? launch<1, true>(context, f) : launch<4, true>(context, f);
        rows == 1 ? launch<1, false>(context, f) : launch<4, false>(context, f);
      });
  return taken;
}

void register_linear_step() { kernels::linear_step.set(DeviceType::cuda, linear_step); }

}  // namespace sash::cuda
