#pragma once

#include "../attention/hopper/groups.cuh"
#include "../hopper/pipeline.cuh"
#include "rows.cuh"

/// Causal linear attention for sm_90, in bfloat16. With a row of A, B and C for each token, every
/// pass is
///
///     mask(A B') C = P C + A T,    P: A B' within a chunk of 64 tokens, masked,
///                                  T: the sum of B' C over the chunks before, or behind
///
/// | pass | A | B | C | chunks | added to P | added to A T |
/// | --- | --- | --- | --- | --- | --- | --- |
/// | `out` | phi(q) | phi(k) | v | before | | |
/// | `dq` | g | v | phi(k) | before | c den, by row | c den times the sum of phi(k) |
/// | `dk` | v | g / den | phi(q) | behind | c, by column | the sum of c phi(q) |
/// | `dv` | phi(k) | phi(q) | g / den | behind | | |
///
/// A sequence is cut into segments. `key_sums` and `query_sums` form the sum of B' C over each
/// segment; these are summed over segments; then a block of threads walks the chunks of a segment.
/// It holds T in registers, in float32.
namespace sash::cuda::linear {

using namespace hopper;
using Half = __nv_bfloat16;

inline constexpr int kChunk = 64;

enum class Pass { key_sums, query_sums, out, dq, dk, dv };
enum class Side { none, q, k, v, g };

/// The tensors that A, B and C are made of, and the one whose slope dq or dk is multiplied with.
struct Plan {
  Side a, b, c, slope;
};

constexpr Plan plan_of(Pass pass) {
  switch (pass) {
    case Pass::key_sums:
      return {Side::none, Side::k, Side::v, Side::none};
    case Pass::query_sums:
      return {Side::none, Side::q, Side::g, Side::none};
    case Pass::out:
      return {Side::q, Side::k, Side::v, Side::none};
    case Pass::dq:
      return {Side::g, Side::v, Side::k, Side::q};
    case Pass::dk:
      return {Side::v, Side::g, Side::q, Side::k};
    case Pass::dv:
      break;
  }
  return {Side::k, Side::q, Side::g, Side::none};
}

struct CausalCall {
  Sizes p;
  CUtensorMap q, k, v, g;
  const int32_t* lengths;
  int64_t length_step;
  float eps;
  float* den;         ///< [B, H, S]
  const float* dots;  ///< [B, H, S]: c
  Rows<Half> out, dq, dk, dv;
  /// For each head of keys and each segment, a matrix [width, width] and a vector [width].
  float *key_states, *query_states;
  int segment, segments;  ///< tokens of a segment

  __device__ int key_end(int b) const { return lengths ? lengths[b * length_step] : p.keys; }
  __device__ int64_t row_of(int b, int h) const {
    return (static_cast<int64_t>(b) * p.heads + h) * p.queries;
  }
  template <int width>
  __device__ float* state(float* states, int b, int key_head, int at) const {
    const int64_t head = static_cast<int64_t>(b) * p.key_heads + key_head;
    return states + (head * segments + at) * (width * width + width);
  }
};

/// The segment of a block of threads.
struct Segment {
  int b, h, key_head, begin, chunks, heads;  ///< heads of queries, from h on, that take each chunk
  bool backwards;

  __device__ Segment(const CausalCall& x, int of_b, int of_h, int of_key_head, int at,
                     bool by_query, bool from_behind)
      : b(of_b),
        h(of_h),
        key_head(of_key_head),
        begin(at * x.segment),
        chunks((min(x.segment, x.p.keys - begin) + kChunk - 1) / kChunk),
        heads(by_query ? x.p.group() : 1),
        backwards(from_behind) {}
};

/// Walks the steps of a segment: its chunks, and for each the heads of queries.
class Steps {
 public:
  __device__ explicit Steps(const Segment& segment)
      : segment_(segment),
        chunks_(segment.chunks),
        row_(segment.begin + (segment.backwards ? kChunk * (segment.chunks - 1) : 0)) {}

