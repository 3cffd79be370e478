#include "../../../tensor/kernels/random.h"

#include <cmath>

#include "../../../ops/kernels/random.h"
#include "../elementwise/strided.cuh"
#include "philox.cuh"

namespace sash::cuda {
namespace {

template <class T>
struct Uniform {
  T from, width, last;
  __device__ Vector<T, 4> operator()(const PhiloxBlock& block) const {
    return four_of<T>(block, [&](uint32_t bits) {
      return ::min(from + width * uniform_from_bits<T>(bits), last);
    });
  }
};

/// Box and Muller, "A note on the generation of random normal deviates", 1958.
template <class T>
struct Normal {
  T centre, scale;
  __device__ Vector<T, 4> operator()(const PhiloxBlock& block) const {
    constexpr T unit = static_cast<T>(0x1p-32);
    constexpr T two_pi = static_cast<T>(6.283185307179586476925);
    Vector<T, 4> y;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const T u1 = (static_cast<T>(block.lane[i]) + 1) * unit;
      const T radius = std::sqrt(-2 * std::log(u1));
      T sine, cosine;
      ::sincos(two_pi * (static_cast<T>(block.lane[i + 1]) * unit), &sine, &cosine);
      y.element[i] = centre + scale * (radius * cosine);
      y.element[i + 1] = centre + scale * (radius * sine);
    }
    return y;
  }
};

template <class T>
struct Truncated {
  kernels::TruncatedNormal number;
  __device__ Vector<T, 4> operator()(const PhiloxBlock& block) const {
    return four_of<T>(block, [&](uint32_t bits) { return static_cast<T>(number(bits)); });
  }
};

template <class T>
struct Integer {
  int64_t low;
  uint32_t range;  // of 32 bits, because 64-bit division is slow
  __device__ Vector<T, 4> operator()(const PhiloxBlock& block) const {
    return four_of<T>(block, [&](uint32_t bits) {
      return static_cast<T>(low + static_cast<int64_t>(bits % range));
    });
  }
};

/// 64 random bits per element. The high 32 come from one block, the low 32 from the block `blocks`
/// after it.
template <class T>
struct WideInteger {
  int64_t low;
  uint64_t range;
  uint64_t seed;
  uint64_t blocks;
  __device__ Vector<T, 4> operator()(const PhiloxBlock& upper, uint64_t counter) const {
    const PhiloxBlock lower = philox(seed, counter + blocks);
    Vector<T, 4> y;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint64_t bits = uint64_t{upper.lane[i]} << 32 | lower.lane[i];
      y.element[i] = static_cast<T>(static_cast<uint64_t>(low) + bits % range);
    }
    return y;
  }
};

void random_uniform(KernelContext& context, View y, PhiloxState state, double low, double high) {
  dispatch_any_floating(y.dtype, "random_uniform", [&]<class T>(TypeTag<T>) {
    using C = operand_t<T>;
    const Uniform<C> uniform{static_cast<C>(low), static_cast<C>(high - low),
                             static_cast<C>(kernels::last_below<T>(low, high))};
    philox_map<T>(context, uniform, state, y);
  });
}

void random_normal(KernelContext& context, View y, PhiloxState state, double mean, double std) {
  dispatch_any_floating(y.dtype, "random_normal", [&]<class T>(TypeTag<T>) {
    using C = operand_t<T>;
    const Normal<C> normal{static_cast<C>(mean), static_cast<C>(std)};
    philox_map<T>(context, normal, state, y);
  });
}

void random_truncated_normal(KernelContext& context, View y, PhiloxState state,
                             const kernels::TruncatedNormal& number) {
  dispatch_any_floating(y.dtype, "random_truncated_normal", [&]<class T>(TypeTag<T>) {
    philox_map<T>(context, Truncated<operand_t<T>>{number}, state, y);
  });
}

void random_integer(KernelContext& context, View y, PhiloxState state, int64_t low, int64_t high) {
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  const uint64_t blocks = (static_cast<uint64_t>(y.numel()) + 3) / 4;
  sash::detail::dispatch_over<int64_t, int32_t>(
      y.dtype, "random_integer", [&]<class T>(TypeTag<T>) {
        if (range > kernels::kNarrowRange) {
          return philox_map<T>(context, WideInteger<T>{low, range, state.seed, blocks}, state, y);
        }
        philox_map<T>(context, Integer<T>{low, static_cast<uint32_t>(range)}, state, y);
      });
}

__global__ void __launch_bounds__(kThreads)
    first_above_kernel(const double* ends, const double* aim, int64_t* y, int64_t classes,
                       int64_t draws, int64_t count) {
  const int64_t i = thread_index();
  if (i >= count) return;
  const double* const line = ends + i / draws * classes;
  int64_t low = 0, high = classes;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (line[middle] > aim[i]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  y[i] = low;
}

void first_above(KernelContext& context, View ends, View aim, View y) {
  const int64_t count = y.numel();
  if (count == 0) return;
  launch_kernel(context, blocks_for(count), kThreads, 0, first_above_kernel, ends.ptr<double>(),
                aim.ptr<double>(), y.ptr<int64_t>(), ends.shape[1], aim.shape[1], count);
}

}  // namespace

void register_random() {
  kernels::random_uniform.set(DeviceType::cuda, random_uniform);
  kernels::random_normal.set(DeviceType::cuda, random_normal);
  kernels::random_truncated_normal.set(DeviceType::cuda, random_truncated_normal);
  kernels::random_integer.set(DeviceType::cuda, random_integer);
}

void register_first_above() { kernels::first_above.set(DeviceType::cuda, first_above); }

}  // namespace sash::cuda
