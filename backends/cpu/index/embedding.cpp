#include "../../../ops/kernels/index.h"

#include <algorithm>
#include <cstring>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../shape/in_float.h"

namespace sash::cpu {
namespace {

void embedding_forward(KernelContext&, View weight, View index, View y) {
  const int64_t bytes = weight.shape[1] * size_of(weight.dtype);
  if (bytes == 0) return;
  const char* const table = weight.ptr<char>();
  const int64_t* const row = index.ptr<int64_t>();
  parallel_for_each(index.numel(), 65536 / bytes, [&](int64_t n) {
    std::memcpy(y.ptr<char>() + n * bytes, table + row[n] * bytes, static_cast<size_t>(bytes));
  });
}

/// Columns per task of the backward pass: 256 bytes of float32.
constexpr int64_t kColumns = 64;

/// Adds columns [begin, end) of every g to dweight. Each thread has its own columns and visits all
/// tokens in order, so there are no races and the order of additions is fixed.
template <class T>
void add_columns(View g, View index, View dweight, int64_t begin, int64_t end) {
  const int64_t width = g.shape[1];
  T* const table = dweight.ptr<T>();
  const int64_t* const row = index.ptr<int64_t>();
  for (int64_t v = 0; v < dweight.shape[0]; ++v) {
    std::fill(table + v * width + begin, table + v * width + end, T(0));
  }
  const auto add = [&](int64_t n, int64_t columns) {
    T* const __restrict to = table + row[n] * width + begin;
    const T* const __restrict from = g.ptr<T>() + n * width + begin;
    for (int64_t d = 0; d < columns; ++d) to[d] += from[d];
  };
  // Processors do not prefetch parts of rows.
  constexpr int64_t kAhead = 8, kLine = 64 / int64_t{sizeof(T)};
  const int64_t tokens = index.numel();
  if (end - begin < kColumns) {
    for (int64_t n = 0; n < tokens; ++n) add(n, end - begin);
    return;
  }
  for (int64_t n = 0; n < tokens; ++n) {
    const T* const next = g.ptr<T>() + std::min(n + kAhead, tokens - 1) * width + begin;
    for (int64_t d = 0; d < kColumns; d += kLine) __builtin_prefetch(next + d);
    add(n, kColumns);
  }
}

void embedding_backward(KernelContext&, View g, View index, View dweight) {
  dispatch_floating(g.dtype, "embedding_backward", [&]<class T>(TypeTag<T>) {
    parallel_for(g.shape[1], kColumns, [&](int64_t begin, int64_t end) {
      add_columns<T>(g, index, dweight, begin, end);
    });
  });
}

}  // namespace

void register_embedding() {
  kernels::embedding_forward.set(DeviceType::cpu, embedding_forward);
  kernels::embedding_backward.set(DeviceType::cpu, in_float<embedding_backward, 2>);
}

}  // namespace sash::cpu
