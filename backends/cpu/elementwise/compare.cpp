#include "table.h"

namespace sash::cpu {

void register_compare() {
  op::CompareOps::for_each([]<class Op>(Op) {
    kernels::slot<Op>().set(DeviceType::cpu, binary<Op>);
    kernels::scalar_slot<Op>().set(DeviceType::cpu, scalar<Op>);
  });
}

}  // namespace sash::cpu
