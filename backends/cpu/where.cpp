#include "../../ops/kernels/where.h"

#include "../../core/dispatch.h"
#include "elementwise.h"

namespace sash::cpu {
namespace {

void where(KernelContext&, const TensorView& cond, const TensorView& a, const TensorView& b,
           const TensorView& y) {
  dispatch_all(y.dtype, "where", [&]<class T>(TypeTag<T>) {
    for_each_block<T, bool, T, T>(
        Order::memory,
        [](int64_t, int64_t n, T* out, const bool* c, const T* p, const T* q) {
          for (int64_t i = 0; i < n; ++i) {
            const T yes = p[i], no = q[i];
            out[i] = c[i] ? yes : no;
          }
        },
        y, cond, a, b);
  });
}

void masked_fill(KernelContext&, const TensorView& x, const TensorView& mask, const TensorView& y,
                 const Scalar& value) {
  dispatch_all(y.dtype, "masked_fill", [&]<class T>(TypeTag<T>) {
    const T element = value.to<T>();
    for_each_block<T, T, bool>(
        Order::memory,
        [element](int64_t, int64_t n, T* out, const T* in, const bool* m) {
          for (int64_t i = 0; i < n; ++i) {
            const T kept = in[i];
            out[i] = m[i] ? element : kept;
          }
        },
        y, x, mask);
  });
}

}  // namespace

void register_where() {
  kernels::where.set(DeviceType::cpu, where);
  kernels::masked_fill.set(DeviceType::cpu, masked_fill);
}

}  // namespace sash::cpu
