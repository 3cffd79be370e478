#include "../../../ops/kernels/elementwise.h"

#include "../../../core/dispatch.h"
#include "elementwise.h"

namespace sash::cpu {
namespace {

// Counters handled together, in loops that the compiler turns into vector code.
constexpr int kBatch = 32;
constexpr int64_t kDraws = 4 * kBatch;

/// The numbers of the blocks `counter`, ..., `counter + kBatch - 1`, in order: the function
/// `philox` of core/philox.h, each round over the whole batch.
void draw_batch(uint64_t seed, uint64_t counter, uint32_t* bits) {
  uint32_t c0[kBatch], c1[kBatch], c2[kBatch], c3[kBatch];
  for (int j = 0; j < kBatch; ++j) {
    const uint64_t at = counter + static_cast<uint64_t>(j);
    c0[j] = static_cast<uint32_t>(at);
    c1[j] = static_cast<uint32_t>(at >> 32);
    c2[j] = c3[j] = 0;
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int j = 0; j < kBatch; ++j) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[j];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2[j];
      c0[j] = static_cast<uint32_t>(p1 >> 32) ^ c1[j] ^ k0;
      c1[j] = static_cast<uint32_t>(p1);
      c2[j] = static_cast<uint32_t>(p0 >> 32) ^ c3[j] ^ k1;
      c3[j] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int j = 0; j < kBatch; ++j) {
    bits[4 * j] = c0[j];
    bits[4 * j + 1] = c1[j];
    bits[4 * j + 2] = c2[j];
    bits[4 * j + 3] = c3[j];
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
