#pragma once

#include "hopper_operands.cuh"

/// Chains of states on Hopper. A block of threads walks a text's value head: each of its first
/// groups of warps has S' [64][kWidth] of 64 columns in registers, where it is the left operand of
/// products, and a warp of the last group copies the operands of the next chunks.
///
/// A chain is bound by its own length. So long texts are cut into segments, if there are
/// multiprocessors for them. A first pass walks each segment from a state of zeros, which gives its
/// *own* state, and from the identity, which gives its *map*: the state after a segment is its own
/// state plus the map applied to the state before it. In the second pass each segment forms the
/// state before it from these, and walks once more.
///
/// Decays make most of the first pass needless: where they leave nothing of an earlier state, the
/// walk begins there, and the map is 0. With a decay for each head, a bound tells where. With a
/// decay for each feature it is a guess: the delta term mixes features. Then the map of the guess
/// is formed, too; if it is not 0, a pass again walks the whole segment.
namespace sash::cuda::delta {

/// Steps whose keys, and whose queries, are in shared memory.
template <bool kFeatures>
inline constexpr int kKeySteps = kFeatures ? 2 : 3;
inline constexpr int kQuerySteps = 2;

struct ChainCall : Call {
  explicit ChainCall(const Call& call) : Call(call) {}

  CUtensorMap panels, factors, q_map, k_map, v_map;  // with the backward pass, v is g_out
  Rows<const Half> rows;                             ///< what `v_map` describes
  int segments;                                      ///< of each text
  bool first_pass, again;                            ///< the pass again is a first pass, too
  float* own;  ///< states of segments [segments - 1]..., as threads have them
  Half* maps;  ///< [kWidth][kWidth], M' as panels
  int* left;   ///< `Left` of segments
};

/// What is left of the state before a segment after it.
enum Left : int { kMapped, kNothing, kUnknown };
/// Nothing is left if growths are below this. An element of a map is 0 below exp of it.
inline constexpr float kNothingLog = -17;

/// A segment of a text's value head: steps [first, end).
struct Segment {
  int text, head, number, chunks, first, end;
  bool is_map;    ///< the block's work is the map of the segment
  int64_t index;  ///< of the segment

  __device__ explicit Segment(const ChainCall& x) {
    const Sizes& s = x.sizes;
    const int segments = x.segments - (x.first_pass ? 1 : 0);
    const int count = segments * s.texts * s.value_heads, block = static_cast<int>(blockIdx.x);
    is_map = block >= count;
    number = block % segments;
    const int chain = block % count / segments;
    head = chain % s.value_heads;
    text = chain / s.value_heads;
    index = int64_t{chain} * x.segments + number;
    chunks = s.chunks_of(text);
    const int length = (chunks + x.segments - 1) / x.segments;
    first = min(number * length, chunks);
    end = min(first + length, chunks);
  }
  /// The last step such that nothing of the state before it is left after the segment, or -1. One
  /// warp calls this.
  template <bool kBackward>
  __device__ int begin(const ChainCall& x) const {
    float total = 0;
    for (int past = end; past > first; past -= kWarp) {
      const int step = past - 1 - lane();
      float growth = 0;
      if (step >= first) growth = x.arrays.growth[x.index(place<kBackward>(x.sizes, step), head)];
#pragma unroll
      for (int i = 1; i < kWarp; i *= 2) {
        const float other = __shfl_up_sync(~0u, growth, i);
        if (lane() >= i) growth += other;
      }
      const uint32_t gone = __ballot_sync(~0u, total + growth < kNothingLog);
      if (gone != 0) return past - __ffs(static_cast<int>(gone));
      total += __shfl_sync(~0u, growth, kWarp - 1);
    }
    return -1;
  }
  __device__ bool is_last() const { return end == chunks && (first < end || number == 0); }

  /// The chunk of a step, from the last on if `kBackward`.
  template <bool kBackward>
  __device__ Place place(const Sizes& s, int step) const {
    return s.place(text, kBackward ? chunks - 1 - step : step);
  }
  /// The columns of a group.
  template <int kWidth>
  __device__ ChainColumns<kWidth> columns() const {
    return {text, head, static_cast<int>(threadIdx.x) / kChainCount * kChainWidth, chunks};
  }
};

/// A tile of values or of g_out.
template <int kWidth>
struct ValueTile {
  unsigned char v[kChunk * kWidth * 2];

