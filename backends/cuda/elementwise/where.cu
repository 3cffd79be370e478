#include "../../../ops/kernels/elementwise.h"

#include <bit>

#include "compute.cuh"

namespace sash::cuda {
namespace {

struct Choose {
  template <class Word>
  __device__ Word operator()(bool chosen, Word yes, Word no) const {
    return chosen ? yes : no;
  }
};

template <class Word>
struct FillMasked {
  Word value;
  __device__ Word operator()(Word x, bool masked) const { return masked ? value : x; }
};

/// The bits of `value` as an element of `dtype`.
template <class Word>
Word element_bits(DType dtype, const Scalar& value) {
  Word bits = 0;
  dispatch_all(dtype, "masked_fill", [&]<class T>(TypeTag<T>) {
    if constexpr (sizeof(T) == sizeof(Word)) bits = std::bit_cast<Word>(value.to<T>());
  });
  return bits;
}

void where(KernelContext& context, View cond, View a, View b, View y) {
  dispatch_words(y.dtype, [&]<class Word>(TypeTag<Word>) {
    elementwise<Word, bool, Word, Word>(context, Choose{}, y, cond, a, b);
  });
}

void masked_fill(KernelContext& context, View x, View mask, View y, const Scalar& value) {
  dispatch_words(y.dtype, [&]<class Word>(TypeTag<Word>) {
    const FillMasked<Word> fill{element_bits<Word>(y.dtype, value)};
    elementwise<Word, Word, bool>(context, fill, y, x, mask);
  });
}

}  // namespace

void register_where() {
  kernels::where.set(DeviceType::cuda, where);
  kernels::masked_fill.set(DeviceType::cuda, masked_fill);
}

}  // namespace sash::cuda
