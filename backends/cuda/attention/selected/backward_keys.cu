#include "backward.cuh"

/// The gradients of k and v on tensor cores.
///
/// A block of threads has 64 keys of a block and a chunk of its list. Its warps form `kParts` parts
/// of four, which take 16 rows of q in turn; a warp has 16 of the keys. Sums of chunks are added by
/// a second kernel, in their order.
namespace sash::cuda::selected {
namespace {

constexpr int kKeys = 64, kSums = 4 * 32;  // threads of a part
constexpr int kStages = 4;

template <int depth>
constexpr int kParts = 256 / depth;

template <class T, int depth>
struct KeyMemory {
  using Keys = hopper::Tile<T, depth, kKeys>;
  using Rows = hopper::Tile<T, depth, 16>;
  struct Stage {
    Rows q, g;
    KeyRange range[16];
    RowStats stats[16];
  };

  Keys k, v;
  union {
    Stage stage[kParts<depth>][kStages];
    float sums[2][kKeys][depth];
  };
  int rows[kChunk];  ///< of the list: unit and row of the index as one number
};

/// Which keys and which rows a block of threads has.
struct KeyWork {
  int b, key_head, first, past;  ///< keys [first, past)
  int64_t from;                  ///< in the list
  int count;
};

/// Work `number` of a grid of [chunks][calls of a list][parts of a block of 64 keys].
__device__ inline KeyWork key_work(const Dims& dims, const Lists& lists, int64_t number) {
  const int parts = (dims.block + kKeys - 1) / kKeys;
  const int batches = dims.batches / dims.index_batches, heads = dims.key_heads / lists.heads;
  const int part = static_cast<int>(number % parts);
  const int call = static_cast<int>(number / parts % (batches * heads));
  const int chunk = static_cast<int>(number / parts / (batches * heads));
  const int list = lists.list_of(chunk);
  if (list < 0) return {};
  const int block = list % dims.blocks, head = list / dims.blocks % lists.heads;
  KeyWork work;
  work.b = list / dims.blocks / lists.heads * batches + call / heads;
  work.key_head = head * heads + call % heads;
  work.first = block * dims.block + part * kKeys;
  work.past = min(min(work.first + kKeys, (block + 1) * dims.block), dims.keys);
  work.from = lists.start[list] + static_cast<int64_t>(chunk - lists.chunk[list]) * kChunk;
  work.count =
      static_cast<int>(min(static_cast<int64_t>(kChunk), lists.start[list + 1] - work.from));
  if (work.first >= work.past) work.count = 0;
  return work;
}

template <class T, int depth>
__global__ void __launch_bounds__(kSums* kParts<depth>, 1)
    keys_kernel(const __grid_constant__ Backward<T> x, const __grid_constant__ Lists lists,
                float* sums) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char shared[];
  using Memory = KeyMemory<T, depth>;
  auto& memory = *reinterpret_cast<Memory*>(shared);
  const Dims& dims = x.dims;
  const KeyWork work = key_work(dims, lists, blockIdx.x);
  if (work.count == 0) return;
  constexpr int threads = kSums * kParts<depth>, chunks = depth / 8;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto copy = [&](auto& tile, int row, int chunk, const Rows<const T>& from, int h, int at,
                        bool inside) {
    const T* const place = from.data + work.b * from.batch + h * from.head + at * from.row;
    mma::copy_async(chunk_address(tile, row, chunk), inside ? place + 8 * chunk : from.data,
                    inside);
  };
  for (int i = thread; i < kKeys * chunks; i += threads) {
    const int row = i / chunks, key = work.first + row;
    copy(memory.k, row, i % chunks, x.k_rows, work.key_head, key, key < work.past);
    copy(memory.v, row, i % chunks, x.v_rows, work.key_head, key, key < work.past);
  }
  // Units of the key head, as the index numbers them.
  const int units = dims.units_of_key_head(), per_list = dims.index_heads / lists.heads;
  for (int i = thread; i < work.count; i += threads) {
    const int64_t row = lists.rows[work.from + i];
    const int head = static_cast<int>(row / dims.rows % dims.index_heads);
    const int unit = work.key_head * units + head % per_list;
    memory.rows[i] = unit * dims.rows + static_cast<int>(row % dims.rows);
  }
  mma::wait_for_copies();
  __syncthreads();

