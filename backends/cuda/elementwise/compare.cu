#include "table.cuh"

namespace sash::cuda {

void register_compare() {
  op::CompareOps::for_each([]<class Op>(Op) {
    kernels::slot<Op>().set(DeviceType::cuda, binary<Op>);
    kernels::scalar_slot<Op>().set(DeviceType::cuda, scalar<Op>);
  });
}

}  // namespace sash::cuda
