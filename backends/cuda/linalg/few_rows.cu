#include "few_rows.h"

#include <cuda_pipeline_primitives.h>

#include "../../../core/error.h"
#include "../elementwise/glu.cuh"
#include "../norm/rows.cuh"
#include "../runtime/dependent_launch.cuh"
#include "../runtime/extent.h"

namespace sash::cuda {
namespace {

constexpr int kMostThreads = 512, kMostWarps = kMostThreads / kWarp;
constexpr int64_t kMostRows = 4, kManyOutputs = 4096, kMostBytes = 47 << 10, kLargest = 1 << 28;
/// Of a thread's weights: stages of two vectors, all but one of which are on their way.
/// One block of threads with eleven stages reads weights faster than two blocks with six.
constexpr int kStages = 11, kStageBytes = 32;

/// x [rows, k], w [n, k] or, with a gate, [2 n, k], and y [rows, n]; ld is the step from row to
/// row. `early`: no kernel that may still run writes w or the norm's weight.
template <class T>
struct FewRows {
  const T *x, *w, *norm, *bias, *residual;
  T* y;
  int64_t x_ld, w_ld;
  int n, k, rows;
  float eps, offset;
  bool early;
  Gate gate;
};

/// The rows of x, normalised if there is a norm, to shared memory; `weight` is the thread's first
/// vector of that norm. All threads of the block call it.
template <class T>
__device__ void stage(const FewRows<T>& f, Vector<T, 16 / sizeof(T)> weight, T* rows) {
  constexpr int V = 16 / sizeof(T);
  __shared__ float parts[kMostRows][kMostWarps];
  const auto threads = static_cast<int>(blockDim.x);
  const int first = static_cast<int>(threadIdx.x) * V, step = threads * V;
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
/// value, and goes on to the row that lies as many rows further as there are teams. Weights pass
/// through a ring in shared memory, where a thread reads what it copied itself. They do not pass
/// through registers, because a warp would wait for all its loads at once. The next kernel starts
/// once the copies of the last weights have begun, and then prefetches its weights. With the
/// largest ring, one block fits on a multiprocessor: a token of SmolLM2-1.7B took 1.33 ms on an
/// H200, and 1.51 ms with two blocks and rings half as large.
template <int M, bool kGated, int L, class T>
__global__ void __launch_bounds__(kMostThreads, 2)
    few_rows_kernel(const __grid_constant__ FewRows<T> f) {
  constexpr int V = 16 / sizeof(T), R = kGated ? 2 : 1, U = 2 / R, kStep = U * L * V;
  using Stored = Vector<T, V>;
  extern __shared__ __align__(16) unsigned char memory[];
  const auto threads = static_cast<int>(blockDim.x);
  const int lane = static_cast<int>(threadIdx.x) % L;
  const auto teams = static_cast<int>(gridDim.x * blockDim.x / L);
  auto output = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / L);
  const int64_t to_value = f.n * f.w_ld;
  // [kStages][U R][threads]
  const auto slot = [&](int stage, int i) {
    return reinterpret_cast<Stored*>(memory) + (stage * U * R + i) * threads + threadIdx.x;
  };
  const auto after = [](int stage) { return stage + 1 == kStages ? 0 : stage + 1; };

  int next = output, next_at = 0, next_stage = 0;
  const auto fetch = [&] {
    if (next < f.n) {
      const T* const row = f.w + next * f.w_ld;
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int at = next_at + (u * L + lane) * V;
        if (at >= f.k) continue;
#pragma unroll
        for (int r = 0; r < R; ++r) {
          __pipeline_memcpy_async(slot(next_stage, u * R + r), row + r * to_value + at, 16);
        }
      }
      next_at += kStep;
      if (next_at >= f.k) {
        next_at = 0;
        next += teams;
        if (next >= f.n) start_next_kernel();
      }
    }
    next_stage = after(next_stage);
    __pipeline_commit();
  };
  if (output >= f.n) start_next_kernel();
  if (!f.early) wait_for_previous_kernel();
  Stored norm{};
  const int first_of_x = static_cast<int>(threadIdx.x) * V;
  if (f.norm && first_of_x < f.k) norm = *reinterpret_cast<const Stored*>(f.norm + first_of_x);
  for (int i = 0; i < kStages - 1; ++i) fetch();
  if (f.early) wait_for_previous_kernel();

