#pragma once

#include "mma.cuh"

/// Memory of a call on tensor cores, and the states that go from chunk to chunk.
namespace sash::cuda::delta {

/// What `prepare` writes. `raw`: the pass reads keys and queries, not F and Q.
template <int kWidth>
class PreparedMemory {
 public:
  PreparedMemory(const KernelContext& context, const Inputs& x, bool backward, bool raw)
      : bytes_(
            chunks_of(x) * kChunk * 2 *
            ((backward ? 1 : 2) * kWidth + (raw ? 0 : 2) * kWidth + (backward ? 3 : 1) * kChunk)),
        memory_(context, bytes_ + chunks_of(x) * kFactors<kWidth> * 4) {
    auto* next = memory_.template ptr<Half>();
    const auto take = [&](int width) {
      return std::exchange(next, next + chunks_of(x) * kChunk * width);
    };
    arrays.w = take(kWidth);
    if (!raw) arrays.f = take(kWidth), arrays.q = take(kWidth);
    if (!backward) arrays.u = take(kWidth);
    arrays.p = take(kChunk);
    if (backward) arrays.n = take(kChunk), arrays.a = take(kChunk);
    arrays.e = reinterpret_cast<float*>(next);
  }

  int64_t panel_bytes() const { return bytes_; }  ///< before `e`

  Arrays arrays{};

 private:
  int64_t bytes_;
  Workspace memory_;
};

/// States before chunks, and u: in `kept`, or in memory of the call if it is null.
template <int kWidth>
class KeptMemory {
 public:
  KeptMemory(const KernelContext& context, const Inputs& x, const TensorView* kept)
      : memory_(context, kept ? 0 : bytes_of(x)) {
    states = reinterpret_cast<Half*>(kept ? kept->ptr<char>() : memory_.template ptr<char>());
    corrected = states + chunks_of(x) * (kWidth * kWidth);
  }

  static int64_t bytes_of(const Inputs& x) {
    return chunks_of(x) * (kWidth * kWidth + kChunk * kWidth) * 2;
  }

  Half *states, *corrected;

 private:
  Workspace memory_;
};

inline constexpr int kChainCount = 128;   // threads that multiply, and as many that copy
inline constexpr int kChainColumns = 32;  // columns of its states

template <int kWidth>
int64_t chain_blocks(const Inputs& x) {
  return x.text_count() * x.v.shape[1] * (kWidth / kChainColumns);
}

/// What a chain reads for a chunk: panels, U of its columns, e.
template <int kWidth>
struct ChainStage {
  static constexpr int kStages = 3;
  static constexpr int kTileBytes = RowTile<kWidth>::kBytes;
  static constexpr int kW = 0, kF = kTileBytes, kU = 2 * kTileBytes;
  static constexpr int kE = kU + kChainColumns * kChunk * 2;
  static constexpr int kBytes = kE + kWidth * 4;
};

/// The columns of a block of threads. Two warps have the first 16, two the last 16; the first two
/// have the first half of the features of keys, the others the second half.
template <int kWidth>
struct StateColumns {
  static constexpr int kBlocks = kWidth / 32;  // of 16 features

  int text, head, first;

  __device__ explicit StateColumns(const Sizes& s) {
    constexpr int across = kWidth / kChainColumns;
    const int block = static_cast<int>(blockIdx.x);
    first = block % across * kChainColumns;
    head = block / across % s.value_heads;
    text = block / across / s.value_heads;
  }
  /// The number of this warp's 16 columns, its half, and the first of its blocks of features.
  __device__ int block() const { return first / 16 + warp() % 2; }
  static __device__ int half() { return warp() / 2; }
  static __device__ int feature_block() { return half() * kBlocks; }
};

/// Runs all steps of a chain: `copy(step, stage, thread)` starts the copies of a step,
/// `multiply(step, stage)` multiplies. `multiply` calls __syncthreads once.
template <int kStages, class Copy, class Multiply>
__device__ void run_chain(int steps, const Copy& copy, const Multiply& multiply) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kChainCount) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      __syncthreads();
      multiply(step, step % kStages);
    }
    return;
  }
  const auto start = [&](int step) {
    if (step < steps) copy(step, step % kStages, thread - kChainCount);
    end_group();
  };
