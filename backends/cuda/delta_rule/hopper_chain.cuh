#pragma once

#include "../attention/hopper/launch.cuh"
#include "../hopper/tensor_map.h"
#include "../hopper/wgmma.cuh"
#include "hopper.cuh"
#include "mma_prepare.cuh"

/// Chains of states on Hopper. A chain is 64 columns of a value head of a text, in a block of
/// threads: a group of warps has S' [64][kWidth] in registers, where it is the left operand of
/// products, and one thread copies the operands of the next chunks. A chain is bound by its own
/// length, and there are few. So the other blocks of the same kernel prepare the chunks meanwhile,
/// in the order in which chains read them. All blocks start together: no chain waits for a block
/// that has no multiprocessor.
namespace sash::cuda::delta {

inline constexpr int kChainThreads = 3 * kCount;
inline constexpr int kSteps = 3;  // that are in shared memory

struct ChainCall : Call {
  using Call::Call;

  CUtensorMap panels, factors, q_map, k_map, g_map{};
  Rows<const Half> g_out{};
  int* ready;  ///< for each chunk of each value head: 1 when it is prepared
  int chains;  ///< the first blocks of threads
};

/// What a step reads. `f` and `q` are keys and queries as TMA swizzles them, or panels with
/// decays of features. `v` is a panel of U', or g_out as TMA swizzles it.
template <int kWidth>
struct alignas(1024) StepOperands {
  static constexpr int kTile = kChunk * kWidth * 2, kSquare = kChunk * kChunk * 2;
  unsigned char w[kTile], f[kTile], q[kTile], p[kSquare], v[kSquare];
  float factors[kFactors<kWidth>];
};

template <int kWidth>
struct ChainShared {
  StepOperands<kWidth> stage[kSteps];
  unsigned char state[kChainWidth * kWidth * 2], corrected[kChainWidth * kChunk * 2];  // panels
  hopper::Barrier full[kSteps], empty[kSteps], state_full, state_free, u_full, u_free;

  /// `warps` read each stage. `readers` warps or threads read `state` and `corrected`. All threads
  /// call this.
  __device__ void init(uint32_t warps, uint32_t readers) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kSteps; ++i) full[i].init(kWarp), empty[i].init(warps);
      for (hopper::Barrier* one : {&state_full, &u_full}) one->init(4);
      for (hopper::Barrier* one : {&state_free, &u_free}) one->init(readers);
      hopper::fence_barrier_init();
    }
    __syncthreads();
  }
};

/// An operand of products, in shared memory: a panel, or a tile [64][kDepth] as TMA swizzles it.
template <int kDepth, bool kSwizzled = false>
class Matrix {
 public:
  __device__ explicit Matrix(const void* shared)
      : low_(hopper::uniform(shared_address(shared) >> 4)) {}

  /// Columns [16 k, 16 k + 16), of which rows are multiplied with rows.
  __device__ uint64_t rows(int k) const {
    if constexpr (kSwizzled) return descriptor(k / 4 * kSlab + k % 4 * 32, kSlab, kGroup);
    return descriptor(k * 256, 128, kDepth * 16);
  }
  /// Rows [16 k, 16 k + 16), of which columns are multiplied.
  __device__ uint64_t columns(int k) const {
    if constexpr (kSwizzled) return descriptor(k * 2 * kGroup, kSlab, kGroup);
    return descriptor(k * kDepth * 32, kDepth * 16, 128);
  }

 private:
  static constexpr int kSlab = kChunk * 128, kGroup = 8 * 128;

  /// `bytes` from the start; the distances of matrices.
  __device__ uint64_t descriptor(int bytes, int leading, int stride) const {
    const uint32_t high = static_cast<uint32_t>(stride >> 4) | (kSwizzled ? 1u << 30 : 0);
    return uint64_t{high} << 32 | (low_ + static_cast<uint32_t>(bytes >> 4 | leading >> 4 << 16));
  }

  uint32_t low_;
};

inline constexpr std::type_identity<Half> kHalf{};

