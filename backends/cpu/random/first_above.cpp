#include <algorithm>

#include "../../../core/parallel.h"
#include "../../../ops/kernels/random.h"

namespace sash::cpu {
namespace {

void first_above(KernelContext&, View ends, View aim, View y) {
  const int64_t classes = ends.shape[1], draws = aim.shape[1];
  parallel_for_each(aim.numel(), 1024, [&](int64_t i) {
    const double* const line = ends.ptr<double>() + i / draws * classes;
    y.ptr<int64_t>()[i] = std::upper_bound(line, line + classes, aim.ptr<double>()[i]) - line;
  });
}

}  // namespace

void register_first_above() { kernels::first_above.set(DeviceType::cpu, first_above); }

}  // namespace sash::cpu