  const int part = warp() / 4, lane_of_part = thread % kSums, keys16 = warp() % 4 * 16;
  const int tiles = work.count * dims.parts;
  const auto fetch = [&](int tile) {
    if (tile < tiles) {
      auto& stage = memory.stage[part][tile / kParts<depth> % kStages];
      const int packed = memory.rows[tile / dims.parts], in_group = tile % dims.parts * 16;
      const int unit = packed / dims.rows, row = packed % dims.rows;
      const auto place = [&](int i) {
        if (in_group + i >= dims.group) return int2{-1, 0};
        const int2 at = dims.place(unit, row, in_group + i);
        return at.x < dims.queries ? at : int2{-1, 0};
      };
#pragma unroll
      for (int i = lane_of_part; i < 16 * chunks; i += kSums) {
        const int2 at = place(i / chunks);
        copy(stage.q, i / chunks, i % chunks, x.q, at.y, max(at.x, 0), at.x >= 0);
        copy(stage.g, i / chunks, i % chunks, x.g, at.y, max(at.x, 0), at.x >= 0);
      }
      if (lane_of_part < 16) {
        const int2 at = place(lane_of_part);
        const bool inside = at.x >= 0;
        stage.range[lane_of_part] = inside ? dims.range(work.b, at.y, at.x) : KeyRange{0, 0};
        stage.stats[lane_of_part] =
            inside ? x.stats[dims.row_of(work.b, at.y) + at.x] : RowStats{kInfinity, 0};
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int i = 0; i < kStages - 1; ++i) fetch(part + i * kParts<depth>);

  float dk[depth / 8][4] = {}, dv[depth / 8][4] = {};
  const Exponent c(dims);
  const LaneRows keys(memory.k, keys16, true), values(memory.v, keys16, true);
  using Keys = typename Memory::Keys;
  using Rows16 = typename Memory::Rows;
  const int own_first = work.first + keys16;
  for (int tile = part; tile < tiles; tile += kParts<depth>) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    hopper::barrier_sync(1 + part, kSums);
    fetch(tile + (kStages - 1) * kParts<depth>);
    const auto& stage = memory.stage[part][tile / kParts<depth> % kStages];
    const LaneRows q(stage.q, 0, false), g(stage.g, 0, false);
    float p[2][4] = {}, ds[2][4] = {};
    multiply_rows<T, depth, Keys, Rows16>(p, keys, q, 0);
    multiply_rows<T, depth, Keys, Rows16>(ds, values, g, 0);
    c.apply_sign(p);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int row = fragments::column_of(j, odd);
        const RowStats stats = stage.stats[row];
        const KeyRange range = stage.range[row];
#pragma unroll
        for (int e = odd; e < 4; e += 2) {
          const int key = own_first + lane() / 4 + e / 2 * 8;
          const bool seen = key >= range.first && key < min(range.past, work.past);
          const float weight = fragments::exp2_approx(fmaf(p[j][e], c.size, -stats.lse));
          p[j][e] = seen ? weight : 0;
          ds[j][e] = seen ? weight * (ds[j][e] - stats.dot) : 0;
        }
      }
    }
    multiply_weights<T, Rows16>(dv, p, LaneRows(stage.g, 0, true), 0);
    multiply_weights<T, Rows16>(dk, ds, LaneRows(stage.q, 0, true), 0);
  }

