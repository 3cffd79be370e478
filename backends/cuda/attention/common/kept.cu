#include "kept.cuh"

#include "listed.cuh"
#include "scores.cuh"

namespace sash::cuda {
namespace {

using kernels::AttentionDropout;

constexpr int kBlock = static_cast<int>(kernels::kBlockKeys), kKeptThreads = 128;

/// Bits whose place has no bit `n`.
__device__ constexpr uint32_t without(int n) {
  uint32_t bits = 0;
  for (int place = 0; place < 32; ++place) bits |= uint32_t(~place >> n & 1) << place;
  return bits;
}

/// Exchanges two words' bits: those of `low` whose place has bit n, for those of `high` without it.
template <int n>
__device__ void exchange(uint32_t& low, uint32_t& high) {
  constexpr uint32_t mask = without(n);
  constexpr int shift = 1 << n;
  const uint32_t was = low;
  low = (was & mask) | (high << shift & ~mask);
  high = (was >> shift & mask) | (high & ~mask);
}

/// Exchanges bits as above, but with the word of the lane whose number differs in bit `of_lane`.
template <int n, int of_lane>
__device__ uint32_t exchanged(uint32_t word) {
  constexpr int shift = 1 << n;
  const bool high = lane() >> of_lane & 1;
  const uint32_t mine = high ? ~without(n) : without(n);
  const uint32_t other = __shfl_xor_sync(~0u, word, 1 << of_lane);
  return (word & mine) | (__funnelshift_l(other, other, high ? 32 - shift : shift) & ~mine);
}

/// Writes a tile, whose words have a row of 32 keys each, in both orders (KeptTile). The places of
/// bits in the words, from 16 down to 1, are at first bits 4 to 0 of the key.
__device__ void write_tile(const KeptCall& x, int tile, uint32_t (&kept)[2][2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) exchange<2>(kept[row][0], kept[row][1]);
#pragma unroll
  for (int i = 0; i < 2; ++i) exchange<1>(kept[0][i], kept[1][i]);
  // Now a word has bits 4, 3 and 5 of the key, bit 3 of the query, and bit 0 of the key.
  uint32_t word[4] = {kept[0][0], kept[1][0], kept[0][1], kept[1][1]};
  const auto write = [&](KeptTile* tiles) {
    reinterpret_cast<uint4*>(tiles[tile].word)[lane()] =
        make_uint4(word[0], word[1], word[2], word[3]);
  };
  if (x.by_query) write(x.by_query);
  if (!x.by_key) return;
    // Then bit 4 of the query, 3 of the key, 5, 3 and 0 of the query.
#pragma unroll
  for (uint32_t& bits : word) bits = exchanged<0, 0>(exchanged<4, 3>(exchanged<2, 4>(bits)));
  write(x.by_key);
}

/// Round keys and bits of p, which all words of a call share. The host forms them, and the kernel
/// reads them from constant memory.
struct WordConstants {
  static constexpr int kRounds = AttentionDropout::kRounds;
  uint32_t key[kRounds][2];
  uint32_t zero[AttentionDropout::kBits];
  uint32_t first;
  int first_block = 0;  ///< that is not skipped

  WordConstants(const AttentionDropout& drop, uint64_t seed) : first(drop.first()) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      key[round][0] = static_cast<uint32_t>(seed) + round * kPhiloxKeyStep0;
      key[round][1] = static_cast<uint32_t>(seed >> 32) + round * kPhiloxKeyStep1;
    }
    for (int bit = 0; bit < AttentionDropout::kBits; ++bit) zero[bit] = drop.zero(bit);
    while (first_block < AttentionDropout::kBlocks && drop.skips(first_block)) ++first_block;
  }
};

/// What two rounds of Philox make of the counter's words that depend on the row.
struct RowRounds {
  uint32_t low1, high, low;

  __device__ RowRounds(const WordConstants& all, const PhiloxBlock& counter) {
    uint32_t high1;
    multiply_wide(kPhiloxFactor1, counter.lane[2], low1, high1);
    multiply_wide(kPhiloxFactor0, high1 ^ counter.lane[1] ^ all.key[0][0], low, high);
  }
};

/// What two rounds make of the words that depend on the block.
struct IndexRounds {
  uint32_t high, low, low0;

