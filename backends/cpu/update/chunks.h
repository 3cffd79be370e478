#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "../../../core/backend/dispatch.h"
#include "../../../core/backend/kernel.h"
#include "../../../core/parallel.h"
#include "../shape/convert.h"

/// Kernels over many tensors in one call: chunks of fixed size, whatever the number of threads.
namespace sash::cpu {

/// Elements per chunk: four arrays of this size fit in a core's L2 cache.
inline constexpr int64_t kChunk = 16384;

/// Halves that are widened at once, to stay in the L1 cache.
inline constexpr int64_t kBlock = 512;

/// Calls `f` with the element type; `DTypeError` unless floating.
template <class F>
void dispatch_any_floating(DType dtype, const char* op, F&& f) {
  sash::detail::dispatch_over<float, double, float16, bfloat16>(dtype, op, f);
}

/// Throws `DTypeError`, before anything is written, if a dtype has no kernel.
template <class Tensors>
void check_dtypes(const char* op, std::span<const Tensors> tensors) {
  for (const Tensors& x : tensors) dispatch_any_floating(x.dtype, op, [](auto) {});
}

/// All tensors, split into chunks with consecutive numbers. A chunk belongs to one tensor.
template <class Tensors>
class Chunks {
 public:
  Chunks(const KernelContext& context, std::span<const Tensors> tensors)
      : tensors_(tensors),
        starts_(context, static_cast<int64_t>((tensors.size() + 1) * sizeof(int64_t))) {
    int64_t* start = starts_.ptr<int64_t>();
    start[0] = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      start[i + 1] = start[i] + (tensors[i].count + kChunk - 1) / kChunk;
    }
  }

  int64_t count() const { return starts_.ptr<int64_t>()[tensors_.size()]; }

  /// Calls f(chunk, tensor, begin, end) for every chunk, in parallel.
  template <class F>
  void run(F f) const {
    const int64_t* first = starts_.ptr<int64_t>();
    const int64_t* last = first + tensors_.size() + 1;
    parallel_for(count(), 1, [&](int64_t chunk, int64_t chunk_end) {
      for (; chunk < chunk_end; ++chunk) {
        const int64_t* start = std::upper_bound(first, last, chunk) - 1;
        const Tensors& tensor = tensors_[static_cast<size_t>(start - first)];
        const int64_t begin = (chunk - *start) * kChunk;
        f(chunk, tensor, begin, std::min(begin + kChunk, tensor.count));
      }
    });
  }

 private:
  std::span<const Tensors> tensors_;
  Workspace starts_;
};

}  // namespace sash::cpu
