#include "../../../ops/kernels/elementwise.h"

#include "../../../core/backend/dispatch.h"
#include "../random/philox.h"
#include "elementwise.h"

namespace sash::cpu {
namespace {

// Philox blocks drawn together.
constexpr int kBatch = 32;
constexpr int64_t kDraws = 4 * kBatch;

/// The numbers of blocks `counter`, ..., `counter + kBatch - 1`, in order.
void draw_batch(uint64_t seed, uint64_t counter, uint32_t* bits) {
  uint64_t counters[kBatch];
  for (int j = 0; j < kBatch; ++j) counters[j] = counter + static_cast<uint64_t>(j);
  uint32_t lane[4][kBatch];
  philox_batch<kBatch>(seed, counters, lane);
  for (int j = 0; j < kBatch; ++j) {
    for (int l = 0; l < 4; ++l) bits[4 * j + l] = lane[l][j];
  }
}

struct Rule {
  uint64_t seed;
  uint64_t first;  ///< counter of element 0
  uint32_t threshold;
  double scale;
};

/// y[i] = x[i] times the multiplier of element flat + i.
template <class T>
void drop_block(const Rule& rule, int64_t flat, int64_t n, T* y, const T* x) {
  const T scale = static_cast<T>(rule.scale);
  alignas(64) uint32_t bits[kDraws];
  for (int64_t i = 0; i < n;) {
    const int64_t skip = (flat + i) % 4;  // lanes of the first block that come before this block
    draw_batch(rule.seed, rule.first + static_cast<uint64_t>((flat + i) / 4), bits);
    const int64_t count = std::min(n - i, kDraws - skip);
    const auto apply = [&](int64_t j) {
      y[i + j] = x[i + j] * (bits[skip + j] >= rule.threshold ? scale : T(0));
    };
    if (count == kDraws) {
      for (int64_t j = 0; j < kDraws; ++j) apply(j);
    } else {
      for (int64_t j = 0; j < count; ++j) apply(j);
    }
    i += count;
  }
}

void dropout(KernelContext&, const TensorView& x, const TensorView& y, double p,
             PhiloxState state) {
  const Rule rule{state.seed, (state.base ? *state.base : 0) + state.offset, dropout_threshold(p),
                  p == 1 ? 0 : 1 / (1 - p)};
  dispatch_floating(x.dtype, "dropout", [&]<class T>(TypeTag<T>) {
    for_each_block<T, T>(
        Order::row_major,
        [&rule](int64_t flat, int64_t n, T* out, const T* in) {
          drop_block(rule, flat, n, out, in);
        },
        y, x);
  });
}

}  // namespace

void register_dropout() { kernels::dropout.set(DeviceType::cpu, dropout); }

}  // namespace sash::cpu
