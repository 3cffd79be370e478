#include <algorithm>

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

  bool in_place() const { return x == y; }
  /// Features of a head behind the last pair that are to be copied.
  int64_t rest() const { return in_place() ? 0 : width - 2 * pairs; }
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

/// Elements that wait, as the words of a vector: halves would take a register each.
template <int V, class T>
using Waiting = std::conditional_t<V * sizeof(T) == 16, int4, Vector<T, V>>;

template <int V, class T>
__device__ Waiting<V, T> load_waiting(const T* x) {
  return *reinterpret_cast<const Waiting<V, T>*>(x);
}
template <int V, class T>
__device__ Vector<T, V>& elements_of(Waiting<V, T>& words) {
  return reinterpret_cast<Vector<T, V>&>(words);
}

template <class A, int P>
struct AnglesOf {
  Vector<A, P> cos, sin;

  template <class T>
  __device__ void turn(T& first, T& second, int pair) const {
    const A a = widen(first), b = widen(second), c = cos.element[pair], s = sin.element[pair];
    first = narrow<T>(a * c - b * s);
    second = narrow<T>(a * s + b * c);
  }
};

/// Halves: V pairs, as a vector of each half.
template <int V, class T>
struct HalvesUnit {
  static constexpr int kPairs = V, kHeads = V > 1 ? 4 : 1;
  Waiting<V, T> first, second;

  __device__ void load(const T* x, int64_t pair, int64_t pairs) {
    first = load_waiting<V>(x + pair);
    second = load_waiting<V>(x + pairs + pair);
  }
  __device__ void turn(const AnglesOf<compute_t<T>, kPairs>& angles) {
    auto &a = elements_of<V, T>(first), &b = elements_of<V, T>(second);
#pragma unroll
    for (int i = 0; i < V; ++i) angles.turn(a.element[i], b.element[i], i);
  }
  __device__ void store(T* y, int64_t pair, int64_t pairs) {
    store_whole(y + pair, elements_of<V, T>(first));
    store_whole(y + pairs + pair, elements_of<V, T>(second));
  }
};

/// Neighbours: a vector of V = 2 P elements.
template <int V, class T>
struct InterleavedUnit {
  static constexpr int kPairs = V / 2, kHeads = 4;
  Waiting<V, T> values;

  __device__ void load(const T* x, int64_t pair, int64_t) {
    values = load_waiting<V>(x + 2 * pair);
  }
  __device__ void turn(const AnglesOf<compute_t<T>, kPairs>& angles) {
    auto& x = elements_of<V, T>(values);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) angles.turn(x.element[2 * i], x.element[2 * i + 1], i);
  }
  __device__ void store(T* y, int64_t pair, int64_t) {
    store_whole(y + 2 * pair, elements_of<V, T>(values));
  }
};

/// Neighbours that no vector holds.
template <class T>
struct ScalarPair {
  static constexpr int kPairs = 1, kHeads = 1;
  T first, second;

  __device__ void load(const T* x, int64_t pair, int64_t) {
    first = x[2 * pair];
    second = x[2 * pair + 1];
  }
  __device__ void turn(const AnglesOf<compute_t<T>, 1>& angles) { angles.turn(first, second, 0); }
  __device__ void store(T* y, int64_t pair, int64_t) {
    y[2 * pair] = first;
    y[2 * pair + 1] = second;
  }
};