#pragma unroll 1
  for (int step = 0; step < kStages - 1; ++step) start(step);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_for_groups<kStages - 2>();
    __syncthreads();  // the stage is there, and the one before is free
    start(step + kStages - 1);
    __syncthreads();
  }
}

inline constexpr int kExchangeBytes = kChainCount * 32 * 4;

/// Adds to a warp's sums the sums of the warp that has the same columns and the other features. All
/// threads that multiply call this.
__device__ inline void add_other_half(Sums16 (&sums)[4], unsigned char* exchange) {
  auto* const places = reinterpret_cast<float4*>(exchange);
  const auto place = [&](int of_warp, int i) { return (of_warp * 8 + i) * kWarp + lane(); };
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float(&own)[4] = sums[i / 2][i % 2];
    places[place(warp(), i)] = {own[0], own[1], own[2], own[3]};
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 other = places[place(warp() ^ 2, i)];
    float(&own)[4] = sums[i / 2][i % 2];
    own[0] += other.x;
    own[1] += other.y;
    own[2] += other.z;
    own[3] += other.w;
  }
}

/// 16 columns and half of the features of a state, or of its gradient: S', in the sums of a warp.
template <int kWidth>
class StateSums {
 public:
  using At = StateColumns<kWidth>;
  using Operands = uint32_t[At::kBlocks][4];

  /// Begins with a state [N, H_v, D, D_v], or with 0.
  __device__ StateSums(const At& at, const Sizes& s, const float* state) {
    each(at, s,
         [&](float& sum, int64_t place, bool inside) { sum = state && inside ? state[place] : 0; });
  }

  __device__ void operands(Operands& left) const {
#pragma unroll
    for (int k = 0; k < At::kBlocks; ++k) left_of(left[k], of_[k]);
  }
  __device__ void store_operands(Half* to, const At& at, const Operands& left) const {
#pragma unroll
    for (int k = 0; k < At::kBlocks; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        word_at(to, Panel<kWidth>::word(2 * at.block() + i % 2,
                                        2 * (at.feature_block() + k) + i / 2)) = left[k][i];
      }
    }
  }
  __device__ void decay(const float* e) {
#pragma unroll
    for (int n = 0; n < 2 * At::kBlocks; ++n) {
      const float2 by =
          *reinterpret_cast<const float2*>(e + 16 * At::feature_block() + 8 * n + lane() % 4 * 2);
      auto& sum = of_[n / 2][n % 2];
      sum[0] *= by.x;
      sum[1] *= by.y;
      sum[2] *= by.x;
      sum[3] *= by.y;
    }
  }
  /// Adds left [16][64] times right [64][kWidth]; `load(right, t, n)` loads a block of `right`.
  template <class F>
  __device__ void add(const uint32_t (&left)[4][4], const F& load) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int n = 0; n < At::kBlocks; ++n) {
        uint32_t right[4];
        load(right, t, At::feature_block() + n);
        multiply(of_[n], left[t], right);
      }
    }
  }
  __device__ void write(float* state, const At& at, const Sizes& s) {
    each(at, s, [&](float& sum, int64_t place, bool inside) {
      if (inside) state[place] = sum;
    });
  }

 private:
  template <class F>
  __device__ void each(const At& at, const Sizes& s, const F& f) {
    const int64_t begin = (int64_t{at.text} * s.value_heads + at.head) * s.depth * s.width;
#pragma unroll
    for (int k = 0; k < At::kBlocks; ++k) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int d = 16 * (at.feature_block() + k) + column_in(n, e);
          const int m = 16 * at.block() + row_in(e);
          f(of_[k][n][e], begin + int64_t{d} * s.width + m, d < s.depth && m < s.width);
        }
      }
    }
  }

  Sums16 of_[At::kBlocks];
};

}  // namespace sash::cuda::delta