/// sum = left right', and sum += left right.
template <class Right, int n>
__device__ void multiply_by_rows(float (&sum)[32], const uint32_t (&left)[n], const Right& right) {
#pragma unroll
  for (int k = 0; k < n / 4; ++k) {
    hopper::detail::multiply_16<false>(kHalf, sum, left + 4 * k, right.rows(k), k > 0);
  }
}
template <bool add, class Right, int n>
__device__ void multiply_by_columns(float (&sum)[n], const uint32_t (&left)[16],
                                    const Right& right) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    hopper::detail::multiply_16<true>(kHalf, sum, left + 4 * k, right.columns(k), add || k > 0);
  }
}

/// This lane's row of the first four matrices of a panel [64][kDepth] in shared memory.
template <int kDepth>
__device__ uint32_t left_row(const void* panel) {
  const int from = lane() / 8;
  return shared_address(panel) +
         static_cast<uint32_t>(Panel<kDepth>::matrix(warp() % 4 * 2 + from % 2, from / 2) +
                               lane() % 8 * 16);
}
/// Stores columns [16 k, 16 k + 16) of a left operand to such a panel.
template <int n>
__device__ void store_left_16(uint32_t row, const uint32_t (&left)[n], int k) {
  const uint32_t* const x = left + 4 * k;
  hopper::store_matrices<false>(row + static_cast<uint32_t>(k * 256), x[0], x[1], x[2], x[3]);
}
/// Stores all of it, for products and copies that other warps start.
template <int n>
__device__ void share_left(unsigned char* to, const uint32_t (&left)[n]) {
  const uint32_t row = left_row<4 * n>(to);
#pragma unroll
  for (int k = 0; k < n / 4; ++k) store_left_16(row, left, k);
  hopper::fence_proxy_async();
}

/// How many steps from the one of `flag` on have prepared chunks, at most 32. It waits for one. All
/// lanes of a warp call this; flags of steps are `stride` apart.
__device__ inline int prepared_steps(const int* flag, int64_t stride, int steps) {
  uint32_t ready = 0;
  while ((ready & 1) == 0) {
    int set = 0;
    if (lane() < steps) {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                   : "=r"(set)
                   : "l"(flag + lane() * stride)
                   : "memory");
    }
    ready = __ballot_sync(~0u, set != 0);
  }
  __syncwarp();
  hopper::fence_proxy_async_global();
  return __clz(static_cast<int>(__brev(~ready)));
}

/// Copies the rows of a chunk, and zeros after them. One warp calls this.
template <int kDepth>
__device__ void copy_rows_of(const Place& at, const Rows<const Half>& x, int first,
                             unsigned char* to) {
  auto& tile = *reinterpret_cast<hopper::Tile<Half, kDepth, kChunk>*>(to);
#pragma unroll 4
  for (int i = lane(); i < kChunk * kDepth / 8; i += kWarp) {
    const int row = i / (kDepth / 8), chunk = i % (kDepth / 8), column = first + 8 * chunk;
    const Half* const from = x.data + (at.first + row) * x.row + column;
    tile.at(row, chunk) =
        row < at.count && column < x.width ? *reinterpret_cast<const uint4*>(from) : uint4{};
  }
}

