#include "../shape/in_float.h"
#include "table.h"

namespace sash::cpu {

void register_binary() {
  op::ArithmeticOps::for_each([]<class Op>(Op) {
    kernels::slot<Op>().set(DeviceType::cpu, in_float_by_elements<binary<Op>, 2>);
  });
}

}  // namespace sash::cpu
