#include "../../hopper/wgmma.cuh"
#include "backward.cuh"

/// The gradients of k and v on tensor cores.
///
/// A block of threads has 64 keys of a block and a chunk of its list. Its warps form `kParts` parts
/// of four, which take 32 rows of q in turn: scores and sums are products of a warpgroup. Sums
/// of chunks are added by a second kernel, in their order.
namespace sash::cuda::selected {
namespace {

constexpr int kRows = 32;  // of a tile
constexpr int kKeys = 64, kPartThreads = 4 * 32;

template <int depth>
constexpr int kParts = depth == 64 ? 3 : 2;
template <int depth>
constexpr int kStages = depth == 64 ? 5 : 4;

template <class T, int depth>
struct KeyMemory {
  using Keys = hopper::Tile<T, depth, kKeys>;
  using Rows = hopper::Tile<T, depth, kRows>;
  struct Stage {
    Rows q, g;
    KeyRange range[kRows];
    RowStats stats[kRows];
    int partial;  ///< whether a row does not see all keys of the block of threads
  };

  Keys k, v;
  union {
    Stage stage[kParts<depth>][kStages<depth>];
    float sums[2][kKeys][depth];
  };
  int2 rows[kChunk];  ///< of the list: the unit, and the row of the index
};

/// Which keys and which rows a block of threads has: work `number` of a grid of
/// [chunks][calls of a list][parts of a block of 64 keys].
struct KeyWork {
  int b, key_head, first, past;  ///< keys [first, past)
  int64_t from;                  ///< in the list
  int count = 0;

  __device__ KeyWork(const Dims& dims, const Lists& lists, int64_t number) {
    const int parts = (dims.block + kKeys - 1) / kKeys;
    const int batches = dims.batches / dims.index_batches, heads = dims.key_heads / lists.heads;
    const int part = static_cast<int>(number % parts);
    const int call = static_cast<int>(number / parts % (batches * heads));
    const int chunk = static_cast<int>(number / parts / (batches * heads));
    const int list = lists.list_of(chunk);
    if (list < 0) return;
    const int block = list % dims.blocks, head = list / dims.blocks % lists.heads;
    b = list / dims.blocks / lists.heads * batches + call / heads;
    key_head = head * heads + call % heads;
    first = block * dims.block + part * kKeys;
    past = min(min(first + kKeys, (block + 1) * dims.block), dims.keys);
    if (first >= past) return;
    from = lists.start[list] + static_cast<int64_t>(chunk - lists.chunk[list]) * kChunk;
    count = static_cast<int>(min(static_cast<int64_t>(kChunk), lists.start[list + 1] - from));
  }
};

/// Sums as the left operand of a product.
template <class T, int n>
__device__ void pack(uint32_t (&words)[n], const float (&sums)[2 * n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    words[i] = hopper::pack(std::type_identity<T>{}, sums[2 * i], sums[2 * i + 1]);
  }
}

template <class T, int depth>
__global__ void __launch_bounds__(kPartThreads* kParts<depth>, 1)
    keys_kernel(const __grid_constant__ Backward<T> x, const __grid_constant__ Lists lists,
                float* sums) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char shared[];
  using Memory = KeyMemory<T, depth>;
  auto& memory = *reinterpret_cast<Memory*>(shared);
  const Dims& dims = x.dims;
  const KeyWork work(dims, lists, blockIdx.x);
  if (work.count == 0) return;
  constexpr int threads = kPartThreads * kParts<depth>, chunks = depth / 8;
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
    memory.rows[i] = {work.key_head * units + head % per_list, static_cast<int>(row % dims.rows)};
  }
  mma::wait_for_copies();
  hopper::fence_proxy_async();
  __syncthreads();

