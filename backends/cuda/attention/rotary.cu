#include "../../../ops/kernels/rotary.h"

#include "../elementwise/compute.cuh"

namespace sash::cuda {
namespace {

/// x and y [B, S, H, D] by strides; see `kernels::rotary`.
template <class T>
struct Call {
  using A = compute_t<T>;
  const T* x;
  const A* cos;
  const A* sin;
  T* y;
  int64_t x_stride[3], y_stride[3];
  int64_t angle_stride;  ///< from batch to batch
  int64_t length, heads, width, pairs;
  int64_t turned;  ///< heads
  A sign;
};

// Division in 64 bits is several times slower, and rarely needed.
struct Divide {
  bool small;
  __device__ int64_t operator()(int64_t a, int64_t b) const {
    if (small) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
    return a / b;
  }
};

template <int V, class T>
__device__ Vector<T, V> load_vector(const T* x) {
  return *reinterpret_cast<const Vector<T, V>*>(x);
}
template <int V, class T>
__device__ void store_vector(T* y, const Vector<T, V>& x) {
  *reinterpret_cast<Vector<T, V>*>(y) = x;
}

template <class T>
__device__ void turn(T& first, T& second, compute_t<T> c, compute_t<T> s) {
  const compute_t<T> a = widen(first), b = widen(second);
  first = narrow<T>(a * c - b * s);
  second = narrow<T>(a * s + b * c);
}

/// Halves: V pairs, as a vector of each half.
template <int V>
struct HalvesUnit {
  static constexpr int kPairs = V;
  template <class T, class Angles>
  static __device__ void run(const T* x, T* y, int64_t pair, int64_t pairs, bool turns,
                             const Angles& angles) {
    auto first = load_vector<V>(x + pair), second = load_vector<V>(x + pairs + pair);
    if (turns) {
      const auto [c, s] = angles();
#pragma unroll
      for (int i = 0; i < V; ++i) {
        turn(first.element[i], second.element[i], c.element[i], s.element[i]);
      }
    }
    store_vector(y + pair, first);
    store_vector(y + pairs + pair, second);
  }
};

/// Neighbours: a vector of V = 2 P elements.
template <int V>
struct InterleavedUnit {
  static constexpr int kPairs = V / 2;
  template <class T, class Angles>
  static __device__ void run(const T* x, T* y, int64_t pair, int64_t, bool turns,
                             const Angles& angles) {
    auto values = load_vector<V>(x + 2 * pair);
    if (turns) {
      const auto [c, s] = angles();
#pragma unroll
      for (int i = 0; i < V / 2; ++i) {
        turn(values.element[2 * i], values.element[2 * i + 1], c.element[i], s.element[i]);
      }
    }
    store_vector(y + 2 * pair, values);
  }
};

/// Neighbours that no vector holds.
struct ScalarPair {
  static constexpr int kPairs = 1;
  template <class T, class Angles>
  static __device__ void run(const T* x, T* y, int64_t pair, int64_t, bool turns,
                             const Angles& angles) {
    T first = x[2 * pair], second = x[2 * pair + 1];
    if (turns) {
      const auto [c, s] = angles();
      turn(first, second, c.element[0], s.element[0]);
    }
    y[2 * pair] = first;
    y[2 * pair + 1] = second;
  }
};

template <class A, int P>
struct AnglesOf {
  Vector<A, P> cos, sin;
};

/// A thread takes a unit of pairs, or copies C elements behind the last pair.
template <class Unit, int C, class T>
__global__ void __launch_bounds__(kThreads)
    rotary_kernel(const __grid_constant__ Call<T> call, int64_t units, int64_t per_row) {
  using A = compute_t<T>;
  constexpr int P = Unit::kPairs;
  const int64_t flat = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (flat >= units) return;
  const Divide divide{units <= UINT32_MAX};
  const int64_t row = divide(flat, per_row), unit = flat - row * per_row;
  const int64_t token = divide(row, call.heads), h = row - token * call.heads;
  const int64_t b = divide(token, call.length), s = token - b * call.length;
  const T* const x = call.x + b * call.x_stride[0] + s * call.x_stride[1] + h * call.x_stride[2];
  T* const y = call.y + b * call.y_stride[0] + s * call.y_stride[1] + h * call.y_stride[2];
  const int64_t pair = unit * P;
  if (pair < call.pairs) {
    const int64_t at = b * call.angle_stride + s * call.pairs + pair;
    Unit::run(x, y, pair, call.pairs, h < call.turned, [&] {
      AnglesOf<A, P> angles{load_vector<P>(call.cos + at), load_vector<P>(call.sin + at)};
#pragma unroll
      for (A& sine : angles.sin.element) sine *= call.sign;
      return angles;
    });
    return;
  }
  const int64_t rest = 2 * call.pairs + (unit - call.pairs / P) * C;
  store_vector(y + rest, load_vector<C>(x + rest));
}

template <class Unit, int C, class T>
void launch(const KernelContext& context, const Call<T>& call, int64_t batch) {
  const int64_t per_row = call.pairs / Unit::kPairs + (call.width - 2 * call.pairs) / C;
  const int64_t units = batch * call.length * call.heads * per_row;
  if (units == 0) return;
  const CardGuard guard(context.device.index);
  rotary_kernel<Unit, C>
      <<<blocks_for(units), kThreads, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(
          call, units, per_row);
  SASH_CUDA_CHECK(cudaGetLastError());
}

/// Whether units of P pairs lie in aligned vectors of V elements, and so do their angles.
template <class T>
bool takes_vectors(const Call<T>& call, int64_t V, int64_t P) {
  const auto aligned = [](const void* data, size_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % bytes == 0;
  };
  const size_t angles = sizeof(compute_t<T>) * static_cast<size_t>(P);
  bool fits = call.pairs % P == 0 && (call.width - 2 * call.pairs) % V == 0 &&
              call.angle_stride % P == 0 && aligned(call.x, 16) && aligned(call.y, 16) &&
              aligned(call.cos, angles) && aligned(call.sin, angles);
  for (int i = 0; i < 3; ++i) {
    fits = fits && call.x_stride[i] % V == 0 && call.y_stride[i] % V == 0;
  }
  return fits;
}

void rotary(KernelContext& context, const TensorView& x, const TensorView& cos,
            const TensorView& sin, const TensorView& y, const kernels::RotaryParams& params) {
  dispatch_any_floating(x.dtype, "rotary", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    using A = compute_t<T>;
    constexpr int V = 16 / sizeof(T);
    Call<T> call{};
    call.x = x.ptr<T>();
    call.cos = cos.ptr<A>();
    call.sin = sin.ptr<A>();
    call.y = y.ptr<T>();
    for (int i = 0; i < 3; ++i) {
      call.x_stride[i] = x.strides[i];
      call.y_stride[i] = y.strides[i];
    }
    call.angle_stride = cos.shape[0] == 1 ? 0 : cos.strides[0];
    call.length = x.shape[1];
    call.heads = x.shape[2];
    call.width = x.shape[3];
    call.pairs = cos.shape[2];
    call.turned = params.heads;
    call.sign = params.back ? A(-1) : A(1);
    const int64_t batch = x.shape[0];
    if (params.interleaved) {
      if (takes_vectors(call, V, V / 2)) {
        launch<InterleavedUnit<V>, V>(context, call, batch);
      } else {
        launch<ScalarPair, 1>(context, call, batch);
      }
    } else if (takes_vectors(call, V, V)) {
      launch<HalvesUnit<V>, V>(context, call, batch);
    } else {
      launch<HalvesUnit<1>, 1>(context, call, batch);
    }
  });
}

}  // namespace

void register_rotary() { kernels::rotary.set(DeviceType::cuda, rotary); }

}  // namespace sash::cuda
