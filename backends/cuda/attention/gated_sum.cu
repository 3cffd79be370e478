#include "../../../ops/kernels/gated_sum.h"

#include "../norm/rows.cuh"

/// Sums of branches with gates, a few lanes for each row of features.
///
/// Memory traffic: the forward pass reads every branch once and writes y; the backward pass reads g
/// and every branch once and writes all gradients once.
namespace sash::cuda {
namespace {

using kernels::Branches;
using Team = LaneTeam<8>;

constexpr int kMost = kernels::kMostBranches;

/// A call. `rows` walks over the rows of y, the first gate and its gradient, which are `step`
/// elements before those of the next branch.
template <class T>
struct GatedSum {
  Walk<3> rows;
  int count, features;
  const T* gates;
  int64_t step;
  const T* branch[kMost];
  T* y;        ///< of the forward pass
  const T* g;  ///< of the backward pass, and the next
  T* dgates;
  int64_t dstep;
  T* dbranch[kMost];

  GatedSum(View all_gates, Branches branches, View all_dgates, View like)
      : count(static_cast<int>(branches.size())),
        features(static_cast<int>(like.shape[3])),
        gates(all_gates.ptr<const T>()),
        step(all_gates.strides[0]),
        branch{},
        y(nullptr),
        g(nullptr),
        dgates(nullptr),
        dstep(all_dgates.strides[0]),
        dbranch{} {
    TensorView row = like, gate = all_gates, dgate = all_dgates;
    row.shape.erase(3), row.strides.erase(3);
    for (TensorView* x : {&gate, &dgate}) x->shape.erase(0), x->strides.erase(0);
    rows = make_walk<3>({&row, &gate, &dgate}, Order::memory);
    for (int i = 0; i < count; ++i) branch[i] = branches[static_cast<size_t>(i)].ptr<const T>();
  }

  /// Whether every row can be read in vectors of `width` elements.
  bool takes_vectors(int64_t width) const {
    bool aligned = features % width == 0 && is_aligned(y) && is_aligned(g);
    for (int axis = 0; axis < rows.rank; ++axis) {
      aligned = aligned && (rows.extent[axis] == 1 || rows.stride[0][axis] % width == 0);
    }
    for (int i = 0; i < count; ++i) {
      aligned = aligned && is_aligned(branch[i]) && is_aligned(dbranch[i]);
    }
    return aligned;
  }
};

/// Calls f(row, column) for the vectors of this thread. `row` has the offsets of its row.
template <int V, class T, class F>
__device__ void over_vectors(const GatedSum<T>& x, const int64_t (&row)[3], F&& f) {
  for (int d = Team::rank() * V; d < x.features; d += Team::kSize * V) {
    Vector<T, V> values[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i < x.count) {
        values[i] = *reinterpret_cast<const Vector<T, V>*>(x.branch[i] + row[0] + d);
      }
    }
    f(row[0] + d, values);
  }
}

template <class T>
__device__ void load_gates(const GatedSum<T>& x, int64_t at, compute_t<T> (&gates)[kMost]) {
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    gates[i] = i < x.count ? widen(x.gates[at + i * x.step]) : compute_t<T>(0);
  }
}

template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    gated_sum_kernel(const __grid_constant__ GatedSum<T> x) {
  const int64_t number = Team::row();
  if (number >= x.rows.count) return;
  int64_t row[3];
  x.rows.find(number, 1, row);
  compute_t<T> gates[kMost];
  load_gates(x, row[1], gates);
  over_vectors<V>(x, row, [&](int64_t at, const auto& values) {
    Vector<compute_t<T>, V> sum{};
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= x.count) continue;
      const auto value = widened(values[i]);
#pragma unroll
      for (int j = 0; j < V; ++j) sum.element[j] += gates[i] * value.element[j];
    }
    write<V>(x.y + at, sum);
  });
}

template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    gated_sum_backward_kernel(const __grid_constant__ GatedSum<T> x) {
  using A = compute_t<T>;
  const int64_t number = Team::row();
  if (number >= x.rows.count) return;
  int64_t row[3];
  x.rows.find(number, 1, row);
  compute_t<T> gates[kMost];
  load_gates(x, row[1], gates);
  A dot[kMost] = {};
  over_vectors<V>(x, row, [&](int64_t at, const auto& values) {
    const auto g = read<V>(x.g + at);
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= x.count) continue;
      const auto value = widened(values[i]);
      Vector<A, V> d;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        dot[i] += g.element[j] * value.element[j];
        d.element[j] = g.element[j] * gates[i];
      }
      write<V>(x.dbranch[i] + at, d);
    }
  });
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (i >= x.count) continue;
    const A total = Team::reduce(dot[i], Plus{});
    if (Team::rank() == 0) x.dgates[row[2] + i * x.dstep] = narrow<T>(total);
  }
}

template <class T>
void launch(const KernelContext& context, const GatedSum<T>& call) {
  if (call.rows.count == 0) return;
  constexpr int width = 16 / sizeof(T);
  with_vector_width<width>(call.takes_vectors(width), [&]<int V>(std::integral_constant<int, V>) {
    launch_kernel(context, ceil_div(call.rows.count, Team::kRows), kThreads, 0,
                  call.g ? gated_sum_backward_kernel<V, T> : gated_sum_kernel<V, T>, call);
  });
}

void gated_sum_forward(KernelContext& context, View gates, Branches branches, View y) {
  dispatch_device_floating(y.dtype, "gated_sum", [&]<class T>(TypeTag<T>) {
    GatedSum<T> call(gates, branches, gates, y);
    call.y = y.ptr<T>();
    launch(context, call);
  });
}

void gated_sum_backward(KernelContext& context, View gates, Branches branches, View g, View dgates,
                        Branches dbranches) {
  dispatch_device_floating(g.dtype, "gated_sum", [&]<class T>(TypeTag<T>) {
    GatedSum<T> call(gates, branches, dgates, g);
    call.g = g.ptr<const T>();
    call.dgates = dgates.ptr<T>();
    for (size_t i = 0; i < dbranches.size(); ++i) call.dbranch[i] = dbranches[i].ptr<T>();
    launch(context, call);
  });
}

}  // namespace

void register_gated_sum() {
  kernels::gated_sum_forward.set(DeviceType::cuda, gated_sum_forward);
  kernels::gated_sum_backward.set(DeviceType::cuda, gated_sum_backward);
}

}  // namespace sash::cuda
