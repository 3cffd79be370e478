#include "gelu_sums.h"

#include "../elementwise/gelu.cuh"
#include "../norm/column_sums.cuh"

namespace sash::cuda {
namespace {

/// d *= gelu'(z), and the products' sums.
template <class P, class T>
struct Multiply {
  using A = compute_t<T>;
  static constexpr int kAhead = 2, kOutputs = 1;
  const T* z;
  T* d;

  template <int V>
  struct Loaded {
    Vector<T, V> z, d;
  };
  template <int V>
  __device__ Loaded<V> load(int64_t at, int64_t) const {
    return {*reinterpret_cast<const Vector<T, V>*>(z + at),
            *reinterpret_cast<const Vector<T, V>*>(d + at)};
  }
  template <int V>
  __device__ Vector<A, V> use(const Loaded<V>& loaded, int64_t at) const {
    const auto x = widened(loaded.z);
    auto out = widened(loaded.d);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      out.element[k] = GeluGradient<P>{}(x.element[k], out.element[k]);
    }
    write<V>(d + at, out);
    return out;
  }
};

}  // namespace

void gelu_gradient_and_sums(KernelContext& context, View z, View d, View sums, bool tanh) {
  dispatch_device_floating(d.dtype, "gelu", [&]<class T>(TypeTag<T>) {
    const auto run = [&]<class P>(P) {
      sum_columns(context, Multiply<P, T>{z.ptr<T>(), d.ptr<T>()}, d.shape[0], d.shape[1],
                  sums.ptr<T>(), {z.data, d.data});
    };
    tanh ? run(GeluByTanh()) : run(ExactGelu());
  });
}

}  // namespace sash::cuda