  /// v' of the group's columns and 16 tokens, as a left operand.
  __device__ void values(uint32_t (&left)[4], int k) const {
    const int slab = static_cast<int>(threadIdx.x) / kChainCount * kChunk * 128;
    RowTile<kChainWidth>(shared_address(v + slab)).left_down(left, k, warp() % 4);
  }
};
struct NoValues {};

/// What a step reads, in two parts, of which the second is needed for a shorter time. Keys and
/// queries are tiles as TMA swizzles them, or, with decays of features, panels of b k, f k and
/// scale b q. With decays of heads, a group of warps forms P.
template <int kWidth, bool kFeatures, bool kBackward>
struct alignas(1024) KeyStep : std::conditional_t<kBackward, NoValues, ValueTile<kWidth>> {
  using Keys = Matrix<kWidth, !kFeatures>;

  static constexpr int kFactors = Factors<kWidth>::kCount;

  unsigned char keys[kFeatures ? 2 : 1][kChunk * kWidth * 2], x[kChunk * kChunk * 2];

  __device__ Keys b() const { return Keys(keys[0]); }
  __device__ Keys f() const { return Keys(keys[kFeatures]); }
};
template <int kWidth, bool kFeatures, bool kBackward>
struct alignas(1024) QueryStep : std::conditional_t<kBackward, ValueTile<kWidth>, NoValues> {
  static constexpr int kFactors = Factors<kWidth>::kCount;

  unsigned char q[kChunk * kWidth * 2], p[kChunk * kChunk * 2];

  __device__ Matrix<kWidth, !kFeatures> queries() const { return Matrix<kWidth, !kFeatures>(q); }
};

/// A ring of stages in shared memory. One warp fills it.
template <class Stage, int stages>
struct StepRing {
  static constexpr int kStages = stages;
  Stage stage[kStages];
  alignas(128) float factors[kStages][Stage::kFactors];
  hopper::Barrier full[kStages], empty[kStages];

  __device__ void init(int readers) {
    for (int i = 0; i < kStages; ++i) {
      full[i].init(kWarp);
      empty[i].init(static_cast<uint32_t>(readers));
    }
  }
};
/// The place of a step in a ring.
template <int kStages>
struct StepPlace {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    stage = stage + 1 < kStages ? stage + 1 : 0;
    parity ^= stage == 0 ? 1 : 0;
  }
};

template <int kWidth, bool kFeatures, bool kBackward>
struct ChainShared {
  StepRing<KeyStep<kWidth, kFeatures, kBackward>, kKeySteps<kFeatures>> keys;
  StepRing<QueryStep<kWidth, kFeatures, kBackward>, kQuerySteps> queries;
  alignas(1024) unsigned char state[kWidth * kWidth * 2];  // panels
  unsigned char u[kWidth * kChunk * 2];                    // u' or du'
  hopper::Barrier state_full, state_free, u_full, u_free, p_full[kQuerySteps];
  int first;      ///< step of the block
  bool is_short;  ///< whether the steps before it are left out
  bool is_done;   ///< whether the block has no work
  int most;       ///< largest absolute value of a map, as bits

  /// `readers` warps or threads read `state`, `readers_of_u` read `u`. All threads call this.
  __device__ void init(const ChainCall& x, const Segment& at, int readers, int readers_of_u) {
    if (threadIdx.x == 0) {
      // The group that forms P reads keys, too. In the backward pass, readers wait for P.
      keys.init(4 * kHalves<kWidth> + (kBackward || kFeatures || x.first_pass ? 0 : 4));
      queries.init(kBackward ? 4 * kHalves<kWidth> : 4);
      for (hopper::Barrier* one : {&state_full, &u_full}) one->init(4 * kHalves<kWidth>);
      for (hopper::Barrier& one : p_full) one.init(4);
      state_free.init(static_cast<uint32_t>(readers));
      u_free.init(static_cast<uint32_t>(readers_of_u));
      hopper::fence_barrier_init();
    }
    if (warp() == 0) {
      const int begin = x.first_pass && !x.again ? at.template begin<kBackward>(x) : -1;
      if (lane() == 0) {
        first = max(begin, at.first);
        is_short = begin >= 0;
        is_done = x.again ? x.left[at.index] != kUnknown : !kFeatures && at.is_map && is_short;
        most = 0;
      }
    }
    __syncthreads();
  }
};

