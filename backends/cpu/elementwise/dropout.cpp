#include "../../../ops/kernels/elementwise.h"

#include "dropout.h"

#include "../../../core/backend/dispatch.h"
#include "elementwise.h"

namespace sash::cpu {
namespace {

void dropout(KernelContext&, View x, View y, double p, PhiloxState state) {
  const DropoutRule rule(p, state);
  dispatch_with_halves(x.dtype, "dropout", [&]<class T>(TypeTag<T>) {
    for_each_block<T, T>(
        Order::row_major,
        [&rule](int64_t flat, int64_t n, T* out, const T* in) { drop(rule, flat, n, out, in); }, y,
        x);
  });
}

}  // namespace

void register_dropout() { kernels::dropout.set(DeviceType::cpu, dropout); }

}  // namespace sash::cpu
