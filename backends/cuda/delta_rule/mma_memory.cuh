#pragma once

#include "mma.cuh"

/// Memory of a call on tensor cores, and the chains of states that go from chunk to chunk. A chain
/// is 64 columns of a value head of a text, as sums S' [64][kWidth] in registers of four warps: the
/// layout is the same for `mma` and `wgmma`.
namespace sash::cuda::delta {

/// What `prepare` and the forward chains write, in `memory`, or in memory of the call if it is
/// null. `panels`: also P, and keys and queries with decays.
template <int kWidth>
class PreparedMemory {
 public:
  PreparedMemory(const KernelContext& context, const Inputs& x, bool panels, Half* memory)
      : memory_(context, memory ? 0 : bytes_of(x, panels)) {
    auto* next = memory ? memory : memory_.template ptr<Half>();
    const auto take = [&](int width) {
      return std::exchange(next, next + chunks_of(x) * kChunk * width);
    };
    arrays.x = take(kChunk);
    if (panels) {
      arrays.p = take(kChunk);
      arrays.b = take(kWidth), arrays.f = take(kWidth), arrays.q = take(kWidth);
    }
    arrays.e = reinterpret_cast<float*>(next);
    arrays.growth = arrays.e + chunks_of(x) * Factors<kWidth>::kCount;
  }

  static int64_t bytes_of(const Inputs& x, bool panels) {
    return panel_bytes(x, panels) + chunks_of(x) * (Factors<kWidth>::kCount + 1) * 4;
  }
  /// Of all before `e`.
  static int64_t panel_bytes(const Inputs& x, bool panels) {
    return chunks_of(x) * kChunk * 2 * (panels ? 2 * kChunk + 3 * kWidth : kChunk);
  }

  Arrays arrays{};

 private:
  Workspace memory_;
};

/// Memory for the gradients of states and of u. They are in the places of dq, dk and dv of their
/// chunk if these have as many elements: the kernel of gradients reads them before it writes there.
/// Otherwise they are in memory of the call.
template <int kWidth>
class PassedMemory {
 public:
  PassedMemory(const KernelContext& context, const Inputs& x, const Gradients& grads)
      : u_fits_(fits(x, x.v)),
        states_fit_(fits(x, x.q) && x.q.shape[1] == x.v.shape[1]),
        memory_(context, ((u_fits_ ? 0 : 1) + (states_fit_ ? 0 : kWidth / 64)) * size_of(x) * 2) {
    auto* const own = memory_.template ptr<Half>();
    dstates[0] = states_fit_ ? grads.dq.ptr<Half>() : own;
    dstates[1] = states_fit_ ? grads.dk.ptr<Half>() : own + size_of(x);
    du = u_fits_ ? grads.dv.ptr<Half>() : own + (states_fit_ ? 0 : kWidth / 64) * size_of(x);
  }

  Half *dstates[2], *du;

  /// Elements of an array.
  static int64_t size_of(const Inputs& x) { return chunks_of(x) * kChunk * kWidth; }

 private:
  static bool fits(const Inputs& x, const TensorView& rows) {
    return !x.texts && rows.shape[2] % kChunk == 0 && rows.shape[3] == kWidth;
  }

  bool u_fits_, states_fit_;
  Workspace memory_;
};

/// In place of `Arrays::run_log2`: the state before each chunk is kept, not of each run alone.
inline constexpr int kAllStates = -1;

/// States before chunks, and w, in the memory `kept`. On Hopper, with a decay for each head, what
/// `prepare` writes comes next.
template <int kWidth>
class KeptMemory {
 public:
  KeptMemory(const Inputs& x, int run_log2, const TensorView& kept)
      : states(reinterpret_cast<Half*>(kept.ptr<char>())),
        w(states + states_of(x, run_log2) * (kWidth * kWidth)),
        end(w + chunks_of(x) * (kChunk * kWidth)) {}

  static int64_t bytes_of(const Inputs& x, int run_log2) {
    return (states_of(x, run_log2) * kWidth + chunks_of(x) * kChunk) * kWidth * 2;
  }

  Half *states, *w, *end;

 private:
  static int64_t states_of(const Inputs& x, int run_log2) {
    if (run_log2 == kAllStates) return chunks_of(x);
    return (ceil_div(x.slots(), int64_t{1} << run_log2) + x.text_count()) * x.v.shape[1];
  }
};

inline constexpr int kChainWidth = 64;   // columns of the states of a chain
inline constexpr int kChainCount = 128;  // threads that multiply

template <int kWidth>
int64_t chains_of(const Inputs& x) {
  return x.text_count() * x.v.shape[1] * (kWidth / kChainWidth);
}

/// The columns of a block of threads. Each of four warps has 16.
template <int kWidth>
struct ChainColumns {
  int text, head, first, chunks;

  static __device__ ChainColumns of_block(const Sizes& s) {
    constexpr int across = kWidth / kChainWidth;
    const int block = static_cast<int>(blockIdx.x), text = block / across / s.value_heads;
    return {text, block / across % s.value_heads, block % across * kChainWidth, s.chunks_of(text)};
  }
  /// The chunk of a step, from the last on if `kBackward`.
  template <bool kBackward>
  __device__ Place place(const Sizes& s, int step) const {
    return s.place(text, kBackward ? chunks - 1 - step : step);
  }
};

/// The states [64][kWidth] of a chain, as sums.
template <int kWidth, class F>
__device__ void each_of_state(const ChainColumns<kWidth>& at, const Sizes& s, const F& f) {
  const int64_t begin = (int64_t{at.text} * s.value_heads + at.head) * s.depth * s.width;
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    const int d = column_in(i / 4, i % 4), m = at.first + warp() % 4 * 16 + row_in(i % 4);
    f(i, begin + int64_t{d} * s.width + m, d < s.depth && m < s.width);
  }
}
template <int kWidth>
__device__ void begin_state(float (&sum)[kWidth / 2], const ChainColumns<kWidth>& at,
                            const Sizes& s, const float* state) {
  each_of_state(at, s, [&](int i, int64_t place, bool inside) {
    sum[i] = state && inside ? state[place] : 0;
  });
}
template <int kWidth>
__device__ void write_state(const float (&sum)[kWidth / 2], const ChainColumns<kWidth>& at,
                            const Sizes& s, float* state) {
  each_of_state(at, s, [&](int i, int64_t place, bool inside) {
    if (inside) state[place] = sum[i];
  });
}

