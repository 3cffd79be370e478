#include "../../../ops/kernels/index.h"

#include <algorithm>
#include <cstring>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"

namespace sash::cpu {
namespace {

void embedding_forward(KernelContext&, const TensorView& weight, const TensorView& index,
                       const TensorView& y) {
  const int64_t bytes = weight.shape[1] * size_of(weight.dtype);
  if (bytes == 0) return;
  const char* const table = weight.ptr<char>();
  const int64_t* const row = index.ptr<int64_t>();
  parallel_for(index.numel(), std::max<int64_t>(1, 65536 / bytes), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      std::memcpy(y.ptr<char>() + n * bytes, table + row[n] * bytes, static_cast<size_t>(bytes));
    }
  });
}

/// Adds columns [begin, end) of every g to dweight. Each thread has its own columns and visits all
/// tokens in order, so there are no races and the order of additions is fixed.
template <class T>
void add_columns(const TensorView& g, const TensorView& index, const TensorView& dweight,
                 int64_t begin, int64_t end) {
  const int64_t width = g.shape[1];
  T* const table = dweight.ptr<T>();
  const int64_t* const row = index.ptr<int64_t>();
  for (int64_t v = 0; v < dweight.shape[0]; ++v) {
    std::fill(table + v * width + begin, table + v * width + end, T(0));
  }
  for (int64_t n = 0; n < index.numel(); ++n) {
    T* const to = table + row[n] * width;
    const T* const from = g.ptr<T>() + n * width;
    for (int64_t d = begin; d < end; ++d) to[d] += from[d];
  }
}

void embedding_backward(KernelContext&, const TensorView& g, const TensorView& index,
                        const TensorView& dweight) {
  dispatch_floating(g.dtype, "embedding_backward", [&]<class T>(TypeTag<T>) {
    parallel_for(g.shape[1], 32, [&](int64_t begin, int64_t end) {
      add_columns<T>(g, index, dweight, begin, end);
    });
  });
}

}  // namespace

void register_embedding() {
  kernels::embedding_forward.set(DeviceType::cpu, embedding_forward);
  kernels::embedding_backward.set(DeviceType::cpu, embedding_backward);
}

}  // namespace sash::cpu