/// A thread takes a unit of pairs of every `groups`-th head of a token, or copies C elements behind
/// the last pair of these.
template <class Unit, int C, class T>
__global__ void __launch_bounds__(kThreads)
    rotary_kernel(const __grid_constant__ Call<T> call, int64_t threads, int64_t groups,
                  int64_t per_row) {
  constexpr int P = Unit::kPairs, K = Unit::kHeads;
  const int64_t flat = thread_index();
  if (flat >= threads) return;
  const Divide divide{threads <= UINT32_MAX};
  const int64_t row = divide(flat, per_row), unit = flat - row * per_row;
  const int64_t token = divide(row, groups), group = row - token * groups;
  const int64_t b = divide(token, call.length), s = token - b * call.length;
  const T* const x = call.x + b * call.x_stride[0] + s * call.x_stride[1];
  T* const y = call.y + b * call.y_stride[0] + s * call.y_stride[1];
  const auto over_heads = [&](auto f) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t head = group + k * groups;
      if (head < call.heads) f(k, head);
    }
  };
  const int64_t pair = unit * P;
  if (pair < call.pairs) {
    Unit units[K];
    over_heads(
        [&](int k, int64_t head) { units[k].load(x + head * call.x_stride[2], pair, call.pairs); });
    const int64_t at = b * call.angle_stride + s * call.pairs + pair;
    AnglesOf<compute_t<T>, P> angles{load_vector<P>(call.cos + at), load_vector<P>(call.sin + at)};
#pragma unroll
    for (auto& sine : angles.sin.element) sine *= call.sign;
    over_heads([&](int k, int64_t head) {
      if (head < call.turned) units[k].turn(angles);
      units[k].store(y + head * call.y_stride[2], pair, call.pairs);
    });
    return;
  }
  const int64_t rest = 2 * call.pairs + (unit - call.pairs / P) * C;
  over_heads([&](int, int64_t head) {
    store_whole(y + head * call.y_stride[2] + rest,
                load_vector<C>(x + head * call.x_stride[2] + rest));
  });
}

template <class Unit, int C, class T>
void launch(const KernelContext& context, const Call<T>& call, int64_t batch) {
  const int64_t per_row = call.pairs / Unit::kPairs + call.rest() / C;
  const int64_t groups = (call.heads + Unit::kHeads - 1) / Unit::kHeads;
  const int64_t threads = batch * call.length * groups * per_row;
  if (threads == 0) return;
  launch_kernel(context, blocks_for(threads), kThreads, 0, rotary_kernel<Unit, C, T>, call, threads,
                groups, per_row);
}

/// Whether units of P pairs lie in aligned vectors of V elements, and so do their angles.
template <class T>
bool takes_vectors(const Call<T>& call, int64_t V, int64_t P) {
  const auto aligned = [](const void* data, size_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % bytes == 0;
  };
  const size_t angles = sizeof(compute_t<T>) * static_cast<size_t>(P);
  bool fits = call.pairs % P == 0 && call.rest() % V == 0 && call.angle_stride % P == 0 &&
              aligned(call.x, 16) && aligned(call.y, 16) && aligned(call.cos, angles) &&
              aligned(call.sin, angles);
  for (int i = 0; i < 3; ++i) {
    fits = fits && call.x_stride[i] % V == 0 && call.y_stride[i] % V == 0;
  }
  return fits;
}

void rotary(KernelContext& context, View x, View cos, View sin, View y,
            const kernels::RotaryParams& params) {
  dispatch_device_floating(x.dtype, "rotary", [&]<class T>(TypeTag<T>) {
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
    call.heads = call.in_place() ? std::min(params.heads, x.shape[2]) : x.shape[2];
    call.width = x.shape[3];
    call.pairs = cos.shape[2];
    call.turned = params.heads;
    call.sign = params.back ? A(-1) : A(1);
    const int64_t batch = x.shape[0];
    if (params.interleaved) {
      if (takes_vectors(call, V, V / 2)) {
        launch<InterleavedUnit<V, T>, V>(context, call, batch);
      } else {
        launch<ScalarPair<T>, 1>(context, call, batch);
      }
    } else if (takes_vectors(call, V, V)) {
      launch<HalvesUnit<V, T>, V>(context, call, batch);
    } else {
      launch<HalvesUnit<1, T>, 1>(context, call, batch);
    }
  });
}

}  // namespace

void register_rotary() { kernels::rotary.set(DeviceType::cuda, rotary); }

}  // namespace sash::cuda
