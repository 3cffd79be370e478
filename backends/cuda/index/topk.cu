// The largest elements along one axis.
#include "../../../ops/kernels/index.h"
#include "../norm/rows.cuh"
#include "lines.cuh"
#include "sorted_keys.h"

namespace sash::cuda {
namespace {

/// Lines of up to this many elements are stored in registers, longer lines are read in each pass.
constexpr int64_t kLongestInBlock = int64_t{kHeld} * kThreads;
/// Up to this many elements of a line are selected by a block, which counts in 32 bits; for more,
/// and for longer lines, all lines are sorted.
constexpr int64_t kMostChosen = 1024, kLongestCounted = INT32_MAX;
constexpr int kDigitBits = 11, kDigits = 1 << kDigitBits;

/// The keys of a block's line: in registers, or read at each use.
template <bool kInRegisters, class T>
class Keys {
 public:
  using Key = ordered_t<compute_t<T>>;

  __device__ Keys(const T* x, const Lines& lines)
      : x_(x), step_(lines.x_step), n_(lines.length), largest_(lines.largest) {
    if constexpr (kInRegisters) {
      each_tile([&](int k, int64_t at) {
        if (at < n_) held_[k] = read_key(at);
      });
    }
  }
  /// Calls f(k, place) for each tile of kThreads elements, which have this thread's element at
  /// `place`; that may be past the end. All threads make the same calls.
  template <class F>
  __device__ void each_tile(F&& f) const {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        if (k * kThreads < n_) f(k, int64_t{k * kThreads} + threadIdx.x);
      }
    } else {
      for (int64_t start = 0; start < n_; start += kThreads) f(0, start + threadIdx.x);
    }
  }
  /// Calls f(key, place) for each element of this thread.
  template <class F>
  __device__ void each(F&& f) const {
    each_tile([&](int k, int64_t at) {
      if (at < n_) f(get(k, at), at);
    });
  }
  __device__ Key get(int k, int64_t at) const {
    if constexpr (kInRegisters) {
      return held_[k];
    } else {
      return read_key(at);
    }
  }

 private:
  __device__ Key read_key(int64_t at) const { return key_of(widen(x_[at * step_]), largest_); }

  const T* x_;
  int64_t step_, n_;
  bool largest_;
  Key held_[kInRegisters ? kHeld : 1];
};

/// Where the selected keys end: those above `prefix`, and `ties` of those that begin with it under
/// the mask `decided`.
template <class Key>
struct Threshold {
  Key prefix, decided;
  int ties;
  bool all;  ///< whether these are all that begin with it
};

/// Sum over the threads before this one, and over all.
__device__ int2 exclusive_sum(int x, int* of_warp) {
  const int within = scan_warp(x);
  __syncthreads();  // all threads have read the sums of the previous call
  if (WarpTeam::rank() == kWarp - 1) of_warp[threadIdx.x / kWarp] = within;
  __syncthreads();
  int before = within - x, all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < static_cast<int>(threadIdx.x) / kWarp) before += of_warp[w];
    all += of_warp[w];
  }
  return {before, all};
}

/// Finds the k-th largest key, from its highest digit down: each pass counts the digits of those
/// keys that begin with what is known.
template <class K, class Key = typename K::Key>
__device__ Threshold<Key> find_threshold(const K& keys, int k) {
  constexpr int kMine = kDigits / kThreads;
  __shared__ int count[kDigits];
  __shared__ int of_warp[kWarps];
  __shared__ int digit, above, members;
  Threshold<Key> found{0, 0, k, false};
  for (int top = 8 * sizeof(Key); top > 0 && !found.all;) {
    const int shift = max(0, top - kDigitBits);
    const Key mask = (Key{1} << (top - shift)) - 1;
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) count[i] = 0;
    __syncthreads();
    keys.each([&](Key key, int64_t) {
      if ((key & found.decided) == found.prefix) atomicAdd(&count[key >> shift & mask], 1);
    });
    __syncthreads();
    // Thread t has the t-th highest kMine digits.
    const int highest = kDigits - 1 - kMine * static_cast<int>(threadIdx.x);
    int mine = 0;
    for (int i = 0; i < kMine; ++i) mine += count[highest - i];
    int before = exclusive_sum(mine, of_warp).x;
    if (before < found.ties && found.ties <= before + mine) {
      int at = highest;
      while (before + count[at] < found.ties) before += count[at--];
      digit = at, above = before, members = count[at];
    }
    __syncthreads();
    found.prefix |= static_cast<Key>(digit) << shift;
    found.decided |= mask << shift;
    found.ties -= above;
    found.all = members == found.ties;
    top = shift;
    __syncthreads();  // before the next pass clears the counts
  }
  return found;
}