/// Calls f(stage, factors, copies, place) for the steps from `first` on, when their stages are
/// empty.
template <bool kBackward, int kWidth, class Ring, class F>
__device__ void fill_ring(const ChainCall& x, const Segment& at, int first, Ring& ring,
                          const F& f) {
  StepPlace<Ring::kStages> to;
#pragma unroll 1
  for (int step = first; step < at.end; ++step, to.advance()) {
    const Place place = at.place<kBackward>(x.sizes, step);
    ring.empty[to.stage].wait(to.parity ^ 1);
    f(ring.stage[to.stage], ring.factors[to.stage],
      StageCopies<kWidth>(x.sizes, place, x.index(place, at.head), ring.full[to.stage]), place);
    __syncwarp();
  }
}

/// Fills the ring of keys. One warp calls this.
template <int kWidth, bool kFeatures, bool kBackward>
__device__ void copy_keys(const ChainCall& x, const Segment& at, int first,
                          ChainShared<kWidth, kFeatures, kBackward>& shared) {
  const int key_head = at.head / (x.sizes.value_heads / x.sizes.heads);
  const bool has_values = !kBackward && !at.is_map;
  fill_ring<kBackward, kWidth>(
      x, at, first, shared.keys,
      [&](auto& to, auto& factors, const auto& copies, const Place& place) {
        if constexpr (!kFeatures) copies.rows(x.k.at(place.b, key_head), to.keys[0]);
        if constexpr (!kBackward) {
          if (has_values) copies.rows(x.rows.at(place.b, at.head), to.v);
        }
        constexpr int bytes = sizeof(to.x) + sizeof(factors) + (kFeatures ? sizeof(to.keys) : 0);
        if (!copies.begin(bytes, (kFeatures ? 0 : 1) + (has_values ? 1 : 0))) return;
        if constexpr (kFeatures) {
          copies.panel(to.keys[0], x.panels, x.arrays.x, x.arrays.b);
          copies.panel(to.keys[1], x.panels, x.arrays.x, x.arrays.f);
        } else {
          copies.tile(to.keys[0], x.k_map, key_head);
        }
        copies.factors(factors, x.factors);
        copies.panel(to.x, x.panels, x.arrays.x, x.arrays.x);
        if constexpr (!kBackward) {
          if (has_values) copies.tile(to.v, x.v_map, at.head);
        }
      });
}

/// Fills the ring of queries. One warp calls this.
template <int kWidth, bool kFeatures, bool kBackward>
__device__ void copy_queries(const ChainCall& x, const Segment& at, int first,
                             ChainShared<kWidth, kFeatures, kBackward>& shared) {
  const int key_head = at.head / (x.sizes.value_heads / x.sizes.heads);
  fill_ring<kBackward, kWidth>(
      x, at, first, shared.queries,
      [&](auto& to, auto& factors, const auto& copies, const Place& place) {
        if constexpr (!kFeatures) copies.rows(x.q.at(place.b, key_head), to.q);
        if constexpr (kBackward) copies.rows(x.rows.at(place.b, at.head), to.v);
        constexpr int bytes = sizeof(factors) + (kFeatures ? sizeof(to.p) + sizeof(to.q) : 0);
        if (!copies.begin(bytes, (kFeatures ? 0 : 1) + (kBackward ? 1 : 0))) return;
        if constexpr (kBackward) copies.tile(to.v, x.v_map, at.head);
        if constexpr (kFeatures) {
          copies.panel(to.q, x.panels, x.arrays.x, x.arrays.q);
          copies.panel(to.p, x.panels, x.arrays.x, x.arrays.p);
        } else {
          copies.tile(to.q, x.q_map, key_head);
        }
        copies.factors(factors, x.factors);
      });
}

