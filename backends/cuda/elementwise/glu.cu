#include "glu.cuh"

#include "../runtime/dependent_launch.cuh"
#include "flat.cuh"

namespace sash::cuda {
namespace {

/// Calls f(first element in x, first element in y) for each vector of V elements of y [rows,
/// width].
template <int V, class F>
__global__ void __launch_bounds__(kThreads) glu_kernel(F f, int64_t vectors, int64_t per_row) {
  start_next_kernel();
  wait_for_previous_kernel();
  const int64_t flat = thread_index();
  if (flat >= vectors) return;
  const int64_t row = vectors <= UINT32_MAX
                          ? static_cast<uint32_t>(flat) / static_cast<uint32_t>(per_row)
                          : flat / per_row;
  const int64_t column = (flat - row * per_row) * V, width = per_row * V;
  f(row * 2 * width + column, row * width + column, width);
}

template <class G, int V, class T>
struct Forward {
  const T* x;
  T* y;
  __device__ void operator()(int64_t gate, int64_t at, int64_t width) const {
    using A = compute_t<T>;
    const auto a = *reinterpret_cast<const Vector<T, V>*>(x + gate);
    const auto b = *reinterpret_cast<const Vector<T, V>*>(x + gate + width);
    Vector<T, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      out.element[i] = narrow<T>(forward_of<G, A>(widen(a.element[i]), widen(b.element[i])));
    }
    store_whole(y + at, out);
  }
};

template <class G, int V, class T>
struct Backward {
  const T* x;
  const T* g;
  T* dx;
  __device__ void operator()(int64_t gate, int64_t at, int64_t width) const {
    using A = compute_t<T>;
    auto a = *reinterpret_cast<const Vector<T, V>*>(x + gate);
    auto b = *reinterpret_cast<const Vector<T, V>*>(x + gate + width);
    const auto dy = *reinterpret_cast<const Vector<T, V>*>(g + at);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      A da = widen(a.element[i]), db = widen(b.element[i]);
      backward_of<G, A>(widen(dy.element[i]), da, db);
      a.element[i] = narrow<T>(da);
      b.element[i] = narrow<T>(db);
    }
    store_whole(dx + gate, a);
    store_whole(dx + gate + width, b);
  }
};

template <int V, class F>
void launch(const KernelContext& context, const F& f, int64_t rows, int64_t width) {
  const int64_t vectors = rows * (width / V);
  if (vectors == 0) return;
  launch_dependent(context, {.grid = blocks_for(vectors), .threads = kThreads}, glu_kernel<V, F>, f,
                   vectors, width / V);
}

void glu_forward(KernelContext& context, View x, View y, Gate gate) {
  dispatch_device_floating(x.dtype, "glu", [&]<class T>(TypeTag<T>) {
    const int64_t rows = y.shape[0], width = y.shape[1];
    const bool vectors = width % kWidth<T> == 0 && is_aligned(x.data) && is_aligned(y.data);
    with_gate(gate, [&]<class G>(G) {
      with_vector_width<kWidth<T>>(vectors, [&]<int V>(std::integral_constant<int, V>) {
        launch<V>(context, Forward<G, V, T>{x.ptr<T>(), y.ptr<T>()}, rows, width);
      });
    });
  });
}

void glu_backward(KernelContext& context, View x, View g, View dx, Gate gate) {
  dispatch_device_floating(x.dtype, "glu", [&]<class T>(TypeTag<T>) {
    const int64_t rows = g.shape[0], width = g.shape[1];
    const bool vectors =
        width % kWidth<T> == 0 && is_aligned(x.data) && is_aligned(g.data) && is_aligned(dx.data);
    with_gate(gate, [&]<class G>(G) {
      with_vector_width<kWidth<T>>(vectors, [&]<int V>(std::integral_constant<int, V>) {
        launch<V>(context, Backward<G, V, T>{x.ptr<T>(), g.ptr<T>(), dx.ptr<T>()}, rows, width);
      });
    });
  });
}

}  // namespace

void register_glu() {
  kernels::glu_forward.set(DeviceType::cuda, glu_forward);
  kernels::glu_backward.set(DeviceType::cuda, glu_backward);
}

}  // namespace sash::cuda
