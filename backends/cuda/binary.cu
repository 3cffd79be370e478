#include "../../ops/kernels/binary.h"

#include "../../core/dispatch.h"
#include "strided.cuh"

namespace sash::cuda {
namespace {

template <class T>
struct Add {
  __device__ T operator()(T a, T b) const { return a + b; }
};

void add(KernelContext& context, const TensorView& a, const TensorView& b, const TensorView& y) {
  dispatch_numeric(y.dtype, "add",
                   [&]<class T>(TypeTag<T>) { elementwise<T, T, T>(context, Add<T>{}, y, a, b); });
}

}  // namespace

void register_binary() { kernels::add.set(DeviceType::cuda, add); }

}  // namespace sash::cuda