template <class Key>
struct Chosen {
  Key key[kMostChosen];
  int64_t place[kMostChosen];

  __device__ void put(int at, Key k, int64_t p) { key[at] = k, place[at] = p; }
  /// Whether entry a comes before entry b: larger keys, then lower places.
  __device__ bool before(int a, int b) const {
    return key[a] != key[b] ? key[a] > key[b] : place[a] < place[b];
  }
  __device__ void swap(int a, int b) {
    const Key k = key[a];
    const int64_t p = place[a];
    put(a, key[b], place[b]);
    put(b, k, p);
  }
};

template <class Key>
__device__ void sort(Chosen<Key>& chosen, int count) {
  int size = 1;
  while (size < count) size *= 2;
  for (int at = count + static_cast<int>(threadIdx.x); at < size; at += kThreads) {
    chosen.put(at, 0, INT64_MAX);
  }
  // Bitonic.
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < size / 2; i += kThreads) {
        const int a = i / step * 2 * step + i % step, b = a + step;
        const bool forward = (a & run) == 0;
        if (chosen.before(b, a) == forward) chosen.swap(a, b);
      }
    }
  }
  __syncthreads();
}

/// A block chooses the elements of one line.
template <bool kInRegisters, class T>
__global__ void __launch_bounds__(kThreads)
    choose_kernel(const __grid_constant__ Lines lines, const T* x, T* values, int64_t* indices) {
  using K = Keys<kInRegisters, T>;
  using Key = typename K::Key;
  __shared__ Chosen<Key> chosen;
  __shared__ int taken;
  __shared__ int of_warp[kWarps];
  int64_t at[3];
  lines.starts.find(blockIdx.x, 1, at);
  const K keys(x + at[0], lines);
  const int count = static_cast<int>(lines.chosen);
  const auto limit = find_threshold(keys, count);
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
  // The sort makes the order in which these are put irrelevant.
  keys.each([&](Key key, int64_t place) {
    if (limit.all ? key >= limit.prefix : key > limit.prefix) {
      chosen.put(atomicAdd(&taken, 1), key, place);
    }
  });
  if (!limit.all) {
    // The first of the elements that are equal.
    int found = 0;
    keys.each_tile([&](int k, int64_t place) {
      if (found >= limit.ties) return;
      const bool equal = place < lines.length && keys.get(k, place) == limit.prefix;
      const int2 sum = exclusive_sum(equal, of_warp);
      const int mine = found + sum.x;
      if (equal && mine < limit.ties) chosen.put(count - limit.ties + mine, limit.prefix, place);
      found += sum.y;
    });
  }
  __syncthreads();
  sort(chosen, count);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int64_t place = chosen.place[i];
    values[at[1] + i * lines.value_step] = x[at[0] + place * lines.x_step];
    indices[at[2] + i * lines.index_step] = place;
  }
}

// For many elements of a line, all lines are sorted: by line and key at once where both fit 64
// bits, else by key, then, stably, by line.

template <class T>
inline constexpr bool kWithLine = sizeof(ordered_t<compute_t<T>>) == 4;

