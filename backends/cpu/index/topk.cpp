#include <algorithm>
#include <cmath>
#include <vector>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../../../ops/kernels/index.h"

namespace sash::cpu {
namespace {

template <class T>
struct Entry {
  T value;
  int64_t index;
};

// Whether a stands before b in the result: NaN, then larger values, then lower indices.
template <class T>
bool before(const Entry<T>& a, const Entry<T>& b) {
  if constexpr (std::is_floating_point_v<T>) {
    const bool a_nan = std::isnan(a.value), b_nan = std::isnan(b.value);
    if (a_nan || b_nan) return a_nan != b_nan ? a_nan : a.index < b.index;
  }
  return a.value != b.value ? a.value > b.value : a.index < b.index;
}

// The k entries that come first, in order. `chosen` is a heap whose top comes last.
template <class T>
void choose(const T* x, int64_t step, int64_t n, int64_t k, std::vector<Entry<T>>& chosen) {
  chosen.clear();
  for (int64_t i = 0; i < k; ++i) chosen.push_back({x[i * step], i});
  if (k == 0) return;
  std::make_heap(chosen.begin(), chosen.end(), before<T>);
  for (int64_t i = k; i < n; ++i) {
    const Entry<T> next{x[i * step], i};
    if (next.value <= chosen.front().value || !before(next, chosen.front())) continue;
    std::pop_heap(chosen.begin(), chosen.end(), before<T>);
    chosen.back() = next;
    std::push_heap(chosen.begin(), chosen.end(), before<T>);
  }
  std::sort_heap(chosen.begin(), chosen.end(), before<T>);
}

// Offset of line number `line`, counted over all axes but `axis`.
int64_t offset_of(int64_t line, const TensorView& view, int axis) {
  int64_t at = 0;
  for (int i = view.rank() - 1; i >= 0; --i) {
    if (i == axis) continue;
    at += line % view.shape[i] * view.strides[i];
    line /= view.shape[i];
  }
  return at;
}

void topk(KernelContext&, const TensorView& x, const TensorView& values, const TensorView& indices,
          int axis) {
  const int64_t n = x.shape[axis], k = values.shape[axis];
  if (values.numel() == 0) return;
  dispatch_numeric(x.dtype, "topk", [&]<class T>(TypeTag<T>) {
    const int64_t step = x.strides[axis];
    parallel_for(x.numel() / n, std::max<int64_t>(1, 16384 / n), [&](int64_t begin, int64_t end) {
      std::vector<Entry<T>> chosen;
      for (int64_t line = begin; line < end; ++line) {
        choose(x.ptr<T>() + offset_of(line, x, axis), step, n, k, chosen);
        T* const value = values.ptr<T>() + offset_of(line, values, axis);
        int64_t* const index = indices.ptr<int64_t>() + offset_of(line, indices, axis);
        for (int64_t i = 0; i < k; ++i) {
          value[i * values.strides[axis]] = chosen[static_cast<size_t>(i)].value;
          index[i * indices.strides[axis]] = chosen[static_cast<size_t>(i)].index;
        }
      }
    });
  });
}

}  // namespace

void register_topk() { kernels::topk.set(DeviceType::cpu, topk); }

}  // namespace sash::cpu