/// Copies the operands of all steps to shared memory. One warp calls this.
template <int kWidth, bool kFeatures, bool kBackward>
__device__ void copy_steps(const ChainCall& x, const ChainColumns<kWidth>& at,
                           ChainShared<kWidth>& shared) {
  using S = StepOperands<kWidth>;
  using Rows64 = hopper::Tile<Half, kWidth, kChunk>;
  const Sizes& s = x.sizes;
  const int key_head = at.head / (s.value_heads / s.heads);
  const int64_t stride = kBackward ? -s.value_heads : s.value_heads;
  int prepared = 0;
#pragma unroll 1
  for (int step = 0; step < at.chunks; ++step) {
    const Place place = at.template place<kBackward>(s, step);
    const int64_t index = x.index(place, at.head);
    auto& to = shared.stage[step % kSteps];
    auto& full = shared.full[step % kSteps];
    if (step == prepared) prepared += prepared_steps(x.ready + index, stride, at.chunks - step);
    shared.empty[step % kSteps].wait((step / kSteps + 1) % 2);
    // Here TMA would copy rows of the next text.
    const bool cut = place.count < kChunk && place.first + place.count < s.length;
    if (cut) {
      if constexpr (!kFeatures) {
        copy_rows_of<kWidth>(place, x.k.at(place.b, key_head), 0, to.f);
        copy_rows_of<kWidth>(place, x.q.at(place.b, key_head), 0, to.q);
      }
      if constexpr (kBackward) {
        copy_rows_of<kChainWidth>(place, x.g_out.at(place.b, at.head), at.first, to.v);
      }
      hopper::fence_proxy_async();
      __syncwarp();
    }
    if (!hopper::elect_one()) {  // this lane may have written rows, too
      full.arrive();
      continue;
    }
    constexpr int of_rows = (kFeatures ? 0 : 2 * S::kTile) + (kBackward ? S::kSquare : 0);
    full.arrive_and_expect_tx(3 * S::kTile + 2 * S::kSquare + kFactors<kWidth> * 4 -
                              (cut ? of_rows : 0));
    const auto copy = [&]<int bytes>(unsigned char(&tile)[bytes], const Half* panel) {
      const auto row = static_cast<int>((panel - x.arrays.w) / 512);
#pragma unroll
      for (int i = 0; i < bytes / 8192; ++i) {
        hopper::copy_row(tile + i * 8192, x.panels, row + 8 * i, full);
      }
    };
    copy(to.w, x.arrays.w + index * (kChunk * kWidth));
    copy(to.p, x.arrays.p + index * (kChunk * kChunk));
    if constexpr (kFeatures) {
      copy(to.f, x.arrays.f + index * (kChunk * kWidth));
      copy(to.q, x.arrays.q + index * (kChunk * kWidth));
    } else if (!cut) {
      hopper::copy_rows(reinterpret_cast<Rows64&>(to.f), 0, x.k_map, place.first, key_head, place.b,
                        full);
      hopper::copy_rows(reinterpret_cast<Rows64&>(to.q), 0, x.q_map, place.first, key_head, place.b,
                        full);
    }
    if constexpr (kBackward) {
      using Columns = hopper::Tile<Half, kChainWidth, kChunk>;
      if (!cut) {
        hopper::copy_rows(reinterpret_cast<Columns&>(to.v), 0, x.g_map, place.first, at.head,
                          place.b, full, at.first);
      }
    } else {
      copy(to.v, x.arrays.u + (index * kWidth + at.first) * kChunk);
    }
    hopper::copy_row(to.factors, x.factors, static_cast<int>(index), full);
  }
}

/// Copies what the steps write to `state` and `corrected` of shared memory to arrays of all chunks.
/// One thread calls this.
template <int kWidth, bool kBackward>
__device__ void store_steps(const ChainCall& x, const ChainColumns<kWidth>& at,
                            ChainShared<kWidth>& shared, Half* states, Half* corrected) {
#pragma unroll 1
  for (int step = 0; step < at.chunks; ++step) {
    const int64_t row =
        x.index(at.template place<kBackward>(x.sizes, step), at.head) * kWidth + at.first;
    const auto store = [&](hopper::Barrier& full, hopper::Barrier& free, Half* to,
                           const auto& panel) {
      full.wait(step % 2);
      hopper::bulk_store(to, panel, sizeof(panel));
      hopper::bulk_commit();
      hopper::bulk_wait_read();
      free.arrive();
    };
    store(shared.state_full, shared.state_free, states + row * kWidth, shared.state);
    store(shared.u_full, shared.u_free, corrected + row * kChunk, shared.corrected);
  }
}

/// Groups of threads that prepare chunks in one block, as shared memory allows.
template <int kWidth, bool kFeatures>
inline constexpr int kPreparers = 3 * PrepareShared<kWidth, kFeatures>::kBytes <=
                                          static_cast<int>(hopper::kSharedBytes)
                                      ? 3
                                      : 2;

