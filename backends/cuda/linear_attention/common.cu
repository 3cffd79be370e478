#include "common.h"

#include "../attention/common/lanes.cuh"
#include "../attention/common/launch.cuh"
#include "../attention/common/rows.cuh"
#include "../elementwise/compute.cuh"

namespace sash::cuda::linear {
namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 8;  // states read before the first is used

/// A thread for each element of a state.
template <class C>
__global__ void __launch_bounds__(kThreads)
    scan_kernel(Scan scan, C* states, int64_t heads, int chunks, int64_t size) {
  wait_for_previous_kernel();
  start_next_kernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= heads * size) return;
  const int64_t head = i / size, element = i - head * size;
  C* const first = states + head * max(chunks, 1) * size + element;
  C running = 0;
  for (int chunk = 0; chunk < chunks; chunk += kAhead) {
    C own[kAhead];
    const auto at = [&](int n) {
      return scan == Scan::behind ? chunks - 1 - chunk - n : chunk + n;
    };
#pragma unroll
    for (int n = 0; n < kAhead; ++n) own[n] = chunk + n < chunks ? first[at(n) * size] : C(0);
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      if (scan != Scan::all && chunk + n < chunks) first[at(n) * size] = running;
      running += own[n];
    }
  }
  if (scan == Scan::all) first[0] = running;
}

template <class C>
void scan(const KernelContext& context, Scan how, C* states, int64_t heads, int chunks,
          int64_t size) {
  const auto blocks = static_cast<unsigned>(ceil_div(heads * size, kThreads));
  if (blocks == 0) return;
  launch_dependent(context, {.grid = dim3(blocks), .threads = kThreads}, scan_kernel<C>, how,
                   states, heads, chunks, size);
}

constexpr int kTeam = 8;  // threads for a row

template <class T>
__global__ void __launch_bounds__(kThreads)
    dot_kernel(Rows<const T> g, const T* out, const compute_t<T>* den, int64_t rows, int heads,
               int queries, compute_t<T>* dots) {
  using C = compute_t<T>;
  constexpr int per_vector = 16 / static_cast<int>(sizeof(T));
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kTeam;
  const int place = static_cast<int>(threadIdx.x) % kTeam;
  C sum = 0;
  if (row < rows) {
    const int64_t head = row / queries;
    const T* const from = g.at(head / heads, head % heads).data + (row - head * queries) * g.row;
    const T* const with = out + row * g.width;
    if (g.vectors) {
      for (int m = place * per_vector; m < g.width; m += kTeam * per_vector) {
        const auto a = *reinterpret_cast<const Vector<T, per_vector>*>(from + m);
        const auto b = *reinterpret_cast<const Vector<T, per_vector>*>(with + m);
#pragma unroll
        for (int e = 0; e < per_vector; ++e) sum += widen(a.element[e]) * widen(b.element[e]);
      }
    } else {
      for (int m = place; m < g.width; m += kTeam) sum += widen(from[m]) * widen(with[m]);
    }
  }
  sum = sum_over_lanes<kTeam>(sum);
  if (row < rows && place == 0) dots[row] = -sum / den[row];
}

}  // namespace

void scan_states(const KernelContext& context, Scan how, float* states, int64_t heads, int chunks,
                 int64_t size) {
  scan(context, how, states, heads, chunks, size);
}
void scan_states(const KernelContext& context, Scan how, double* states, int64_t heads, int chunks,
                 int64_t size) {
  scan(context, how, states, heads, chunks, size);
}

void form_dots(const KernelContext& context, const Gradients& grads, void* dots) {
  const int64_t rows = grads.den.numel();
  dispatch_device_floating(grads.out.dtype, "linear_attention", [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    Rows<const T> g = rows_of<const T>(grads.g);
    g.vectors = g.vectors && reinterpret_cast<uintptr_t>(grads.out.data) % 16 == 0;
    launch_tiles(context, ceil_div(rows * kTeam, kThreads), kThreads, 0, dot_kernel<T>, g,
                 grads.out.ptr<const T>(), grads.den.ptr<const C>(), rows, grads.den.shape[1],
                 grads.den.shape[2], static_cast<C*>(dots));
  });
}

}  // namespace sash::cuda::linear
