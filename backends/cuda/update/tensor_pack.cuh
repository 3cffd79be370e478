#pragma once

#include <span>

#include "../elementwise/flat.cuh"

/// Processes many tensors in one launch. Their addresses are kernel parameters, so nothing is
/// copied to the card. A block processes one chunk of one tensor.
namespace sash::cuda {

/// Elements per block.
inline constexpr int kChunk = 8192;
/// Bytes of kernel parameters that every CUDA version allows, and how many of them a pack leaves.
inline constexpr int kParameterBytes = 4096, kSpareBytes = 128;

/// Up to kCapacity `Tensors` (pointers, dtype, count): as many as fit in the kernel parameters.
template <class Tensors>
struct Pack {
  static constexpr int kCapacity =
      static_cast<int>((kParameterBytes - kSpareBytes) / (sizeof(Tensors) + sizeof(unsigned))) - 1;

  int size = 0;
  unsigned first[kCapacity + 1] = {};  ///< first chunk of each tensor; then the number of chunks
  Tensors tensor[kCapacity] = {};

  void add(const Tensors& x) {
    tensor[size] = x;
    first[size + 1] = first[size] + chunks_of(x);
    ++size;
  }
  static unsigned chunks_of(const Tensors& x) {
    return static_cast<unsigned>((x.count + kChunk - 1) / kChunk);
  }
  unsigned chunks() const { return first[size]; }

  /// The tensor that `chunk` belongs to.
  __host__ __device__ int find(unsigned chunk) const {
    int low = 0, high = size;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first[middle] <= chunk ? low : high) = middle;
    }
    return low;
  }
};

/// Calls `f(at, left)` for each run of kWidth<T> elements of this thread in chunk `blockIdx.x`,
/// which belongs to tensor `i`. `at` is the run's first element in the tensor; `left` elements of
/// the chunk start there.
template <class T, class Tensors, class F>
__device__ void for_each_lane(const Pack<Tensors>& pack, int i, F f) {
  const int64_t count = pack.tensor[i].count;
  const int64_t begin = int64_t{blockIdx.x - pack.first[i]} * kChunk;
  const int64_t end = begin + kChunk < count ? begin + kChunk : count;
  for (int64_t at = begin + threadIdx.x * kWidth<T>; at < end; at += kThreads * kWidth<T>) {
    f(at, end - at);
  }
}

/// N elements in what a kernel computes with, from and to vectors of 16 bytes.
template <class T, int N>
struct Wide {
  compute_t<T> element[N];
};

template <int N, class T>
__device__ Wide<T, N> load_wide(const T* x, int64_t left, bool aligned) {
  static_assert(N % kWidth<T> == 0);
  Wide<T, N> wide;
#pragma unroll
  for (int i = 0; i < N; i += kWidth<T>) {
    const Lane<T> lane = load_lane(x + i, left - i, aligned);
#pragma unroll
    for (int k = 0; k < kWidth<T>; ++k) wide.element[i + k] = widen(lane.element[k]);
  }
  return wide;
}

template <int N, class T>
__device__ void store_wide(T* y, const compute_t<T> (&element)[N], int64_t left, bool aligned) {
#pragma unroll
  for (int i = 0; i < N; i += kWidth<T>) {
    Lane<T> lane;
#pragma unroll
    for (int k = 0; k < kWidth<T>; ++k) lane.element[k] = narrow<T>(element[i + k]);
    store_lane(y + i, lane, left - i, aligned);
  }
}

/// Calls `launch(TypeTag<T>, pack)` for packs that together contain every tensor once. A pack has
/// one dtype. Throws `DTypeError`, before any launch, if a dtype is not floating.
template <class Tensors, class F>
void for_each_pack(const char* op, std::span<const Tensors> tensors, F launch) {
  static_assert(sizeof(Pack<Tensors>) <= kParameterBytes - kSpareBytes);
  for (const Tensors& x : tensors) dispatch_any_floating(x.dtype, op, [](auto) {});
  const auto pack_those_of = [&]<class T>(TypeTag<T> type) {
    Pack<Tensors> pack;
    for (const Tensors& x : tensors) {
      if (x.dtype != dtype_of<T>) continue;
      pack.add(x);
      if (pack.size < Pack<Tensors>::kCapacity) continue;
      launch(type, pack);
      pack.size = 0;
    }
    if (pack.size > 0) launch(type, pack);
  };
  pack_those_of(TypeTag<float>{});
  pack_those_of(TypeTag<double>{});
  pack_those_of(TypeTag<float16>{});
  pack_those_of(TypeTag<bfloat16>{});
}

}  // namespace sash::cuda