  __device__ bool more() const { return chunks_ > 0; }
  __device__ void advance() {
    ++taken_;
    if (++head_ < segment_.heads) return;
    head_ = 0;
    --chunks_;
    row_ += segment_.backwards ? -kChunk : kChunk;
  }

  __device__ int taken() const { return taken_; }
  __device__ int row() const { return row_; }
  __device__ int head() const { return segment_.h + head_; }
  /// Whether the head is the first or the last of the chunk, and the chunk the last.
  __device__ bool is_first() const { return head_ == 0; }
  __device__ bool is_last() const { return head_ == segment_.heads - 1; }
  __device__ bool ends() const { return chunks_ == 1; }

 private:
  const Segment& segment_;
  int chunks_, row_, head_ = 0, taken_ = 0;
};

struct Nothing {};

/// A pass of tiles of `width` features. There are as many groups of warps that multiply as groups
/// that prepare tiles. Each multiplying group has 64 columns of C.
template <Pass pass_, int width>
struct CausalShape {
  static constexpr Pass kPass = pass_;
  static constexpr Plan kPlan = plan_of(pass_);
  static constexpr int kWidth = width, kGroups = width / 64, kThreads = 2 * kGroups * kGroup;
  static constexpr bool kSums = kPlan.a == Side::none;
  static constexpr bool kByQuery = kPlan.b == Side::q || kPlan.b == Side::g;
  static constexpr bool kSlope = kPlan.slope != Side::none;
  static constexpr int kTiles = kSums ? 2 : 3;
  static constexpr int kStages = kSums || (width == 64 && !kSlope) ? 4 : 3;
  /// Vectors: sums over tokens of rows of B or C, each weighted by 1 or by c. A multiplying group
  /// has them for 64 columns, or `out` for all.
  static constexpr bool kVectorOfB = kSums || pass_ == Pass::out;
  static constexpr int kVectors = pass_ == Pass::dv ? 0 : pass_ == Pass::out ? kGroups : 1;
  static constexpr bool kWeighted = kByQuery && kVectors > 0;  ///< by c

  using Tokens = Tile<Half, width, kChunk>;
  using Slab = Tile<Half, 64, kChunk>;     // 64 columns of `Tokens`
  using State = Tile<Half, 64, width>;     // [columns of B][64 columns of C]
  using Weights = Tile<Half, kChunk, 16>;  // rows 0 and 1: weights of tokens, and what they lost
  using Vector = Tile<Half, width, 16>;    // rows 0 and 1: a vector, and what it lost
  template <bool there, class X>
  using If = std::conditional_t<there, X, Nothing>;

  struct Shared {
    Tokens stage[kStages][kTiles];
    [[no_unique_address]] If<!kSums, State[kGroups]> state;
    [[no_unique_address]] If<kSlope, Tokens[2]> slope;
    [[no_unique_address]] If<(kVectors > 0), Weights[kWeighted ? kStages : 1]> weights;
    [[no_unique_address]] If<pass_ == Pass::out, Vector[kGroups]> normaliser;
    float vector[kGroups][64], term[kStages][kChunk];
    Ring<Tokens, kStages, kTiles> ring;
    Ring<Tokens, 2> slope_ring;
    Barrier ready[kStages];
  };

  /// All threads call this.
  static __device__ void init(Shared& shared) {
    if (threadIdx.x == 0) {
      shared.ring.init(4 * kGroups);
      shared.slope_ring.init(4 * kGroups);
      for (Barrier& ready : shared.ready) ready.init(4 * kGroups);
      fence_barrier_init();
    }
    if constexpr (kVectors > 0) {
      clear(shared.weights);
      __syncthreads();
      if (!kWeighted && threadIdx.x < kChunk) {
        put(shared.weights[0], 0, static_cast<int>(threadIdx.x), 1.f);
      }
    }
    if constexpr (pass_ == Pass::out) clear(shared.normaliser);
    fence_proxy_async();
    __syncthreads();
  }

