#include "../../../ops/kernels/reduce.h"
#include "reduce.cuh"

namespace sash::cuda {
namespace {

/// Whether an element has a bit of `mask`; `every`: whether none has not.
template <class Word>
struct Truth {
  using Accumulator = int;
  Word mask;
  bool every;
  bool* y;

  __device__ int identity() const { return 0; }
  __device__ int of(Word x, int64_t) const { return ((x & mask) != 0) != every; }
  __device__ int operator()(int a, int b) const { return a | b; }
  __device__ void write(int64_t at, int found) const { y[at] = (found != 0) != every; }
};

template <bool kEvery>
void truth(KernelContext& context, const TensorView& x, const TensorView& y) {
  dispatch_words(x.dtype, [&]<class Word>(TypeTag<Word>) {
    constexpr Word all = std::numeric_limits<Word>::max();
    const Word mask = is_floating(x.dtype) ? static_cast<Word>(all >> 1) : all;  // -0 is 0
    const Truth<Word> truth{mask, kEvery, y.ptr<bool>()};
    reduce<Word, 16 / sizeof(Word)>(context, truth, x, y);
  });
}

}  // namespace

void register_truth() {
  kernels::any.set(DeviceType::cuda, truth<false>);
  kernels::all.set(DeviceType::cuda, truth<true>);
}

}  // namespace sash::cuda
