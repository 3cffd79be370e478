#include "../../../ops/kernels/elementwise.h"

#include <cstring>

#include "../../../core/backend/dispatch.h"
#include "elementwise.h"

namespace sash::cpu {
namespace {

/// chosen ? yes : no without a branch: masks are seldom predictable.
template <class Word>
Word choose(bool chosen, Word yes, Word no) {
  const auto mask = static_cast<Word>(-static_cast<int64_t>(chosen));
  return static_cast<Word>((yes & mask) | (no & static_cast<Word>(~mask)));
}

/// The bits of `value` as an element of `dtype`.
template <class Word>
Word element_bits(DType dtype, const Scalar& value) {
  Word bits = 0;
  dispatch_all(dtype, "masked_fill", [&]<class T>(TypeTag<T>) {
    const T element = value.to<T>();
    if constexpr (sizeof(T) == sizeof(Word)) std::memcpy(&bits, &element, sizeof(T));
  });
  return bits;
}

void where(KernelContext&, View cond, View a, View b, View y) {
  dispatch_words(y.dtype, [&]<class Word>(TypeTag<Word>) {
    for_each_block<Word, bool, Word, Word>(
        Order::memory,
        [](int64_t, int64_t n, Word* out, const bool* c, const Word* yes, const Word* no) {
          for (int64_t i = 0; i < n; ++i) out[i] = choose(c[i], yes[i], no[i]);
        },
        y, cond, a, b);
  });
}

void masked_fill(KernelContext&, View x, View mask, View y, const Scalar& value) {
  dispatch_words(y.dtype, [&]<class Word>(TypeTag<Word>) {
    const Word element = element_bits<Word>(y.dtype, value);
    for_each_block<Word, Word, bool>(
        Order::memory,
        [element](int64_t, int64_t n, Word* out, const Word* in, const bool* m) {
          for (int64_t i = 0; i < n; ++i) out[i] = choose(m[i], element, in[i]);
        },
        y, x, mask);
  });
}

}  // namespace

void register_where() {
  kernels::where.set(DeviceType::cpu, where);
  kernels::masked_fill.set(DeviceType::cpu, masked_fill);
}

}  // namespace sash::cpu