  /// The address for matrix instructions of this lane's row among the accumulators of a group in
  /// 64 columns of a tile, columns [0, 16). `^ 32 j` moves to columns [16 j, 16 j + 16).
  static __device__ uint32_t lane_address(uint32_t columns) {
    const int row = row_of_warp() + lane() % 16;
    return columns + static_cast<uint32_t>(row * 128 + (lane() / 16 ^ lane() % 8) * 16);
  }

  /// Element `column` of row 0 or 1 of a tile.
  template <class X>
  static __device__ void put(X& tile, int row, int column, float x) {
    reinterpret_cast<Half*>(&tile.at(row, column / 8))[column % 8] = narrow<Half>(x);
  }
  /// x in rows 0 and 1, in twice the precision of an element.
  template <class X>
  static __device__ void put_both(X& tile, int column, float x) {
    put(tile, 0, column, x);
    put(tile, 1, column, x - widen(narrow<Half>(x)));
  }

 private:
  template <class X>
  static __device__ void clear(X& memory) {
    auto* const to = reinterpret_cast<uint4*>(&memory);
    for (unsigned i = threadIdx.x; i < sizeof(X) / sizeof(uint4); i += kThreads) to[i] = {};
  }
};

/// exp(x), and phi of two elements.
__device__ inline float exp_approx(float x) { return exp2_approx(x * kLog2E); }
__device__ inline uint32_t phi_of_pair(uint32_t word) {
  constexpr std::type_identity<Half> half;
  const float2 x = unpack(half, word);
  const uint32_t exps = pack(half, exp_approx(x.x), exp_approx(x.y));
  const __nv_bfloat162 sums =
      __hadd2(reinterpret_cast<const __nv_bfloat162&>(word), __floats2bfloat162_rn(1.f, 1.f));
  uint32_t negative;  // all bits of an element by its sign
  asm("prmt.b32 %0, %1, 0, 0xBB99;" : "=r"(negative) : "r"(word));
  return (exps & negative) | (reinterpret_cast<const uint32_t&>(sums) & ~negative);
}

/// The groups that copy tiles, and make A, B and C of them.
template <class S>
class Preparer {
 public:
  __device__ Preparer(const CausalCall& x, const Segment& segment, typename S::Shared& shared)
      : x_(x), segment_(segment), shared_(shared), next_(segment) {}

  __device__ void run() {
    if (copies()) {
      while (next_.taken() < S::kStages && next_.more()) copy();
    }
    for (Steps steps(segment_); steps.more(); steps.advance(), at_.advance()) {
      if (copies()) {
        // To the stage of the step before the previous one. The previous one may still be in use.
        if (steps.taken() >= 2 && next_.more()) copy();
        if constexpr (S::kSlope) {
          if (steps.is_first()) copy_slope(steps);
        }
      }
      prepare(steps);
      fence_proxy_async();
      shared_.ready[at_.stage()].arrive_as_one();
    }
  }

 private:
  static constexpr int kAcross = S::kWidth / 8, kDown = 16, kRows = kChunk / kDown;

  static __device__ int thread() { return static_cast<int>(threadIdx.x) - S::kGroups * kGroup; }
  /// True on one lane of the first warp. All lanes of a warp call this.
  static __device__ bool copies() { return thread() < kWarp && elect_one(); }
  static __device__ int row_at(int i) { return thread() / kAcross + i * kDown; }

  __device__ const CUtensorMap& map_of(Side side) const {
    return side == Side::q ? x_.q : side == Side::k ? x_.k : side == Side::v ? x_.v : x_.g;
  }

  template <Side side>
  __device__ void copy_tile(typename S::Tokens& to, const Steps& step, Barrier& full) {
    const int h = side == Side::q || side == Side::g ? step.head() : segment_.key_head;
    copy_rows(to, 0, map_of(side), step.row(), h, segment_.b, full);
  }

