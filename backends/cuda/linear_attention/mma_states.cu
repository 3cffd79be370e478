#include "mma.cuh"

/// The states before, behind or over all chunks of tokens, in two steps: the state of each chunk in
/// float32, and their sums.
///
/// Bytes: features and wide rows are read once, states of chunks are written and read once, sums
/// are written once in the operands' type.
namespace sash::cuda::linear {
namespace {

template <int kWidth>
constexpr int kChunkState = kWidth* kWidth + kWidth;  // floats of a chunk's state

/// A block has one chunk of one head of keys, and of every head of queries that reads it. A warp
/// has 16 rows of the state. Of queries the features are divided by den, instead of the cotangents.
template <class T, int kWidth, bool kQueries>
__global__ void __launch_bounds__(2 * kWidth, 256 / kWidth)
    own_kernel(const __grid_constant__ Call<T, kWidth> x, int chunks, float* own) {
  using U = operand_type<T>;
  constexpr int kThreads = 2 * kWidth;
  constexpr int tile_bytes = kTileBytes<U, kWidth>;
  // Two stages of: features [64][kWidth], wide rows [64][kWidth]
  extern __shared__ __align__(128) unsigned char shared[];
  using S = Share<kWidth, kThreads>;

  const TilePosition at(static_cast<int>(blockIdx.x), chunks, x.p.key_heads);
  const int group = kQueries ? x.p.group() : 1;
  const int begin = at.tile * chunk_steps<kWidth>(x.p.causal) * kStep;
  const int end = min(begin + chunk_steps<kWidth>(x.p.causal) * kStep,
                      kQueries ? x.p.queries : x.key_end(at.b));
  const int steps = (max(end - begin, 0) + kStep - 1) / kStep;  // of each head
  Sums<1, kWidth> sum = {};
  Eight vector = {};
  Reader<T, U, kWidth, kThreads> features, wide;
  const auto stage = [&](int n) { return shared + n % 2 * 2 * tile_bytes; };
  const auto start = [&](int n) {
    const int h = at.h * group + n / steps, first = begin + n % steps * kStep;
    features.start(stage(n), (kQueries ? x.q : x.k).at(at.b, h), first, end);
    wide.start(stage(n) + tile_bytes, (kQueries ? x.g : x.v).at(at.b, h), first, end);
  };
  const int count = group * steps;
  if (count > 0) start(0);
#pragma unroll 1
  for (int n = 0; n < count; ++n) {
    wait_for_copies();
    const int first = begin + n % steps * kStep;
    const int64_t row0 = kQueries ? x.row_of(at.b, at.h * group + n / steps) + first : 0;
    features.finish_features(stage(n), [&](int row, Eight& values) {
      if constexpr (kQueries) {
        if (first + row >= end) return;
        const float dot = x.dots[row0 + row], factor = 1 / x.den[row0 + row];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          vector[e] += values[e] * dot;
          values[e] *= factor;
        }
      } else {
        round_to<U>(values);
#pragma unroll
        for (int e = 0; e < 8; ++e) vector[e] += values[e];
      }
    });
    wide.finish(stage(n) + tile_bytes);
    __syncthreads();  // this stage is there, the other is free
    if (n + 1 < count) start(n + 1);
    multiply_columns<U, kWidth>(sum, shared_address(stage(n)),
                                shared_address(stage(n) + tile_bytes));
  }
  __syncthreads();

  float* const to =
      own + (x.key_head(at.b, at.h) * chunks + at.tile) * static_cast<int64_t>(kChunkState<kWidth>);
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of<1>(0, half), column = column_of(j, 0);
      *reinterpret_cast<float2*>(to + row * kWidth + column) =
          float2{sum[0][j][2 * half], sum[0][j][2 * half + 1]};
    }
  }
  auto* const parts = reinterpret_cast<float*>(shared);  // [kDown][kWidth]
#pragma unroll
  for (int e = 0; e < 8; ++e) parts[S::row(0) * kWidth + S::column() + e] = vector[e];
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < kWidth) {
    float total = 0;
    for (int row = 0; row < S::kDown; ++row) total += parts[row * kWidth + threadIdx.x];
    to[kWidth * kWidth + threadIdx.x] = total;
  }
}

