#include "few_rows.h"

#include "../../../core/error.h"
#include "../elementwise/glu.cuh"
#include "../norm/rows.cuh"
#include "../runtime/dependent_launch.cuh"

namespace sash::cuda {
namespace {

constexpr int kMostThreads = 512, kMostWarps = kMostThreads / kWarp;
constexpr int64_t kMostRows = 4, kManyOutputs = 4096, kMostBytes = 47 << 10, kLargest = 1 << 28;

/// x [rows, k], w [n, k] or, with a gate, [2 n, k], and y [rows, n]; ld is the step from row to
/// row. A team asks for its first `ahead` elements of w while the previous kernel runs.
template <class T>
struct FewRows {
  const T *x, *w, *norm, *bias, *residual;
  T* y;
  int64_t x_ld, w_ld, ahead;
  int n, k, rows;
  float eps, offset;
  Gate gate;
};

/// The rows of x, normalised if there is a norm, to shared memory. All threads of the block call
/// it.
template <class T>
__device__ void stage(const FewRows<T>& f, T* rows) {
  constexpr int V = 16 / sizeof(T);
  __shared__ float parts[kMostRows][kMostWarps];
  const auto threads = static_cast<int>(blockDim.x);
  const int first = static_cast<int>(threadIdx.x) * V, step = threads * V;
  Vector<T, V> weight{};  // asked for along with x
  if (f.norm && first < f.k) weight = *reinterpret_cast<const Vector<T, V>*>(f.norm + first);
  for (int m = 0; m < f.rows; ++m) {
    float squares = 0;
    for (int at = first; at < f.k; at += step) {
      const auto x = *reinterpret_cast<const Vector<T, V>*>(f.x + m * f.x_ld + at);
      *reinterpret_cast<Vector<T, V>*>(rows + m * f.k + at) = x;
      const auto wide = widened(x);
#pragma unroll
      for (int i = 0; i < V; ++i) squares += wide.element[i] * wide.element[i];
    }
    if (!f.norm) continue;
    squares = reduce_warp(squares, Plus{});
    if (threadIdx.x % kWarp == 0) parts[m][threadIdx.x / kWarp] = squares;
  }
  __syncthreads();
  if (!f.norm) return;
  for (int m = 0; m < f.rows; ++m) {
    float squares = 0;
    for (int i = 0; i < threads / kWarp; ++i) squares += parts[m][i];
    const float r = 1 / std::sqrt(squares / static_cast<float>(f.k) + f.eps);
    for (int at = first; at < f.k; at += step) {
      auto x = read<V>(rows + m * f.k + at);
      const auto w = at == first ? widened(weight) : read<V>(f.norm + at);
#pragma unroll
      for (int i = 0; i < V; ++i) x.element[i] = x.element[i] * r * (w.element[i] + f.offset);
      write<V>(rows + m * f.k + at, x);
    }
  }
  __syncthreads();
}

/// A team of L lanes sums a row of w for each of up to M rows of x, with kGated also the row of its
/// value, and goes on to the row that lies all teams further. kAhead vectors are always on their
/// way. Blocks leave room for those of the next kernel, which begin to fetch its weights.
template <int M, bool kGated, int L, class T>
__global__ void __launch_bounds__(kMostThreads, M == 1 && L == kWarp ? 2 : 1)
    few_rows_kernel(const __grid_constant__ FewRows<T> f) {
  constexpr int V = 16 / sizeof(T), kLine = 128 / sizeof(T), R = kGated ? 2 : 1;
  constexpr int kAhead = (L < kWarp ? 12 : 8) / R, kStep = kAhead * L * V;
  extern __shared__ __align__(16) unsigned char memory[];
  const int lane = static_cast<int>(threadIdx.x) % L;
  const auto teams = static_cast<int>(gridDim.x * blockDim.x / L);
  auto output = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / L);
  const T* w = f.w + output * f.w_ld;
  const int64_t to_value = f.n * f.w_ld, to_next = teams * f.w_ld;
  start_next_kernel();
  int64_t left = f.ahead;
  for (int o = output; o < f.n && left > 0; o += teams, left -= R * f.k) {
    const T* const row = f.w + o * f.w_ld;
    for (int at = lane * kLine; at < min(int64_t{f.k}, left); at += L * kLine) {
#pragma unroll
      for (int r = 0; r < R; ++r) prefetch(row + r * to_value + at);
    }
  }
  if (f.norm && blockIdx.x == 0) {
    const auto step = static_cast<int>(blockDim.x) * kLine;
    for (int at = static_cast<int>(threadIdx.x) * kLine; at < f.k; at += step) {
      prefetch(f.norm + at);
    }
  }
  wait_for_previous_kernel();

