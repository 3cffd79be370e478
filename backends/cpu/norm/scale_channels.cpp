#include <algorithm>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../../../ops/kernels/batch_norm.h"

namespace sash::cpu {
namespace {

void scale_channels(KernelContext&, View x, View mean, View scale, View shift, View y) {
  constexpr int64_t kPiece = 16384;
  const int64_t channels = x.shape[1], length = x.shape[2];
  dispatch_floating(x.dtype, "batch_norm", [&]<class T>(TypeTag<T>) {
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t c = line % channels;
        const T m = mean.ptr<T>()[c], a = scale.ptr<T>()[c], b = shift.ptr<T>()[c];
        const T* const from = x.ptr<T>() + line * length;
        T* const to = y.ptr<T>() + line * length;
        for (int64_t i = 0; i < length; ++i) to[i] = (from[i] - m) * a + b;
      }
    };
    parallel_for(x.shape[0] * channels, kPiece / std::max<int64_t>(1, length), run);
  });
}

}  // namespace

void register_scale_channels() { kernels::scale_channels.set(DeviceType::cpu, scale_channels); }

}  // namespace sash::cpu
