#include "../../../ops/kernels/elementwise.h"

#include "../random/philox.cuh"

namespace sash::cuda {
namespace {

/// What each element of a block is multiplied by.
template <class T>
struct Multipliers {
  uint32_t threshold;
  T scale;
  __device__ Vector<T, 4> operator()(const PhiloxBlock& block) const {
    Vector<T, 4> y;
#pragma unroll
    for (int i = 0; i < 4; ++i) y.element[i] = block.lane[i] >= threshold ? scale : T(0);
    return y;
  }
};

void dropout(KernelContext& context, const TensorView& x, const TensorView& y, double p,
             PhiloxState state) {
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  dispatch_any_floating(x.dtype, "dropout", [&]<class T>(TypeTag<T>) {
    using C = operand_t<T>;
    const Multipliers<C> multipliers{dropout_threshold(p), static_cast<C>(scale)};
    philox_map<T>(context, multipliers, state, y, x);
  });
}

}  // namespace

void register_dropout() { kernels::dropout.set(DeviceType::cuda, dropout); }

}  // namespace sash::cuda
