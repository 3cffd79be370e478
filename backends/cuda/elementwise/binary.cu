#include "table.cuh"

namespace sash::cuda {

void register_binary() {
  op::ArithmeticOps::for_each(
      []<class Op>(Op) { kernels::slot<Op>().set(DeviceType::cuda, binary<Op>); });
}

}  // namespace sash::cuda