template <class T>
__global__ void __launch_bounds__(kThreads)
    make_keys(const __grid_constant__ Lines lines, const T* x, uint64_t* keys, int64_t* places) {
  const int64_t place = thread_index();
  if (place >= lines.starts.count * lines.length) return;
  const int64_t line = place / lines.length;
  int64_t at[3];
  lines.starts.find(line, 1, at);
  const T element = x[at[0] + (place - line * lines.length) * lines.x_step];
  const auto key = key_of(widen(element), !lines.largest);  // sorted upwards
  if constexpr (kWithLine<T>) {
    keys[place] = static_cast<uint64_t>(line) << 32 | key;
  } else {
    keys[place] = key;
  }
  places[place] = place;
}

__global__ void __launch_bounds__(kThreads)
    make_line_keys(int64_t count, int64_t length, const int64_t* from, uint64_t* keys,
                   int64_t* places) {
  const int64_t at = thread_index();
  if (at >= count) return;
  keys[at] = static_cast<uint64_t>(from[at] / length);
  places[at] = from[at];
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    write_chosen(const __grid_constant__ Lines lines, const int64_t* places, const T* x, T* values,
                 int64_t* indices) {
  const int64_t flat = thread_index();
  if (flat >= lines.starts.count * lines.chosen) return;
  const int64_t line = flat / lines.chosen, i = flat - line * lines.chosen;
  const int64_t place = places[line * lines.length + i] - line * lines.length;
  int64_t at[3];
  lines.starts.find(line, 1, at);
  values[at[1] + i * lines.value_step] = x[at[0] + place * lines.x_step];
  indices[at[2] + i * lines.index_step] = place;
}

template <class T>
void choose_by_sorting(const KernelContext& context, const Lines& lines, const T* x, T* values,
                       int64_t* indices) {
  const int64_t count = lines.starts.count * lines.length;
  SortedKeys by_key(context, count);
  launch_kernel(context, blocks_for(count), kThreads, 0, make_keys<T>, lines, x, by_key.keys(),
                by_key.places());
  const auto write = [&](const int64_t* places) {
    launch_kernel(context, blocks_for(lines.starts.count * lines.chosen), kThreads, 0,
                  write_chosen<T>, lines, places, x, values, indices);
  };
  if constexpr (kWithLine<T>) {
    by_key.sort(static_cast<uint64_t>(lines.starts.count) << 32 | 0xffffffffU);
    write(by_key.places());
  } else {
    by_key.sort(~uint64_t{0});
    SortedKeys by_line(context, count);
    launch_kernel(context, blocks_for(count), kThreads, 0, make_line_keys, count, lines.length,
                  by_key.places(), by_line.keys(), by_line.places());
    by_line.sort(static_cast<uint64_t>(lines.starts.count));
    write(by_line.places());
  }
}

void topk(KernelContext& context, View x, View values, View indices, int axis, bool largest) {
  if (values.numel() == 0) return;
  const Lines lines(x, values, indices, axis, largest);
  const CardGuard guard(context.device.index);
  constexpr int64_t kShort = 128;
  const bool most = lines.length <= kLongestSorted && 4 * lines.chosen > lines.length;
  if (lines.length <= kShort || most) {
    return sort_lines(context, lines, x.dtype, x.data, values.data, indices.ptr<int64_t>());
  }
  dispatch_device_numeric(x.dtype, "topk", [&]<class T>(TypeTag<T>) {
    const auto* const from = static_cast<const T*>(x.data);
    if (lines.chosen > kMostChosen || lines.length > kLongestCounted) {
      choose_by_sorting<T>(context, lines, from, values.ptr<T>(), indices.ptr<int64_t>());
      return;
    }
    const auto kernel =
        lines.length <= kLongestInBlock ? choose_kernel<true, T> : choose_kernel<false, T>;
    launch_kernel(context, lines.starts.count, kThreads, 0, kernel, lines, from, values.ptr<T>(),
                  indices.ptr<int64_t>());
  });
}

}  // namespace

void register_topk() { kernels::topk.set(DeviceType::cuda, topk); }

}  // namespace sash::cuda