  __device__ void copy() {
    shared_.ring.acquire(at_copy_);
    Barrier& full = shared_.ring.commit(at_copy_);
    auto& stage = shared_.stage[at_copy_.stage()];
    if constexpr (!S::kSums) copy_tile<S::kPlan.a>(stage[0], next_, full);
    copy_tile<S::kPlan.b>(stage[S::kTiles - 2], next_, full);
    copy_tile<S::kPlan.c>(stage[S::kTiles - 1], next_, full);
    at_copy_.advance();
    next_.advance();
  }

  __device__ void copy_slope(const Steps& step) {
    shared_.slope_ring.acquire(at_slope_);
    Barrier& full = shared_.slope_ring.commit(at_slope_);
    copy_tile<S::kPlan.slope>(shared_.slope[at_slope_.stage()], step, full);
    at_slope_.advance();
  }

  __device__ void prepare(const Steps& step) {
    const int first = step.row();
    const int64_t row0 = x_.row_of(segment_.b, step.head()) + first;
    const auto inside = [&](int row) { return first + row < x_.p.queries; };
    float c = 0;
    if constexpr (S::kByQuery) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = row_at(i);
        factor_[i] = inside(row) ? __fdividef(1, x_.den[row0 + row]) : 0.f;
      }
      if (S::kWeighted && thread() < kChunk && inside(thread())) c = x_.dots[row0 + thread()];
    }
    auto& stage = shared_.stage[at_.stage()];
    shared_.ring.wait(at_);
    if constexpr (S::kWeighted) {
      if (thread() < kChunk) {
        shared_.term[at_.stage()][thread()] = c;
        S::put_both(shared_.weights[at_.stage()], thread(), c);
      }
    }
    if constexpr (!S::kSums) make<S::kPlan.a>(stage[0], first);
    make<S::kPlan.b>(stage[S::kTiles - 2], first);
    make<S::kPlan.c>(stage[S::kTiles - 1], first);
  }

  template <Side side>
  __device__ void make(typename S::Tokens& tile, int first) {
    if constexpr (side == Side::q || side == Side::k) {
      const int rows = (side == Side::q ? x_.p.queries : x_.key_end(segment_.b)) - first;
      const int end = thread() % kAcross * 8 < x_.p.depth ? rows : 0;
      change(tile, end, [](int, uint32_t word) { return phi_of_pair(word); });
    } else if constexpr (side == Side::v) {
      const int rows = x_.key_end(segment_.b) - first;
      if (rows < kChunk) change(tile, rows, [](int, uint32_t word) { return word; });
    } else if constexpr (S::kByQuery) {
      change(tile, kChunk, [&](int i, uint32_t word) {
        const float2 pair = unpack(std::type_identity<Half>{}, word);
        return pack(std::type_identity<Half>{}, pair.x * factor_[i], pair.y * factor_[i]);
      });
    }
  }

  /// Replaces each pair of elements of this thread's rows i by f(i, pair), from row `end` on by 0.
  template <class F>
  __device__ void change(typename S::Tokens& tile, int end, const F& f) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      uint4& chunk = tile.at(row_at(i), thread() % kAcross);
      uint4 words = chunk;
      const uint32_t inside = row_at(i) < end ? ~0u : 0u;  // not a branch for each word
      for (uint32_t* word : {&words.x, &words.y, &words.z, &words.w}) {
        *word = f(i, *word) & inside;
      }
      chunk = words;
    }
  }

  const CausalCall& x_;
  const Segment& segment_;
  typename S::Shared& shared_;
  Steps next_;  ///< to copy
  PipelineState<S::kStages> at_, at_copy_;
  PipelineState<2> at_slope_;
  float factor_[kRows];
};

}  // namespace sash::cuda::linear