  int4 held[R][kAhead];  // read once
  const auto hold = [&](int u, const T* row, int at, int end) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (at < end) held[r][u] = __ldcs(reinterpret_cast<const int4*>(row + r * to_value + at));
    }
  };
#pragma unroll
  for (int u = 0; u < kAhead; ++u) hold(u, w, (u * L + lane) * V, output < f.n ? f.k : 0);
  const T* x = f.x;
  int64_t x_ld = f.x_ld;
  if (f.rows * f.k * int64_t{sizeof(T)} <= kMostBytes) {
    T* const rows = reinterpret_cast<T*>(memory);
    stage(f, rows);
    x = rows;
    x_ld = f.k;
  }
  for (; output < f.n; output += teams, w += to_next) {
    // Lane m stores row m.
    const bool stores = lane < M && lane < f.rows;
    const int64_t place = int64_t{lane} * f.n + output;
    float bias[R] = {}, residual = 0;
    if (stores && f.residual) residual = widen(f.residual[place]);
    if (stores && f.bias) {
#pragma unroll
      for (int r = 0; r < R; ++r) bias[r] = widen(f.bias[output + r * f.n]);
    }
    float sum[R][M] = {};
    for (int first = 0; first < f.k; first += kStep) {
      const bool last = first + kStep >= f.k;
      const T* const next = last ? w + to_next : w + first + kStep;
      const int end = last ? (output + teams < f.n ? f.k : 0) : f.k - first - kStep;
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int vector = (u * L + lane) * V;
        if (first + vector < f.k) {
#pragma unroll
          for (int m = 0; m < M; ++m) {
            const auto a = read<V>(x + min(m, f.rows - 1) * x_ld + first + vector);
#pragma unroll
            for (int r = 0; r < R; ++r) {
              const auto b = widened<T>(held[r][u]);
#pragma unroll
              for (int i = 0; i < V; ++i) sum[r][m] = fmaf(a.element[i], b.element[i], sum[r][m]);
            }
          }
        }
        hold(u, next, vector, end);
      }
    }
    float own[R] = {};
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const float total = reduce_warp<L>(sum[r][m], Plus{});
        if (lane == m) own[r] = total;
      }
    }
    if (!stores) continue;
    // Rounded where separate kernels would store.
    const auto product = [&](int r) { return narrow<T>(f.bias ? own[r] + bias[r] : own[r]); };
    T y = product(0);
    if constexpr (kGated) y = narrow<T>(gated(f.gate, widen(y), widen(product(1))));
    f.y[place] = f.residual ? narrow<T>(widen(y) + residual) : y;
  }
}

/// Teams of L lanes in blocks, at most one for each multiprocessor, and of equal work.
template <int L>
DependentLaunch spread(int outputs) {
  int card = 0, processors = 0;
  SASH_CUDA_CHECK(cudaGetDevice(&card));
  SASH_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, card));
  constexpr int kWarpTeams = kWarp / L;
  const auto ratio = [](int a, int b) { return (a + b - 1) / b; };
  const int turns = ratio(outputs, processors * kMostWarps * kWarpTeams);
  const int warps = ratio(outputs, turns * processors * kWarpTeams);
  return {.grid = static_cast<unsigned>(ratio(outputs, turns * warps * kWarpTeams)),
          .threads = warps * kWarp};
}

/// Of the weights, that a block asks for while the previous kernel runs: all blocks together for a
/// part of the L2 cache.
constexpr int64_t kBytesAhead = 128 << 10;

template <int M, bool kGated, class T>
void launch(const KernelContext& context, FewRows<T> f) {
  constexpr int kFew = 8;
  constexpr int64_t kVectorsOfFew = kFew * 12, size = sizeof(T);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const auto with = [&]<int L>(std::integral_constant<int, L>) {
    DependentLaunch launch = spread<L>(f.n);
    if (f.rows * f.k * size <= kMostBytes) launch.shared = f.rows * f.k * size;
    f.ahead = kBytesAhead / (size * launch.threads / L);
    launch_dependent(launch, few_rows_kernel<M, kGated, L, T>, stream, f);
  };
  // Few lanes waste none of them on short rows; many fill the card where there are few outputs.
  if (f.n >= kManyOutputs && f.k * size <= kVectorsOfFew * 16) {
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
  f.n = static_cast<int>(y.shape[1]);
  f.k = static_cast<int>(w.shape[1]);
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
  if (w.shape[0] > kLargest || w.shape[1] > kLargest) return false;
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