/// Copies what the steps write to `state` and, in the backward pass, to `u` of shared memory to
/// arrays of all chunks. One thread calls this.
template <int kWidth, bool kFeatures, bool kBackward>
__device__ void store_steps(const ChainCall& x, const Segment& at,
                            ChainShared<kWidth, kFeatures, kBackward>& shared) {
#pragma unroll 1
  for (int step = at.first; step < at.end; ++step) {
    const Place place = at.place<kBackward>(x.sizes, step);
    constexpr int tile = sizeof(shared.u), state = sizeof(shared.state);
    const auto store = [&](hopper::Barrier& full, hopper::Barrier& free, const auto& copy) {
      full.wait((step - at.first) % 2);
      copy();
      hopper::bulk_commit();
      hopper::bulk_wait_read();
      free.arrive();
    };
    store(shared.state_full, shared.state_free, [&] {
      if constexpr (kBackward) {
        for (int half = 0; half < state / tile; ++half) {
          hopper::bulk_store(x.arrays.dstates[half] + x.row_index(place, at.head) * (tile / 2),
                             shared.state + half * tile, tile);
        }
      } else if (kFeatures || x.keeps(place)) {
        const int64_t to = kFeatures ? x.index(place, at.head) : x.kept_index(place, at.head);
        hopper::bulk_store(x.arrays.states + to * (state / 2), shared.state, state);
      }
    });
    if constexpr (kBackward) {
      store(shared.u_full, shared.u_free, [&] {
        hopper::bulk_store(x.arrays.du + x.row_index(place, at.head) * (tile / 2), shared.u, tile);
      });
    }
  }
}

/// P of a chunk with a decay for each head, as a left operand, from q k'.
template <int n>
__device__ void scale_scores(uint32_t (&words)[n], const float (&p)[2 * n], const float* sums,
                             float scale) {
  const int row = warp() % 4 * 16 + lane() / 4;
  const float own[2] = {sums[row], sums[row + 8]};
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const int t = row + i % 2 * 8, column = column_in(i / 2, 0);
    const float2 sum = factor_pair(sums, i);
    const float decays[2] = {exp2_approx(own[i % 2] - sum.x), exp2_approx(own[i % 2] - sum.y)};
    words[i] = pack({column <= t ? scale * decays[0] * p[2 * i] : 0,
                     column < t ? scale * decays[1] * p[2 * i + 1] : 0});
  }
}

/// What a thread has of the states of a segment.
template <int kWidth>
__device__ float* own_state(const ChainCall& x, int64_t segment) {
  return x.own + segment * (kWidth * kWidth) + threadIdx.x;
}

/// The state before the first step. The groups with states call this.
template <int kWidth, class Shared>
__device__ void begin_chain(float (&s)[kWidth / 2], const ChainCall& x, const Segment& at,
                            Shared& shared, const float* initial) {
  constexpr int threads = kHalves<kWidth> * kChainCount;
  const auto columns = at.columns<kWidth>();
  if (x.first_pass) {
    begin_state(s, columns, x.sizes, at.number == 0 && !shared.is_short ? initial : nullptr);
    if (!at.is_map) return;
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      const int d = column_in(i / 4, i % 4), m = columns.first + warp() % 4 * 16 + row_in(i % 4);
      s[i] = d == m && d < x.sizes.depth ? 1 : 0;
    }
    return;
  }
  if (at.number == 0) return begin_state(s, columns, x.sizes, initial);
  int64_t segment = at.index - 1;
  const int64_t last = segment, all = at.index - at.number;
  while (segment > all && x.left[segment] == kMapped) --segment;
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) s[i] = own_state<kWidth>(x, segment)[i * threads];
#pragma unroll 1
  for (++segment; segment <= last; ++segment) {
    const auto* const map = reinterpret_cast<const uint4*>(x.maps + segment * (kWidth * kWidth));
    for (int i = static_cast<int>(threadIdx.x); i < kWidth * kWidth / 8; i += threads) {
      reinterpret_cast<uint4*>(shared.state)[i] = map[i];
    }
    hopper::fence_proxy_async();
    hopper::barrier_sync(1, threads);
    uint32_t left[kWidth / 4];
    hopper::pack<Half>(left, s);
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) s[i] = own_state<kWidth>(x, segment)[i * threads];
    const Matrix<kWidth> right(shared.state);
    hopper::fence_operand(s);
    hopper::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      hopper::detail::multiply_16<true>(kHalf, s, left + 4 * k, right.columns(k), true);
    }
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(s);
    hopper::barrier_sync(1, threads);
  }
}