  T* const rows = reinterpret_cast<T*>(memory + kStages * kStageBytes * threads);
  const bool staged = f.rows * f.k * int64_t{sizeof(T)} <= kMostBytes;
  if (staged) stage(f, norm, rows);
  int now = 0;
  for (; output < f.n; output += teams) {
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
      fetch();
      __pipeline_wait_prior(kStages - 1);
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int at = first + (u * L + lane) * V;
        if (at >= f.k) continue;
        Vector<float, V> w[R];
#pragma unroll
        for (int r = 0; r < R; ++r) w[r] = widened(*slot(now, u * R + r));
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const int row = min(m, f.rows - 1);
          const auto x = staged ? read<V>(rows + row * f.k + at) : read<V>(f.x + row * f.x_ld + at);
#pragma unroll
          for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int i = 0; i < V; ++i) sum[r][m] = fmaf(x.element[i], w[r].element[i], sum[r][m]);
          }
        }
      }
      now = after(now);
    }
    float mine[R] = {};
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const float total = reduce_warp<L>(sum[r][m], Plus{});
        if (lane == m) mine[r] = total;
      }
    }
    if (!stores) continue;
    // Rounded where separate kernels would store.
    const auto product = [&](int r) { return narrow<T>(f.bias ? mine[r] + bias[r] : mine[r]); };
    T y = product(0);
    if constexpr (kGated) y = narrow<T>(gated(f.gate, widen(y), widen(product(1))));
    f.y[place] = f.residual ? narrow<T>(widen(y) + residual) : y;
  }
}

/// Teams of L lanes in blocks of up to `most` warps, at most one for each multiprocessor, and of
/// equal work.
template <int L>
DependentLaunch spread(int outputs, int most, int processors) {
  constexpr int kWarpTeams = kWarp / L;
  const int turns = ceil_div(outputs, processors * most * kWarpTeams);
  const int warps = ceil_div(outputs, turns * processors * kWarpTeams);
  return {.grid = ceil_div(outputs, turns * warps * kWarpTeams), .threads = warps * kWarp};
}

/// The largest number of warps for a card: with their rings, x fits in its shared memory.
int most_warps(int shared) {
  int warps = kMostWarps;
  while (warps > 1 && kStages * kStageBytes * warps * kWarp + kMostBytes + 1024 > shared) {
    warps /= 2;
  }
  return warps;
}

template <int M, bool kGated, int L, class T>
void launch_lanes(const KernelContext& context, const FewRows<T>& f) {
  constexpr auto kernel = few_rows_kernel<M, kGated, L, T>;
  const int card = context.device.index;
  const int most = most_warps(card_attribute(card, cudaDevAttrMaxSharedMemoryPerBlockOptin));
  const int64_t ring = int64_t{kStages} * kStageBytes * kWarp,
                x = f.rows * f.k * int64_t{sizeof(T)};
  allow_shared_memory<kernel>(card, ring * most + kMostBytes);
  DependentLaunch launch =
      spread<L>(f.n, most, card_attribute(card, cudaDevAttrMultiProcessorCount));
  launch.shared = ring * (launch.threads / kWarp) + (x <= kMostBytes ? x : 0);
  launch_dependent(context, launch, kernel, f);
}

template <int M, bool kGated, class T>
void launch(const KernelContext& context, const FewRows<T>& f) {
  constexpr int kFew = 8;
  constexpr int64_t kVectorsOfFew = kFew * 12;
  // Few lanes waste none of them on short rows; many fill the card where there are few outputs.
  if (f.n >= kManyOutputs && f.k * int64_t{sizeof(T)} <= kVectorsOfFew * 16) {
    return launch_lanes<M, kGated, kFew>(context, f);
  }
  launch_lanes<M, kGated, kWarp>(context, f);
}

template <class T>
bool fits(const FewRows<T>& f) {
  constexpr int64_t V = 16 / sizeof(T);
  return f.k % V == 0 && f.x_ld % V == 0 && f.w_ld % V == 0 && is_aligned(f.x) && is_aligned(f.w) &&
         (!f.norm || (is_aligned(f.norm) && f.rows * f.k * int64_t{sizeof(T)} <= kMostBytes));
}

bool in_rows(View x) {
  return x.strides[1] == 1 && (x.shape[0] == 1 || x.strides[0] >= x.shape[1]);
}

template <class T>
FewRows<T> rows_of(View x, View w, const kernels::LinearStepParams& params, View y) {
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
  f.n = extent("linear", y.shape[1]);
  f.k = extent("linear", w.shape[1]);
  f.rows = extent("linear", y.shape[0]);
  f.eps = static_cast<float>(params.eps);
  f.offset = params.unit_offset ? 1.f : 0.f;
  f.early = params.weight_at_rest;
  f.gate = params.gate.value_or(Gate::silu);
  return f;
}

void linear_step(KernelContext& context, View x, View w, const kernels::LinearStepParams& params,
                 View y) {
  if (few_rows_product(context, x, w, params, y)) return;
  throw ShapeError("linear_step", "few rows of aligned vectors", to_string(x.shape));
}

}  // namespace

bool few_rows_product(const KernelContext& context, View x, View w,
                      const kernels::LinearStepParams& params, View y) {
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