/// Multiplies sums [64][2 n] by factors of columns.
template <int n>
__device__ void scale_sums(float (&sum)[n], const float* factors) {
#pragma unroll
  for (int j = 0; j < n / 4; ++j) {
    const float2 by = *reinterpret_cast<const float2*>(factors + 8 * j + lane() % 4 * 2);
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[4 * j + e] *= e % 2 == 0 ? by.x : by.y;
  }
}

/// Places of what a step reads by the instructions of sm_80: panels, and factors. `kV` is for
/// columns of v or of g_out.
template <int kWidth>
struct MmaStep {
  static constexpr int kTile = kChunk * kWidth * 2, kSquare = kChunk * kChunk * 2;
  static constexpr int kB = 0, kF = kTile, kQ = 2 * kTile, kX = 3 * kTile, kP = kX + kSquare;
  static constexpr int kV = kP + kSquare, kFactors = kV + kSquare;
  static constexpr int kBytes = kFactors + Factors<kWidth>::kCount * 4;

  /// Starts to copy what the step of a chunk reads; `v` are rows of v or g_out.
  static __device__ void copy(const Arrays& all, int64_t index, const Place& place, int column,
                              const Rows<const Half>& v, unsigned char* to) {
    const int thread = static_cast<int>(threadIdx.x);
    const auto start = [&]<int bytes>(int at, const void* from) {
      copy_array<kChainCount, bytes>(thread, shared_address(to + at), from);
    };
    start.template operator()<kTile>(kB, all.b + index * (kTile / 2));
    start.template operator()<kTile>(kF, all.f + index * (kTile / 2));
    start.template operator()<kTile>(kQ, all.q + index * (kTile / 2));
    start.template operator()<kSquare>(kX, all.x + index * (kSquare / 2));
    start.template operator()<kSquare>(kP, all.p + index * (kSquare / 2));
    start.template operator()<Factors<kWidth>::kCount * 4>(kFactors,
                                                           all.e + index * Factors<kWidth>::kCount);
#pragma unroll
    for (int i = thread; i < kChunk * 8; i += kChainCount) {
      const int t = i / 8, m = i % 8 * 8;
      copy_async(shared_address(to + kV + Panel<kChainWidth>::element(t, m)),
                 v.data + (place.first + t) * v.row + column + m,
                 t < place.count && column + m < v.width);
    }
  }
  /// v' of 16 tokens, as a left operand.
  static __device__ void values(uint32_t (&left)[4], const unsigned char* from, int k) {
    Panel<kChainWidth>(shared_address(from + kV)).left_down(left, k, warp());
  }
  /// Factors of the tokens that word i of a left operand has.
  static __device__ float2 pair(const unsigned char* from, int place, int i) {
    return *reinterpret_cast<const float2*>(from + kFactors +
                                            (place + i / 2 * 8 + lane() % 4 * 2) * 4);
  }
};

/// Walks through all chunks of a chain by the instructions of sm_80: `copy(place, to)` starts to
/// copy what a step reads to `kBytes` bytes of shared memory, `multiply(place, from)` is the step.
template <bool kBackward, int kBytes, int kWidth, class Copy, class Multiply>
__device__ void walk(const ChainColumns<kWidth>& at, const Sizes& s, unsigned char* shared,
                     const Copy& copy, const Multiply& multiply) {
  const auto start = [&](int step) {
    if (step < at.chunks) copy(at.template place<kBackward>(s, step), shared + step % 2 * kBytes);
    end_group();
  };
  start(0);
#pragma unroll 1
  for (int step = 0; step < at.chunks; ++step) {
    start(step + 1);
    wait_for_groups<1>();
    __syncthreads();
    multiply(at.template place<kBackward>(s, step), shared + step % 2 * kBytes);
    __syncthreads();
  }
}

/// Adds left [64][16 depth] times `right`, whose blocks of 16 x 16 `load(block, k, n)` loads.
template <int depth, int n, class F>
__device__ void add_product(float (&sum)[n], const uint32_t (&left)[4 * depth], const F& load) {
#pragma unroll
  for (int k = 0; k < depth; ++k) {
#pragma unroll
    for (int j = 0; j < n / 8; ++j) {
      uint32_t right[4];
      load(right, k, j);
      multiply(reinterpret_cast<Sums16&>(sum[8 * j]),
               reinterpret_cast<const uint32_t(&)[4]>(left[4 * k]), right);
    }
  }
}

/// Sums as a left operand, and this operand in rows from `first` on of a panel in global memory.
template <int n>
__device__ void pack(uint32_t (&left)[n], const float (&sum)[2 * n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) left[i] = Operand<Half>::pack(sum[2 * i], sum[2 * i + 1]);
}
template <int n>
__device__ void store_left(Half* panel, const uint32_t (&left)[n], int first) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    word_at(panel, Panel<4 * n>::word(first / 8 + warp() % 4 * 2 + i % 2, i / 2)) = left[i];
  }
}

}  // namespace sash::cuda::delta
