#include "kept.cuh"

#include "listed.cuh"
#include "scores.cuh"

namespace sash::cuda {
namespace {

constexpr int kBlock = static_cast<int>(kernels::kBlockKeys), kKeptThreads = 128;

/// A bit matrix [32][32], a row a lane. Transposes it: in five steps, lanes exchange squares of
/// half the former size.
__device__ uint32_t transposed(uint32_t row) {
  uint32_t low = 0x0000FFFF;  // bits whose number has no bit `step`
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(~0u, row, step);
    row =
        lane() & step ? (row & ~low) | (other >> step & low) : (row & low) | (other & low) << step;
    low ^= low << step / 2;
  }
  return row;
}

__device__ void write(uint64_t* tile, const uint32_t (&rows)[2][2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    tile[lane() + 32 * half] = rows[half][0] | uint64_t{rows[half][1]} << 32;
  }
}

/// Round keys and bits of p, which all words of a call share. The host forms them, and the kernel
/// reads them from constant memory.
struct WordConstants {
  static constexpr int kRounds = kernels::AttentionDropout::kRounds;
  uint32_t key[kRounds][2];
  uint32_t zero[kernels::AttentionDropout::kBits];
  uint32_t start;
  int first = 0;  ///< block that is not skipped

  WordConstants(const kernels::AttentionDropout& drop, uint64_t seed) : start(drop.start()) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      key[round][0] = static_cast<uint32_t>(seed) + round * kPhiloxKeyStep0;
      key[round][1] = static_cast<uint32_t>(seed >> 32) + round * kPhiloxKeyStep1;
    }
    for (int bit = 0; bit < kernels::AttentionDropout::kBits; ++bit) zero[bit] = drop.zero(bit);
    while (first < kernels::AttentionDropout::kBlocks && drop.skips(first)) ++first;
  }
};

/// A block of threads for each query block, a warp for each of its blocks of scores. A lane draws
/// the words of two rows.
template <class T>
__global__ void __launch_bounds__(kKeptThreads)
    kept_kernel(const __grid_constant__ AttentionDims<T> p, KeptCall x,
                const __grid_constant__ WordConstants all) {
  using kernels::AttentionDropout;
  const auto blocks = static_cast<int>(p.map.query_blocks);
  const TilePosition at(static_cast<int>(blockIdx.x), blocks, p.heads);
  const int64_t first_row = p.row_of(at.b, at.h) + at.tile * kBlock + lane();
  const int64_t words = AttentionDropout::words(p.keys);
  const uint64_t start = p.draws_start();
  const uint64_t counters[2] = {AttentionDropout::counter(start, first_row, words, 0),
                                AttentionDropout::counter(start, first_row + 32, words, 0)};
  const int2 listed = listed_range(p.map.by_query, p.first_row(at.b, at.h, blocks) + at.tile);
  for (int n = listed.x + warp(); n <= listed.y; n += kKeptThreads / kWarp) {
    uint32_t rows[2][2] = {{all.start, all.start}, {all.start, all.start}};
#pragma unroll 1
    for (int block = all.first; block < AttentionDropout::kBlocks; ++block) {
      PhiloxBlock random[2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int in_row = (2 * n + i % 2) * AttentionDropout::kBlocks + block;
        random[i / 2][i % 2] = philox_start(counters[i / 2] + static_cast<uint64_t>(in_row));
      }
#pragma unroll
      for (int round = 0; round < WordConstants::kRounds; ++round) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          philox_round(random[i / 2][i % 2], all.key[round][0], all.key[round][1]);
        }
      }
#pragma unroll
      for (int bit = 0; bit < 4; ++bit) {
        const uint32_t zero = all.zero[4 * block + bit];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t& kept = rows[i / 2][i % 2];
          kept = AttentionDropout::compare(kept, random[i / 2][i % 2].lane[bit], zero);
        }
      }
    }
    const int64_t tile = int64_t{p.kept_tile(blockIdx.x, n)} * kBlock;
    if (x.by_query) write(x.by_query + tile, rows);
    if (!x.by_key) continue;
    const uint32_t upper = transposed(rows[0][1]);
    rows[0][0] = transposed(rows[0][0]);
    rows[0][1] = transposed(rows[1][0]);
    rows[1][0] = upper;
    rows[1][1] = transposed(rows[1][1]);
    write(x.by_key + tile, rows);
  }
}

/// A thread for each word.
__global__ void __launch_bounds__(kKeptThreads)
    words_kernel(kernels::AttentionDropout drop, PhiloxState state, int64_t rows, int64_t keys,
                 bool* kept) {
  const int64_t words = kernels::AttentionDropout::words(keys);
  const int64_t task = int64_t{blockIdx.x} * kKeptThreads + threadIdx.x, row = task / words;
  if (row >= rows) return;
  const uint64_t start = (state.base ? *state.base : 0) + state.offset;
  const int64_t at = task % words, first = at * kernels::AttentionDropout::kKeys;
  const uint32_t word =
      drop.word(state.seed, kernels::AttentionDropout::counter(start, row, words, at));
  for (int i = 0; i < 32 && first + i < keys; ++i) kept[row * keys + first + i] = word >> i & 1;
}

void attention_dropout(KernelContext& context, View kept, PhiloxState state, double p) {
  const int64_t keys = kept.shape[3];
  if (kept.numel() == 0) return;
  const int64_t rows = kept.numel() / keys, tasks = rows * kernels::AttentionDropout::words(keys);
  launch_kernel(context, (tasks + kKeptThreads - 1) / kKeptThreads, kKeptThreads, 0, words_kernel,
                kernels::AttentionDropout(p), state, rows, keys, kept.ptr<bool>());
}

}  // namespace

void register_attention_dropout() {
  kernels::attention_dropout.set(DeviceType::cuda, attention_dropout);
}

template <class T>
void kept_tiles(const KernelContext& context, const AttentionDims<T>& dims, const KeptCall& call) {
  launch_kernel(context, dims.batches * dims.heads * dims.map.query_blocks, kKeptThreads, 0,
                kept_kernel<T>, dims, call, WordConstants(dims.drop, dims.random.seed));
}

int64_t attention_kept_bytes(const AttentionInputs& inputs, const AttentionParams& params) {
  const AttentionDims<float> dims(inputs, params, {});
  const int64_t features = std::max(inputs.q.shape[3], inputs.v.shape[3]);
  return !params.bounds && keeps_tiles(dims, features, kKeptSpan) ? kept_bytes(dims) : 0;
}

template void kept_tiles(const KernelContext&, const AttentionDims<__nv_bfloat16>&,
                         const KeptCall&);
template void kept_tiles(const KernelContext&, const AttentionDims<__half>&, const KeptCall&);
template void kept_tiles(const KernelContext&, const AttentionDims<float>&, const KeptCall&);

}  // namespace sash::cuda