/// The work of the blocks of threads that have no chain.
template <int kWidth, bool kFeatures, bool kBackward>
__device__ void prepare_chunks(const ChainCall& x, unsigned char* shared) {
  using M = PrepareShared<kWidth, kFeatures>;
  constexpr int groups = kPreparers<kWidth, kFeatures>;
  static_assert(M::kBytes % 128 == 0);
  const int group = static_cast<int>(hopper::uniform(threadIdx.x / kCount));
  if constexpr (groups == 2) {
    if (group == 2) return hopper::warpgroup_reg_dealloc<24>();
    hopper::warpgroup_reg_alloc<240>();
  }
  const Sizes& s = x.sizes;
  const int heads = s.value_heads, blocks = static_cast<int>(gridDim.x) - x.chains;
  const int64_t items = s.slots * heads;
#pragma unroll 1
  for (int64_t i = (static_cast<int>(blockIdx.x) - x.chains) * groups + group; i < items;
       i += blocks * groups) {
    const int64_t item = kBackward ? items - 1 - i : i, slot = item / heads;
    const Place at =
        s.bounds ? s.place_of_slot(slot)
                 : s.place(static_cast<int>(slot % s.texts), static_cast<int>(slot / s.texts));
    if (at.count == 0) continue;
    const int head = static_cast<int>(item % heads);
    prepare_chunk<kWidth, kFeatures>(x, at, head, shared + group * M::kBytes);
    hopper::barrier_sync(1 + group, kCount);
    if (threadIdx.x % kCount == 0) {
      asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(x.ready + x.index(at, head)), "r"(1)
                   : "memory");
    }
  }
}

/// Launches a block of threads for each multiprocessor. They may wait for each other: all start
/// together.
template <auto kernel, class... Arguments>
void launch_together(const KernelContext& context, int shared, const Arguments&... arguments) {
  const CardGuard guard(context.device.index);
  allow_shared_memory<kernel>(context.device.index, shared);
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(hopper::multiprocessors(context));
  config.blockDim = static_cast<unsigned>(kChainThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream_of(context);
  config.attrs = &together;
  config.numAttrs = 1;
  SASH_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments...));
}

/// Launches `kernel` for the chains of a pass and for what they read. With many chains, all blocks
/// first prepare chunks, so that chains do not wait for blocks that have no multiprocessor.
template <int kWidth, bool kFeatures, auto kernel, class... Arguments>
void launch_chains(const KernelContext& context, const Inputs& inputs,
                   const PreparedMemory<kWidth>& prepared, ChainCall& call,
                   const Arguments&... arguments) {
  const int64_t chunks = chunks_of(inputs), flags = chunks * int64_t{sizeof(int)};
  const Workspace ready(context, flags);
  call.ready = ready.ptr<int>();
  SASH_CUDA_CHECK(cudaMemsetAsync(call.ready, 0, static_cast<size_t>(flags), stream_of(context)));
  const auto* const panels = reinterpret_cast<const float*>(prepared.arrays.w);
  call.panels = tensor_map(panels, prepared.panel_bytes() / 1024, 256, 8);
  call.factors = tensor_map(prepared.arrays.e, chunks, kFactors<kWidth>);
  call.q_map = tensor_map(inputs.q, 64);
  call.k_map = tensor_map(inputs.k, 64);
  constexpr int shared =
      std::max(static_cast<int>(sizeof(ChainShared<kWidth>)),
               kPreparers<kWidth, kFeatures> * PrepareShared<kWidth, kFeatures>::kBytes);
  static_assert(shared <= static_cast<int>(hopper::kSharedBytes));
  const int all = hopper::multiprocessors(context);
  const int64_t chains = chains_of<kWidth>(inputs);
  if (chains <= all / 2) {
    call.chains = static_cast<int>(chains);
    return launch_together<kernel>(context, shared, call, arguments...);
  }
  for (const int64_t with_chain : {int64_t{0}, chains}) {
    call.chains = static_cast<int>(with_chain);
    launch<kernel>(context, with_chain > 0 ? chains : all, kChainThreads, shared, call,
                   arguments...);
  }
}

}  // namespace sash::cuda::delta
