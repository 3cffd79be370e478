#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../../../ops/kernels/index.h"
#include "../shape/convert.h"
#include "sort_line.h"

namespace sash::cpu {
namespace {

template <class T>
struct Entry {
  T value;
  int64_t index;
};

// Whether a stands before b in the result: NaN and larger values (or smaller ones, then NaN), then
// lower indices.
template <bool kLargest, class T>
bool before(const Entry<T>& a, const Entry<T>& b) {
  if constexpr (std::is_floating_point_v<T>) {
    const bool a_nan = std::isnan(a.value), b_nan = std::isnan(b.value);
    if (a_nan != b_nan) return a_nan == kLargest;
    if (a_nan) return a.index < b.index;
  }
  return a.value != b.value ? (a.value > b.value) == kLargest : a.index < b.index;
}

// The elements of a line along the axis.
template <class T>
struct Line {
  const T* x;
  int64_t step;
  int64_t size;

  compute_t<T> operator[](int64_t i) const { return static_cast<compute_t<T>>(x[i * step]); }
};

// The k entries that come first, in order. `chosen` is a heap whose top comes last.
template <bool kLargest, class T>
void choose(const Line<T>& x, int64_t k, std::vector<Entry<compute_t<T>>>& chosen) {
  constexpr auto first = before<kLargest, compute_t<T>>;
  chosen.clear();
  for (int64_t i = 0; i < k; ++i) chosen.push_back({x[i], i});
  std::make_heap(chosen.begin(), chosen.end(), first);
  for (int64_t i = k; i < x.size; ++i) {
    const Entry<compute_t<T>> next{x[i], i};
    const auto last = chosen.front().value;
    if (kLargest ? next.value <= last : next.value >= last) continue;
    if (!first(next, chosen.front())) continue;
    std::pop_heap(chosen.begin(), chosen.end(), first);
    chosen.back() = next;
    std::push_heap(chosen.begin(), chosen.end(), first);
  }
  std::sort_heap(chosen.begin(), chosen.end(), first);
}

// Sorts the places of the whole line.
template <bool kLargest, class T>
void sort_all(const Line<T>& x, LineSort<key_t<compute_t<T>>>& sort) {
  using Key = key_t<compute_t<T>>;
  int64_t i = 0;
  for (auto& entry : sort.entries()) {
    const Key key = ascending_key(x[i]);
    entry = {kLargest ? static_cast<Key>(~key) : key, static_cast<Key>(i++)};
  }
  sort.run();
}

// Offset of line number `line`, counted over all axes but `axis`.
int64_t offset_of(int64_t line, View view, int axis) {
  int64_t at = 0;
  for (int i = view.rank() - 1; i >= 0; --i) {
    if (i == axis) continue;
    at += line % view.shape[i] * view.strides[i];
    line /= view.shape[i];
  }
  return at;
}

template <bool kLargest, class T>
void choose_lines(const KernelContext& context, View x, View values, View indices, int axis) {
  const int64_t n = x.shape[axis], k = values.shape[axis];
  const bool few = k <= n / 8 || n > std::numeric_limits<uint32_t>::max();
  parallel_for(x.numel() / n, 16384 / n, [&](int64_t begin, int64_t end) {
    std::vector<Entry<compute_t<T>>> chosen;
    LineSort<key_t<compute_t<T>>> sort(context, few ? 0 : n);
    for (int64_t line = begin; line < end; ++line) {
      const Line<T> from{x.ptr<T>() + offset_of(line, x, axis), x.strides[axis], n};
      few ? choose<kLargest>(from, k, chosen) : sort_all<kLargest>(from, sort);
      T* const value = values.ptr<T>() + offset_of(line, values, axis);
      int64_t* const index = indices.ptr<int64_t>() + offset_of(line, indices, axis);
      for (int64_t i = 0; i < k; ++i) {
        const auto at = static_cast<size_t>(i);
        const int64_t place =
            few ? chosen[at].index : static_cast<int64_t>(sort.entries()[at].place);
        value[i * values.strides[axis]] = from.x[place * from.step];
        index[i * indices.strides[axis]] = place;
      }
    }
  });
}

// The place of the lower median, found digit by digit of its key.
template <class T>
int64_t median_place(const Line<T>& x) {
  using Key = key_t<compute_t<T>>;
  if constexpr (std::is_floating_point_v<compute_t<T>>) {
    for (int64_t i = 0; i < x.size; ++i) {
      if (x[i] != x[i]) return i;
    }
  }
  int64_t rank = (x.size - 1) / 2;  // among the elements that begin with the digits of `found`
  Key found = 0, known = 0;
  for (int shift = 8 * static_cast<int>(sizeof(Key)) - 8; shift >= 0; shift -= 8) {
    std::array<int64_t, 256> count{};
    for (int64_t i = 0; i < x.size; ++i) {
      const Key key = ascending_key(x[i]);
      if ((key & known) == found) ++count[static_cast<size_t>(key >> shift) & 255];
    }
    size_t digit = 0;
    while (rank >= count[digit]) rank -= count[digit++];
    found |= static_cast<Key>(digit) << shift;
    known |= static_cast<Key>(255) << shift;
  }
  for (int64_t i = 0;; ++i) {
    if (ascending_key(x[i]) == found && rank-- == 0) return i;
  }
}

void median(KernelContext&, View x, View y, int axis) {
  const int64_t n = x.shape[axis];
  dispatch_ordered(x.dtype, "median", [&]<class T>(TypeTag<T>) {
    parallel_for_each(x.numel() / n, 16384 / n, [&](int64_t line) {
      y.ptr<int64_t>()[offset_of(line, y, axis)] =
          median_place(Line<T>{x.ptr<T>() + offset_of(line, x, axis), x.strides[axis], n});
    });
  });
}

void topk(KernelContext& context, View x, View values, View indices, int axis, bool largest) {
  if (values.numel() == 0) return;
  dispatch_ordered(x.dtype, "topk", [&]<class T>(TypeTag<T>) {
    const auto run = largest ? choose_lines<true, T> : choose_lines<false, T>;
    run(context, x, values, indices, axis);
  });
}

}  // namespace

void register_topk() {
  kernels::topk.set(DeviceType::cpu, topk);
  kernels::median.set(DeviceType::cpu, median);
}

}  // namespace sash::cpu