constexpr int kScanThreads = 128;
constexpr int kAhead = 4;  // states that are read before the first is used

/// A thread for each four elements of a head's states.
template <class U, int kWidth>
__global__ void __launch_bounds__(kScanThreads)
    sum_kernel(Scan scan, const float* own, int64_t heads, int chunks, States<U, kWidth> states) {
  constexpr int fours = kChunkState<kWidth> / 4;
  const int64_t index = int64_t{blockIdx.x} * kScanThreads + threadIdx.x;
  const int64_t head = index / fours;
  if (head >= heads) return;
  const int at = static_cast<int>(index - head * fours) * 4;
  const float* const from = own + head * chunks * int64_t{kChunkState<kWidth>} + at;
  float4 running = {};
  const auto write = [&](int chunk) {
    if (at >= kWidth * kWidth) {
      *reinterpret_cast<float4*>(states.vector(head, chunk) + (at - kWidth * kWidth)) = running;
      return;
    }
    Vector<U, 4> four;
    four.element[0] = narrow<U>(running.x);
    four.element[1] = narrow<U>(running.y);
    four.element[2] = narrow<U>(running.z);
    four.element[3] = narrow<U>(running.w);
    *reinterpret_cast<Vector<U, 4>*>(states.matrix(head, chunk) + at) = four;
  };
  const auto place = [&](int n) { return scan == Scan::behind ? chunks - 1 - n : n; };
  float4 ahead[kAhead];
  const auto load = [&](int n) {
    return n < chunks
               ? *reinterpret_cast<const float4*>(from + place(n) * int64_t{kChunkState<kWidth>})
               : float4{};
  };
#pragma unroll
  for (int n = 0; n < kAhead; ++n) ahead[n] = load(n);
  for (int first = 0; first < chunks; first += kAhead) {
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      const float4 now = ahead[n];
      ahead[n] = load(first + n + kAhead);
      if (scan != Scan::all && first + n < chunks) write(place(first + n));
      running.x += now.x;
      running.y += now.y;
      running.z += now.z;
      running.w += now.w;
    }
  }
  if (scan == Scan::all) write(0);
}

template <bool kQueries, class T, int kWidth>
void make_states(const KernelContext& context, const Call<T, kWidth>& call,
                 const StateMemory<T, kWidth>& memory, Scan scan) {
  using U = operand_type<T>;
  const Workspace own(
      context, memory.heads() * memory.chunks() * kChunkState<kWidth> * int64_t{sizeof(float)});
  constexpr int shared = 4 * kTileBytes<U, kWidth>;
  launch<own_kernel<T, kWidth, kQueries>>(context, memory.heads() * memory.chunks(), 2 * kWidth,
                                          shared, call, memory.chunks(), own.ptr<float>());
  const int64_t threads = memory.heads() * (kChunkState<kWidth> / 4);
  launch<sum_kernel<U, kWidth>>(context, ceil_div(threads, kScanThreads), kScanThreads, 0,
                                call.p.causal ? scan : Scan::all, own.ptr<const float>(),
                                memory.heads(), memory.chunks(), memory.states());
}

}  // namespace

template <class T, int kWidth>
void make_key_states(const KernelContext& context, const Call<T, kWidth>& call,
                     const StateMemory<T, kWidth>& memory) {
  make_states<false>(context, call, memory, Scan::before);
}

template <class T, int kWidth>
void make_query_states(const KernelContext& context, const Call<T, kWidth>& call,
                       const StateMemory<T, kWidth>& memory) {
  make_states<true>(context, call, memory, Scan::behind);
}

#define SASH_STATES(T, W)                                                  \
  template void make_key_states(const KernelContext&, const Call<T, W>&,   \
                                const StateMemory<T, W>&);                 \
  template void make_query_states(const KernelContext&, const Call<T, W>&, \
                                  const StateMemory<T, W>&);
SASH_STATES(__nv_bfloat16, 64)
SASH_STATES(__nv_bfloat16, 128)
SASH_STATES(__half, 64)
SASH_STATES(__half, 128)
#undef SASH_STATES

}  // namespace sash::cuda::linear