  const int part = warp() / 4, lane_of_part = thread % kPartThreads, keys16 = warp() % 4 * 16;
  const int pieces = (work.count * dims.parts + dims.packed - 1) / dims.packed;  // of 16 rows
  constexpr int pieces_per_tile = kRows / 16;
  const int tiles = (pieces + pieces_per_tile - 1) / pieces_per_tile;
  const bool whole = dims.has_whole_queries(), one_part = dims.parts == 1;
  const int shift = dims.packed > 1 ? __ffs(dims.group) - 1 : 4;  // rows of q in a group, if packed
  const auto fetch = [&](int tile) {
    if (tile < tiles) {
      auto& stage = memory.stage[part][tile / kParts<depth> % kStages<depth>];
      const auto place = [&](int i) {
        const int piece = tile * pieces_per_tile + i / 16;
        const int number = one_part ? (16 * piece + i % 16) >> shift : piece / dims.parts;
        if (number >= work.count) return int2{-1, 0};
        const int2 entry = memory.rows[number];
        const int in_group = one_part ? i & (1 << shift) - 1 : piece % dims.parts * 16 + i % 16;
        if (whole) return int2{entry.y, entry.x * dims.heads_per + in_group};
        return dims.place(entry.x, entry.y, in_group);
      };
#pragma unroll
      for (int i = lane_of_part; i < kRows * chunks; i += kPartThreads) {
        const int2 at = place(i / chunks);
        copy(stage.q, i / chunks, i % chunks, x.q, at.y, max(at.x, 0), at.x >= 0);
        copy(stage.g, i / chunks, i % chunks, x.g, at.y, max(at.x, 0), at.x >= 0);
      }
      if (lane_of_part < kRows) {  // a warp
        const int2 at = place(lane_of_part);
        const bool inside = at.x >= 0;
        const KeyRange range = inside ? dims.range(work.b, at.y, at.x) : KeyRange{0, 0};
        const bool hides = inside && (range.first > work.first || range.past < work.first + kKeys);
        const bool partial = __any_sync(~0u, hides) || work.past < work.first + kKeys;
        if (lane() == 0) stage.partial = partial;
        stage.range[lane_of_part] = range;
        stage.stats[lane_of_part] =
            inside ? x.stats[dims.row_of(work.b, at.y) + at.x] : RowStats{kInfinity, 0};
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int i = 0; i < kStages<depth> - 1; ++i) fetch(part + i * kParts<depth>);

  float dk[depth / 2] = {}, dv[depth / 2] = {};
  const Exponent c(dims);
  using Keys = typename Memory::Keys;
  using RowTile = typename Memory::Rows;
  const hopper::Operand keys(memory.k), values(memory.v);
  const int own_first = work.first + keys16;
  for (int tile = part; tile < tiles; tile += kParts<depth>) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages<depth> - 2) : "memory");
    hopper::fence_proxy_async();
    hopper::barrier_sync(1 + part, kPartThreads);
    fetch(tile + (kStages<depth> - 1) * kParts<depth>);
    const auto& stage = memory.stage[part][tile / kParts<depth> % kStages<depth>];
    const hopper::Operand q(stage.q), g(stage.g);
    const bool partial = stage.partial != 0;
    float p[kRows / 2], ds[kRows / 2];
    hopper::warpgroup_arrive();
    hopper::multiply_rows<Keys, RowTile>(p, keys, q);
    hopper::warpgroup_commit();
    hopper::multiply_rows<Keys, RowTile>(ds, values, g);
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<1>();
    hopper::fence_operand(p);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float score = c.negative ? -p[4 * j + e] : p[4 * j + e];
        const float lse = stage.stats[fragments::column_of(j, e)].lse;
        p[4 * j + e] = fragments::exp2_approx(fmaf(score, c.size, -lse));
      }
    }
    if (partial) {
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const KeyRange range = stage.range[fragments::column_of(j, e)];
          const int key = own_first + lane() / 4 + e / 2 * 8;
          if (key < range.first || key >= min(range.past, work.past)) p[4 * j + e] = 0;
        }
      }
    }
    uint32_t words[kRows / 4], gradients[kRows / 4];
    pack<T>(words, p);
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(ds);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        ds[4 * j + e] =
            p[4 * j + e] * (ds[4 * j + e] - stage.stats[fragments::column_of(j, e)].dot);
      }
    }
    if (partial) {  // also where g v' is not finite
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) ds[i] = p[i] == 0 ? 0 : ds[i];
    }
    pack<T>(gradients, ds);
    hopper::fence_operand(dv);
    hopper::fence_operand(dk);
    hopper::warpgroup_arrive();
    hopper::multiply_add<RowTile>(dv, words, g);
    hopper::multiply_add<RowTile>(dk, gradients, q);
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(dv);
    hopper::fence_operand(dk);
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
          const float2 after{before.x + own[4 * j + e], before.y + own[4 * j + e + 1]};
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

/// Writes dk and dv of 64 keys of a block from the sums of its chunks: a thread for two elements.
template <class T, int depth>
__global__ void __launch_bounds__(kAddThreads)
    add_kernel(const __grid_constant__ Backward<T> x, const __grid_constant__ Lists lists,
               const float2* sums) {
  constexpr int pairs = kKeys * depth;  // of elements, of dk and dv
  const Dims& dims = x.dims;
  const int parts = (dims.block + kKeys - 1) / kKeys;
  const int heads = dims.key_heads / lists.heads, batches = dims.batches / dims.index_batches;
  const int64_t all = static_cast<int64_t>(blockIdx.x) * kAddThreads + threadIdx.x;
  const auto i = static_cast<int>(all % pairs), number = static_cast<int>(all / pairs);
  const int part = number % parts, block = number / parts % dims.blocks;
  const int kv = number / parts / dims.blocks % dims.key_heads;
  const int b = number / parts / dims.blocks / dims.key_heads;
  const int of = i / (pairs / 2), column = 2 * i % depth;
  const int key = block * dims.block + part * kKeys + 2 * i / depth % kKeys;
  if (key >= min((block + 1) * dims.block, dims.keys)) return;
  const int list = (b / batches * lists.heads + kv / heads) * dims.blocks + block;
  const int call = b % batches * heads + kv % heads;
  float2 sum{};
  for (int chunk = lists.chunk[list]; chunk < lists.chunk[list + 1]; ++chunk) {
    const int64_t at = (static_cast<int64_t>(chunk) * (batches * heads) + call) * parts + part;
    const float2 own = sums[at * pairs + i];
    sum = {sum.x + own.x, sum.y + own.y};
  }
  const float scale = of == 0 ? static_cast<float>(dims.scale) : 1;
  const Rows<T> to = (of == 0 ? x.dk : x.dv).at(b, kv);
  *reinterpret_cast<uint32_t*>(to.data + key * to.row + column) =
      mma::Operand<T>::pack(scale * sum.x, scale * sum.y);
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
    launch<keys_kernel<T, depth>>(context, lists.most_chunks * calls, kPartThreads * kParts<depth>,
                                  static_cast<int>(sizeof(KeyMemory<T, depth>)), call, lists,
                                  sums.ptr<float>());
    launch_kernel(context,
                  static_cast<int64_t>(dims.batches) * dims.key_heads * dims.blocks * parts *
                      (kKeys * depth / kAddThreads),
                  kAddThreads, 0, add_kernel<T, depth>, call, lists, sums.ptr<const float2>());
  };
  dims.depth == 64 ? run.template operator()<64>() : run.template operator()<128>();
}

template void backward_keys(const KernelContext&, const Backward<__nv_bfloat16>&);
template void backward_keys(const KernelContext&, const Backward<__half>&);

}  // namespace sash::cuda::selected
