#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "../../../../core/error.h"
#include "../common/steps.cuh"
#include "tile.cuh"

/// What the kernels without tensor cores share in addition to products: masks, dropout, and the
/// options of scores.
namespace sash::cuda::attn {

using fragments::kBlockKeys;
using fragments::Step;
using fragments::StepIterator;

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;
template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();

/// Which pairs of a tile are visible, and which pairs dropout keeps: a word for each query, with a
/// bit for each key.
template <int queries, int keys>
struct TileBits {
  uint64_t visible[queries], kept[queries];

  /// Waits at a barrier, then fills the words for the tile of `step` that starts at (query, key).
  /// If the whole tile is hidden, returns false and changes nothing. The whole block calls this,
  /// and must synchronise before it reads the words.
  template <class T>
  __device__ bool fill(const AttentionDims<T>& p, const Step& step, int b, int query, int key) {
    const int i = static_cast<int>(threadIdx.x);
    if (step.masked()) {
      constexpr uint64_t all = ~uint64_t{0} >> (64 - keys);
      const uint64_t word = i < queries ? row_bits(p, step, b, query + i, key) & all : 0;
      if (!__syncthreads_or(word != 0)) return false;
      if (i < queries) visible[i] = word;
    } else {
      __syncthreads();
    }
    if (p.dropout) draw(p, p.row_of(b, step.head) + query, key);
    return true;
  }

 private:
  /// Bit j: whether the query sees key + j.
  template <class T>
  static __device__ uint64_t row_bits(const AttentionDims<T>& p, const Step& step, int b, int query,
                                      int key) {
    if (query >= p.queries) return 0;
    uint64_t seen = ~uint64_t{0};
    if (step.tile >= 0) {
      seen = p.map.bits[int64_t{step.tile} * kBlockKeys + query % kBlockKeys] >> key % kBlockKeys;
    }
    if (step.bounded) {
      const int2 range = p.bounds.ranges[p.bounds.head(b, step.head) * p.queries + query];
      seen &= bit_range(range.x - key, range.y - key);
    }
    return seen;
  }

  /// Draws a word of a query at a time. Bits past the last key of the tile are not read.
  template <class T>
  __device__ void draw(const AttentionDims<T>& p, int64_t row, int key) {
    constexpr int in_word = kernels::AttentionDropout::kKeys;
    constexpr int words = (keys + in_word - 1) / in_word;
    for (int task = static_cast<int>(threadIdx.x); task < queries * words; task += kBlock) {
      const int i = task / words, n = task % words;
      const uint32_t word = p.kept_word(row + i, key / in_word + n);
      reinterpret_cast<uint32_t*>(kept + i)[n] = word >> key % in_word;
    }
  }
};

/// Turns products q . k of one head into scores times log2(e), because exponents have the base 2.
/// The rows of a tile S are queries, or keys if `keys_down`.
template <class T, bool general, class S, bool keys_down = false>
class Scores {
 public:
  using Tile = typename S::Scores;

  __device__ Scores(const AttentionDims<T>& p, int b, int h)
      : p_(p), factor_(p.scale * (general ? T(1) : static_cast<T>(kLog2E))) {
    if constexpr (general) {
      if (p.bias) bias_ = p.bias + b * p.bias_step[0] + h * p.bias_step[1];
      if (p.relative) relative_ = p.relative + h * p.relative_step[0];
      if (p.slopes) slope_ = p.slopes[h * p.slope_step];
    }
  }