  __device__ IndexRounds(const WordConstants& all, const PhiloxBlock& counter) {
    uint32_t high0;
    multiply_wide(kPhiloxFactor0, counter.lane[0], low0, high0);
    multiply_wide(kPhiloxFactor1, high0 ^ counter.lane[3] ^ all.key[0][1], low, high);
    high ^= all.key[1][0];
    low0 ^= all.key[1][1];
  }
};

/// Philox, from the third round on.
__device__ PhiloxBlock finish(const WordConstants& all, const RowRounds& row,
                              const IndexRounds& index) {
  PhiloxBlock random = {{index.high ^ row.low1, index.low, row.high ^ index.low0, row.low}};
#pragma unroll
  for (int round = 2; round < WordConstants::kRounds; ++round) {
    philox_round(random, all.key[round][0], all.key[round][1]);
  }
  return random;
}

/// Compares four bits of R with those of T.
__device__ uint32_t compare(const WordConstants& all, uint32_t kept, const PhiloxBlock& random,
                            int block) {
#pragma unroll
  for (int bit = 0; bit < 4; ++bit) {
    kept = AttentionDropout::compare(kept, random.lane[bit], all.zero[4 * block + bit]);
  }
  return kept;
}

/// A block of threads for each query block, a warp for each of its blocks of scores. A lane draws
/// the words of rows r and r + 8, where r = 16 (lane / 8) + lane % 8.
template <class T>
__global__ void __launch_bounds__(kKeptThreads)
    kept_kernel(const __grid_constant__ AttentionDims<T> p, KeptCall x,
                const __grid_constant__ WordConstants all) {
  const auto blocks = static_cast<int>(p.map.query_blocks);
  const TilePosition at(static_cast<int>(blockIdx.x), blocks, p.heads);
  const int64_t row = p.row_of(at.b, at.h) + at.tile * kBlock + lane() / 8 * 16 + lane() % 8;
  const uint64_t start = p.draws_start();
  const RowRounds rows[2] = {{all, AttentionDropout::counter(start, row, 0)},
                             {all, AttentionDropout::counter(start, row + 8, 0)}};
  const int2 listed = listed_range(p.map.by_query, p.first_row(at.b, at.h, blocks) + at.tile);
  const int first = __shfl_sync(~0u, listed.x + warp(), 0);  // the compiler sees that it is uniform
#pragma unroll 1
  for (int n = first; n <= listed.y; n += kKeptThreads / kWarp) {
    const auto index = [&](int half, int block) {
      return IndexRounds(
          all, AttentionDropout::counter(start, 0, AttentionDropout::index(2 * n + half, block)));
    };
    uint32_t kept[2][2];  // [row][half of the keys]
    uint32_t shared[2] = {all.first, all.first};
    if (all.first_block == 0) {
      const IndexRounds of_both = index(0, 0);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        shared[i] = compare(all, shared[i], finish(all, rows[i], of_both), 0);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) kept[i][half] = shared[i];
    }
#pragma unroll
    for (int block = 1; block < AttentionDropout::kBlocks; ++block) {
      if (block < all.first_block) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const IndexRounds of_half = index(half, block);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          kept[i][half] = compare(all, kept[i][half], finish(all, rows[i], of_half), block);
        }
      }
    }
    const int tile = p.kept_tile(blockIdx.x, n);
    write_tile(x, tile, kept);
  }
}

/// A thread for each word.
__global__ void __launch_bounds__(kKeptThreads)
    words_kernel(AttentionDropout drop, PhiloxState state, int64_t rows, int64_t keys, bool* kept) {
  const int64_t words = AttentionDropout::words(keys);
  const int64_t task = int64_t{blockIdx.x} * kKeptThreads + threadIdx.x, row = task / words;
  if (row >= rows) return;
  const uint64_t start = (state.base ? *state.base : 0) + state.offset;
  const int64_t at = task % words, first = at * AttentionDropout::kKeys;
  const uint32_t word = drop.word(state.seed, start, row, at);
  for (int i = 0; i < 32 && first + i < keys; ++i) kept[row * keys + first + i] = word >> i & 1;
}

void attention_dropout(KernelContext& context, View kept, PhiloxState state, double p) {
  const int64_t keys = kept.shape[3];
  if (kept.numel() == 0) return;
  const int64_t rows = kept.numel() / keys, tasks = rows * AttentionDropout::words(keys);
  launch_kernel(context, (tasks + kKeptThreads - 1) / kKeptThreads, kKeptThreads, 0, words_kernel,
                AttentionDropout(p), state, rows, keys, kept.ptr<bool>());
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