/// Keeps the state after the last step. The groups with states call this.
template <int kWidth, bool kFeatures, class Shared>
__device__ void end_chain(const float (&s)[kWidth / 2], const ChainCall& x, const Segment& at,
                          Shared& shared, float* final) {
  constexpr int threads = kHalves<kWidth> * kChainCount;
  const auto columns = at.columns<kWidth>();
  if (!x.first_pass) {
    if (at.is_last()) write_state(s, columns, x.sizes, final);
  } else if (!at.is_map) {
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) own_state<kWidth>(x, at.index)[i * threads] = s[i];
    if (!kFeatures && threadIdx.x == 0) x.left[at.index] = shared.is_short ? kNothing : kMapped;
  } else {
    uint32_t left[kWidth / 4];
    hopper::pack<Half>(left, s);
    store_left(x.maps + at.index * (kWidth * kWidth), left, columns.first);
    if constexpr (kFeatures) {
      int most = 0;  // also of NaN, whose bits are larger than any number's
#pragma unroll
      for (const float element : s) most = max(most, __float_as_int(fabsf(element)));
      most = __reduce_max_sync(~0u, most);
      if (lane() == 0) atomicMax(&shared.most, most);
      hopper::barrier_sync(1, threads);
      const bool is_0 = shared.most < __float_as_int(__expf(kNothingLog));
      if (threadIdx.x == 0) {
        x.left[at.index] = !shared.is_short ? kMapped : is_0 ? kNothing : kUnknown;
      }
    }
  }
}

/// Launches the passes of `kernel`.
template <int kWidth, bool kFeatures, bool kBackward, auto kernel, class... Arguments>
void launch_chains(const KernelContext& context, const Inputs& inputs, ChainCall& call, int threads,
                   const Arguments&... arguments) {
  const auto* const panels = reinterpret_cast<const float*>(call.arrays.x);
  const int64_t bytes = PreparedMemory<kWidth>::panel_bytes(inputs, kFeatures);
  call.panels = tensor_map(panels, bytes / 1024, 256, 8);
  call.factors = tensor_map(call.arrays.e, chunks_of(inputs) * 2, Factors<kWidth>::kCount / 2, 2);
  call.q_map = tensor_map(inputs.q, 64);
  call.k_map = tensor_map(inputs.k, 64);
  constexpr int shared = sizeof(ChainShared<kWidth, kFeatures, kBackward>), state = kWidth * kWidth;
  static_assert(shared <= static_cast<int>(hopper::kSharedBytes));
  const int64_t chains = inputs.text_count() * inputs.v.shape[1],
                chunks = inputs.slots() / std::max<int64_t>(inputs.text_count(), 1);
  // A segment has four chunks or more.
  const int64_t segments =
      std::clamp<int64_t>(hopper::multiprocessors(context) / std::max<int64_t>(chains, 1), 1,
                          std::max<int64_t>(chunks / 4, 1));
  call.segments = static_cast<int>(segments);
  const int64_t cut = segments > 1 ? chains * segments : 0;
  const Workspace memory(context, cut * (state * 6 + int64_t{sizeof(int)}));
  call.own = memory.ptr<float>();
  call.maps = reinterpret_cast<Half*>(call.own + cut * state);
  call.left = reinterpret_cast<int*>(call.maps + cut * state);
  const auto run = [&](bool first_pass, bool again) {
    call.first_pass = first_pass;
    call.again = again;
    const int64_t blocks = first_pass ? 2 * (segments - 1) * chains : segments * chains;
    launch_next<kernel>(context, blocks, threads, shared, call, arguments...);
  };
  run(true, false);
  if (kFeatures) run(true, true);
  run(false, false);
}

}  // namespace sash::cuda::delta
