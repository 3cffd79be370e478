#pragma once

#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "../../core/error.h"
#include "attention_bounds.cuh"
#include "attention_mma_tile.cuh"

/// What the tensor-core kernels of attention share: one call's parameters, and the walk over the
/// blocks of its map. A block of threads owns kRows queries or keys, whole blocks of the map or
/// equal parts of one, and meets the other axis in steps of kStep rows, 64 or a part of them.
namespace sash::cuda::mma {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr int kBlockKeys = static_cast<int>(kernels::kBlockKeys);

/// Rows of the map's query blocks.
inline constexpr int kBlockQueries = 64;

/// The extents of one kernel's work. `held`: the left operands of scores stay in registers.
/// `blocks` of `warps` warps, at least, share a multiprocessor, fewer of general kernels.
template <int warps, int tiles, int step, int stages, bool held, int blocks>
struct Shape {
  static constexpr int kThreads = warps * kWarp, kTiles = tiles, kRows = 16 * warps * tiles;
  static constexpr int kStep = step, kStages = stages;
  static constexpr bool kHeld = held;
  static constexpr int resident(bool plain) { return plain || blocks <= 3 ? blocks : blocks - 1; }
  static_assert(kBlockQueries % kRows == 0 && kBlockKeys % step == 0 && step % 16 == 0);
};

/// One call, apart from its operands. What stands below `plain` is read by general kernels only.
template <class T>
struct Problem {
  kernels::BlockMap map;
  int batches, heads, groups, queries, keys;
  float exponent;  ///< scale log2(e)
  float scale;
  bool plain;  ///< scores are products times a positive scale, under the map alone

  float softcap;
  RowBounds bounds;
  const T* bias;
  int64_t bias_step[4];
  const float* relative;
  int64_t relative_step[2];
  int radius;
  const float* slopes;
  int64_t slope_step;
  bool dropout;
  uint32_t threshold;
  float kept;
  PhiloxState random;

  Problem(const kernels::AttentionInputs& x, const kernels::AttentionParams& params,
          const RowBounds& row_bounds)
      : map(params.maps->with_rows(kBlockQueries)),
        batches(static_cast<int>(x.q.shape[0])),
        heads(static_cast<int>(x.q.shape[1])),
        groups(static_cast<int>(x.k.shape[1])),
        queries(static_cast<int>(x.q.shape[2])),
        keys(static_cast<int>(x.k.shape[2])),
        exponent(static_cast<float>(params.scale * 1.4426950408889634)),
        scale(static_cast<float>(params.scale)),
        plain(exponent > 0 && params.softcap == 0 && !params.bounds && !params.bias &&
              !params.relative_bias && !params.slopes && params.dropout == 0),
        softcap(static_cast<float>(params.softcap)),
        bounds(row_bounds),
        bias(params.bias ? params.bias->ptr<const T>() : nullptr),
        bias_step{},
        relative(params.relative_bias ? params.relative_bias->ptr<const float>() : nullptr),
        relative_step{},
        radius(params.relative_bias ? static_cast<int>(params.relative_bias->shape[1] / 2) : 0),
        slopes(params.slopes ? params.slopes->ptr<const float>() : nullptr),
        slope_step(params.slopes ? params.slopes->strides[0] : 0),
        dropout(params.dropout > 0),
        threshold(dropout_threshold(params.dropout)),
        kept(params.dropout == 1 ? 0.f : static_cast<float>(1 / (1 - params.dropout))),
        random(params.philox) {
    for (int axis = 0; params.bias && axis < 4; ++axis)
      bias_step[axis] = params.bias->strides[axis];
    for (int axis = 0; params.relative_bias && axis < 2; ++axis) {
      relative_step[axis] = params.relative_bias->strides[axis];
    }
  }

  /// Of query 0, in [B, H, queries].
  __device__ int64_t row_of(int b, int h) const {
    return (static_cast<int64_t>(b) * heads + h) * queries;
  }
};

/// Where a walk is: kStep rows from `first` on, which lie in the map's block `block` after `part`
/// rows. `first` is -1 past the last step.
struct Step {
  int first, head, block, part;
  int tile;      ///< the block's bit tile, -1 if all is visible
  bool bounded;  ///< bounds cut the block
};

/// The steps of one line of the map for each of the heads [head, end_head). General kernels leave
/// out what bounds hide: of `across` queries, those that see no key of the block of keys. All lanes
/// of a warp walk together.
template <class T, bool by_query, int kStep, bool plain>
class Walk {
 public:
  __device__ Walk(const Problem<T>& p, int b, int head, int end_head, int line)
      : p_(p),
        list_(by_query ? p.map.by_query : p.map.by_key),
        b_(b),
        line_(line),
        end_head_(end_head) {
    at_.head = head;
    at_.part = kBlock - kStep;
    open();
  }