  /// Processes the tile that starts at (query, key). Scores past the end become finite numbers. If
  /// there is a softcap and `cap_grad` is not null, `cap_grad` becomes the derivative of the
  /// softcap.
  __device__ void operator()(Tile& score, int query, int key, Tile* cap_grad = nullptr) const {
    S::for_each([&](int i, int j) { score[i][j] *= factor_; });
    if constexpr (general) {
      if (p_.softcap != 0) cap(score, cap_grad);
      if (p_.bias) add_bias(score, query, key);
      const int corner = key - query - (p_.keys - p_.queries);
      if (p_.relative) {
        S::for_each([&](int i, int j) {
          const int distance = corner + relative_distance(i, j);
          const int place = max(-p_.radius, min(distance, p_.radius)) + p_.radius;
          score[i][j] += relative_[place * p_.relative_step[1]];
        });
      }
      if (p_.slopes) {
        S::for_each([&](int i, int j) {
          score[i][j] -= slope_ * static_cast<T>(abs(corner + relative_distance(i, j)));
        });
      }
      S::for_each([&](int i, int j) { score[i][j] *= static_cast<T>(kLog2E); });
    }
  }

 private:
  static __device__ int query_of(int i, int j) { return keys_down ? S::column(j) : S::row(i); }
  static __device__ int key_of(int i, int j) { return keys_down ? S::row(i) : S::column(j); }
  static __device__ int relative_distance(int i, int j) { return key_of(i, j) - query_of(i, j); }

  __device__ void cap(Tile& score, Tile* cap_grad) const {
    const T softcap = p_.softcap;
    S::for_each([&](int i, int j) {
      const T tanh = std::tanh(score[i][j] / softcap);
      score[i][j] = softcap * tanh;
      if (cap_grad) (*cap_grad)[i][j] = 1 - tanh * tanh;
    });
  }
  __device__ void add_bias(Tile& score, int query, int key) const {
    const int64_t down = p_.bias_step[2], across = p_.bias_step[3];
    S::for_each([&](int i, int j) {
      const int m = query + query_of(i, j), n = key + key_of(i, j);
      if (m < p_.queries && n < p_.keys) score[i][j] += bias_[m * down + n * across];
    });
  }

  const AttentionDims<T>& p_;
  T factor_;
  const T* bias_ = nullptr;
  const T* relative_ = nullptr;
  T slope_ = 0;
};

/// 2^x. In float32, results below the smallest normal number are 0.
using fragments::exp2_approx;
inline __device__ double exp2_approx(double x) { return std::exp2(x); }

inline int64_t tiles_of(int64_t n, int rows) { return (n + rows - 1) / rows; }

/// How many blocks fit on a Hopper multiprocessor, if a block takes `shared` bytes of shared memory
/// and a thread `registers` registers.
constexpr int blocks_per_multiprocessor(int shared, int registers) {
  const int by_memory = 228 * 1024 / (shared + 1024), by_registers = 65536 / kBlock / registers;
  const int blocks = by_memory < by_registers ? by_memory : by_registers;
  return blocks > 0 ? blocks : 1;
}

/// The number of features of the widest operand, which decides the width of tiles. Throws
/// `NotImplemented` above 512, and above 256 in float64.
inline int64_t features_of(const AttentionInputs& x) {
  const int64_t features = std::max(x.q.shape[3], x.v.shape[3]);
  const int64_t most = x.q.dtype == DType::float64 ? 256 : 512;
  if (features <= most) return features;
  throw NotImplemented("attention",
                       "heads of at most " + std::to_string(most) + " features on cuda",
                       std::to_string(features));
}

/// Calls `f` with the width of the narrowest tiles that have `features` features, and with whether
/// the kernel is general, which means that it applies options. For float64 there are only general
/// kernels.
template <class T, class F>
void dispatch_tile(int64_t features, const AttentionDims<T>& p, F&& f) {
  const auto with_options = [&]<int width>(std::integral_constant<int, width> n) {
    if constexpr (sizeof(T) == 4) {
      if (!p.options) return f(n, std::false_type{});
    }
    f(n, std::true_type{});
  };
  if (features <= 32) return with_options(std::integral_constant<int, 32>{});
  if (features <= 64) return with_options(std::integral_constant<int, 64>{});
  if (features <= 128) return with_options(std::integral_constant<int, 128>{});
  if constexpr (sizeof(T) == 4) {
    if (features > 256) return with_options(std::integral_constant<int, 512>{});
  }
  with_options(std::integral_constant<int, 256>{});
}

}  // namespace sash::cuda::attn