  // The sums of the parts, in their order.
  asm volatile("cp.async.wait_all;" ::: "memory");
  for (int turn = kParts<depth> - 1; turn >= 0; --turn) {
    __syncthreads();
    if (part != turn) continue;
    const bool first = turn == kParts<depth> - 1;
    float* const to = sums + static_cast<int64_t>(blockIdx.x) * (2 * kKeys * depth);
#pragma unroll
    for (int j = 0; j < depth / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int key = keys16 + lane() / 4 + e / 2 * 8, column = fragments::column_of(j, 0);
#pragma unroll
        for (int of = 0; of < 2; ++of) {
          const auto& own = of == 0 ? dk : dv;
          auto* const sum = reinterpret_cast<float2*>(&memory.sums[of][key][column]);
          const float2 before = first ? float2{0, 0} : *sum;
          const float2 after{before.x + own[j][e], before.y + own[j][e + 1]};
          if (turn > 0) {
            *sum = after;
          } else {
            *reinterpret_cast<float2*>(to + (of * kKeys + key) * depth + column) = after;
          }
        }
      }
    }
  }
#endif
}

constexpr int kAddThreads = 256;

/// Writes dk and dv of 64 keys of a block from the sums of its chunks.
template <class T, int depth>
__global__ void __launch_bounds__(kAddThreads)
    add_kernel(const __grid_constant__ Backward<T> x, const __grid_constant__ Lists lists,
               const float* sums) {
  const Dims& dims = x.dims;
  const int parts = (dims.block + kKeys - 1) / kKeys;
  const int heads = dims.key_heads / lists.heads, batches = dims.batches / dims.index_batches;
  const auto number = static_cast<int>(blockIdx.x);
  const int part = number % parts, block = number / parts % dims.blocks;
  const int kv = number / parts / dims.blocks % dims.key_heads;
  const int b = number / parts / dims.blocks / dims.key_heads;
  const int list = (b / batches * lists.heads + kv / heads) * dims.blocks + block;
  const int call = b % batches * heads + kv % heads;
  const int first = block * dims.block + part * kKeys;
  const int past = min(min(first + kKeys, (block + 1) * dims.block), dims.keys);
  const auto scale = static_cast<float>(dims.scale);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kKeys * depth; i += kAddThreads) {
    const int of = i / (kKeys * depth), key = first + i / depth % kKeys, column = i % depth;
    if (key >= past) continue;
    float sum = 0;
    for (int chunk = lists.chunk[list]; chunk < lists.chunk[list + 1]; ++chunk) {
      const int64_t at = (static_cast<int64_t>(chunk) * (batches * heads) + call) * parts + part;
      sum += sums[at * (2 * kKeys * depth) + i];
    }
    const Rows<T> to = (of == 0 ? x.dk : x.dv).at(b, kv);
    to.data[key * to.row + column] = static_cast<T>(of == 0 ? scale * sum : sum);
  }
}

}  // namespace

template <class T>
void backward_keys(const KernelContext& context, const Backward<T>& call) {
  const Dims& dims = call.dims;
  const ListMemory memory(context, dims);
  const Lists& lists = memory.lists();
  const int64_t parts = ceil_div(dims.block, kKeys);
  const int64_t calls = static_cast<int64_t>(dims.batches / dims.index_batches) *
                        (dims.key_heads / lists.heads) * parts;
  const auto run = [&]<int depth>() {
    const Workspace sums(context, lists.most_chunks * calls * 2 * kKeys * depth *
                                      static_cast<int64_t>(sizeof(float)));
    launch<keys_kernel<T, depth>>(context, lists.most_chunks * calls, kSums * kParts<depth>,
                                  static_cast<int>(sizeof(KeyMemory<T, depth>)), call, lists,
                                  sums.ptr<float>());
    launch_kernel(context,
                  static_cast<int64_t>(dims.batches) * dims.key_heads * dims.blocks * parts,
                  kAddThreads, 0, add_kernel<T, depth>, call, lists, sums.ptr<const float>());
  };
  dims.depth == 64 ? run.template operator()<64>() : run.template operator()<128>();
}

template void backward_keys(const KernelContext&, const Backward<__nv_bfloat16>&);
template void backward_keys(const KernelContext&, const Backward<__half>&);

}  // namespace sash::cuda::selected