  __device__ Step next() {
    at_.part += kStep;
    if (at_.part < kBlock) {
      at_.first += kStep;
      return at_;
    }
    while (!find()) {
      if (++at_.head >= end_head_) {
        at_.first = -1;
        return at_;
      }
      open();
    }
    at_.part = 0;
    at_.first = at_.block * kBlock;
    return at_;
  }

 private:
  /// Both axes have blocks of 64.
  static constexpr int kBlock = kBlockKeys;
  static_assert(kBlockQueries == kBlockKeys);

  __device__ void open() {
    const int64_t blocks = by_query ? p_.map.query_blocks : p_.map.key_blocks;
    const int b = p_.map.batches == 1 ? 0 : b_, h = p_.map.heads == 1 ? 0 : at_.head;
    const int64_t line = (b * p_.map.heads + h) * blocks + line_;
    entry_ = list_.start[line];
    end_ = list_.start[line + 1];
  }

  __device__ bool find() {
    if constexpr (!plain) {
      if (p_.bounds.summary) return find_within_bounds();
    }
    if (entry_ >= end_) return false;
    at_.block = list_.block[entry_];
    at_.tile = list_.tile[entry_++];
    at_.bounded = false;
    return true;
  }

  /// Lanes look at 32 entries at once.
  __device__ bool find_within_bounds() {
    const int4* summary = p_.bounds.summary + p_.bounds.head(b_, at_.head) * p_.map.query_blocks;
    for (; entry_ < end_; entry_ += kWarp) {
      const int mine = entry_ + lane();
      const int block = mine < end_ ? list_.block[mine] : 0;
      const int4 s = summary[by_query ? line_ : block];
      const int first_key = (by_query ? block : line_) * kBlockKeys;
      const unsigned hits =
          __ballot_sync(~0u, mine < end_ && s.x < first_key + kBlockKeys && s.w > first_key);
      const unsigned cut = __ballot_sync(~0u, s.y > first_key || s.z < first_key + kBlockKeys);
      if (hits == 0) continue;
      const int hit = __ffs(static_cast<int>(hits)) - 1;
      entry_ += hit;
      at_.block = list_.block[entry_];
      at_.tile = list_.tile[entry_++];
      at_.bounded = cut >> hit & 1;
      return true;
    }
    return false;
  }

  const Problem<T>& p_;
  const kernels::BlockList& list_;
  int b_, line_, end_head_;
  int entry_, end_;
  Step at_;
};

/// Launches `blocks` blocks with `shared` bytes of shared memory. `allowed` holds a bit for each
/// card on which `kernel` may use as much as it ever needs, `most`.
template <class Call>
void launch(const KernelContext& context, void (*kernel)(Call), std::atomic<uint64_t>& allowed,
            int64_t blocks, int threads, int shared, int most, const Call& call) {
  if (blocks == 0) return;
  if (blocks > std::numeric_limits<int32_t>::max()) {
    throw ValueError("attention", "at most 2^31 - 1 tiles", std::to_string(blocks));
  }
  const CardGuard guard(context.device.index);
  const uint64_t bit = uint64_t{1} << context.device.index;
  if (!(allowed.load(std::memory_order_relaxed) & bit)) {
    SASH_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    SASH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared));
    allowed.fetch_or(bit, std::memory_order_relaxed);
  }
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
           static_cast<size_t>(shared), static_cast<cudaStream_t>(context.stream.handle)>>>(call);
  SASH_CUDA_CHECK(cudaGetLastError());
}

/// f<width, plain>() for the narrowest tiles that hold the features; general kernels, which are
/// many more instructions, have fewer widths.
template <class F>
void with_width(int64_t features, bool plain, F&& f) {
  if (plain && features <= 32) return f.template operator()<32, true>();
  if (plain && features <= 64) return f.template operator()<64, true>();
  if (plain && features <= 96) return f.template operator()<96, true>();
  if (plain && features <= 128) return f.template operator()<128, true>();
  if (plain) return f.template operator()<256, true>();
  if (features <= 64) return f.template operator()<64, false>();
  if (features <= 128) return f.template operator()<128, false>();
  return f.template operator()<256, false>();
}

/// f<T>() for the type of elements.
template <class F>
void with_type(DType dtype, F&& f) {
  if (dtype == DType::bfloat16) return f.template operator()<__nv_bfloat16>();
  if (dtype == DType::float16) return f.template operator()<__half>();
  return f.template operator()<float>();
}

}  // namespace sash::cuda::mma
