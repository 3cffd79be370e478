#include "table.h"

namespace sash::cpu {

void register_binary() {
  op::ArithmeticOps::for_each(
      []<class Op>(Op) { kernels::slot<Op>().set(DeviceType::cpu, binary<Op>); });
}

}  // namespace sash::cpu
