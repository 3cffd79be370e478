#include "../../../ops/kernels/elementwise.h"

#include "dropout.cuh"

namespace sash::cuda {
namespace {

void dropout(KernelContext& context, View x, View y, double p, PhiloxState state) {
  dispatch_any_floating(x.dtype, "dropout", [&]<class T>(TypeTag<T>) {
    philox_map<T>(context, DropoutFactors<operand_t<T>>(p, state), state, y, x);
  });
}

}  // namespace

void register_dropout() { kernels::dropout.set(DeviceType::cuda, dropout); }

}  // namespace sash::cuda
