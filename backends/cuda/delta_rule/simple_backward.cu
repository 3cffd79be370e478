#include "simple.h"

#include "../../../tensor/kernels/memory.h"
#include "../attention/common/lanes.cuh"
#include "common.cuh"

/// The scores again; y and u of all chunks; gradients of the states from the last chunk to the
/// first; those of scores, and at last those of q, k and g, for all chunks at the same time.
namespace sash::cuda::delta {
namespace {

constexpr int kTeam = kThreads / kChunk;  // threads for a token

/// What kernels read and write besides.
template <class T, class C = compute_t<T>>
struct Results {
  Results(const Gradients& grads)
      : g(rows_of<const T>(grads.g_out)),
        g_state(grads.g_state ? grads.g_state->ptr<const C>() : nullptr),
        states(grads.kept.ptr<const C>()),
        dq(grads.dq.ptr<T>()),
        dk(grads.dk.ptr<T>()),
        dv(grads.dv.ptr<T>()),
        dg(grads.dg ? grads.dg->ptr<C>() : nullptr),
        dbeta(grads.dbeta ? grads.dbeta->ptr<C>() : nullptr),
        dinitial(grads.dinitial.ptr<C>()) {}

  /// The gradient of a chunk's results.
  __device__ C of_out(const Chunk<T>& c, const Place& at, int t, int m) const {
    return t < c.count && m < g.width ? widen(g.at(at.b, c.head).data[(at.first + t) * g.row + m])
                                      : C(0);
  }

  Rows<const T> g;
  const C *g_state, *states;
  T *dq, *dk, *dv;
  C *dg, *dbeta, *dinitial;
};

/// y and u: a block for each tile of columns of each chunk of each value head.
template <class T, class C = compute_t<T>>
__global__ void __launch_bounds__(kThreads) value_kernel(Operands<T> x, const C* states) {
  const Sizes& s = x.sizes;
  const int across = (s.width + kTile - 1) / kTile, block = static_cast<int>(blockIdx.x);
  const int column = block % across * kTile, head = block / across % s.value_heads;
  const Chunk<T> c(x, s.place_of_slot(block / across / s.value_heads), head);
  if (c.count == 0) return;
  TileSums<C> read;
  read.add(
      0, s.depth, [&](int t, int d) { return c.key(t, d) * c.b(t, d); }, true,
      [&](int d, int j) { return state_at(states + c.state, s, d, column + j); }, false);
  store_rows(c, column, read, x.scratch.y,
             [&](int t, int m, C sum) { return c.value(t, m) - sum; });
  TileSums<C> solved;
  solved.add(
      0, c.count, [&](int t, int i) { return c.of(x.scratch.n, t, i) * c.beta(i); }, true,
      [&](int i, int j) { return c.row(x.scratch.y, i, column + j); }, false);
  store_rows(c, column, solved, x.scratch.u, [](int, int, C sum) { return sum; });
}

/// Gradients of states, dr, and dv: as `forward_kernel`, from the last chunk to the first.
template <class T, class C = compute_t<T>>
__global__ void __launch_bounds__(kThreads) chain_kernel(Operands<T> x, Results<T> to) {
  const Sizes& s = x.sizes;
  const Chain chain(s);
  const int column = chain.column;
  C *const now = to.dinitial + chain.state, *const r = x.scratch.r;
  copy_columns<C>(s, column, to.g_state ? to.g_state + chain.state : nullptr, now);
  for (int chunk = s.chunks_of(chain.text) - 1; chunk >= 0; --chunk) {
    const Place at = s.place(chain.text, chunk);
    const Chunk<T> c(x, at, chain.head);
    __syncthreads();
    copy_columns<C>(s, column, now, x.scratch.dstates + c.state);
    const auto g_of = [&](int t, int j) { return to.of_out(c, at, t, column + j); };
    const auto r_of = [&](int t, int j) { return c.row(r, t, column + j); };
    TileSums<C> du;
    du.add(
        0, s.depth, [&](int t, int d) { return c.key(t, d) * c.f(t, d); }, true,
        [&](int d, int j) { return state_at<C>(now, s, d, column + j); }, false);
    du.add(
        0, c.count, [&](int i, int t) { return c.of(x.scratch.p, t, i); }, false, g_of, false);
    store_rows(c, column, du, r, [](int, int, C sum) { return sum; });
    if (x.beta) {
      TileSums<C> dr;
      dr.add(
          0, c.count, [&](int i, int t) { return c.of(x.scratch.n, t, i); }, false, r_of, false);
      store_rows(c, column, dr, r, [](int, int, C sum) { return sum; });
      store_rows(c, column, dr, to.dv,
                 [&](int t, int, C sum) { return narrow<T>(c.beta(t) * sum); });
    } else {
      store_rows(c, column, du, to.dv, [](int, int, C sum) { return narrow<T>(sum); });
    }
    for (int first = 0; first < s.depth; first += kTile) {
      TileSums<C> added;
      added.add(
          0, c.count, [&](int d, int t) { return c.query(t, first + d) * c.b(t, first + d); },
          false, g_of, false);
      if (x.beta) {
        added.add(
            0, c.count,
            [&](int d, int t) { return -c.beta(t) * c.key(t, first + d) * c.b(t, first + d); },
            false, r_of, false);
      }
      add_to_columns(c, column, first, added, now);
    }
  }
}

/// dP, -dr u' and dbeta: a block for each chunk of each value head.
template <class T, class C = compute_t<T>>
__global__ void __launch_bounds__(kThreads) score_gradient_kernel(Operands<T> x, Results<T> to) {
  const Sizes& s = x.sizes;
  const int block = static_cast<int>(blockIdx.x);
  const Place at = s.place_of_slot(block / s.value_heads);
  const Chunk<T> c(x, at, block % s.value_heads);
  if (c.count == 0) return;
  const auto u_of = [&](int m, int i) { return c.u(i, m); };
  TileSums<C> dp;
  dp.add(
      0, s.width, [&](int t, int m) { return to.of_out(c, at, t, m); }, true, u_of, true);
  dp.for_each(
      [&](int t, int i, C sum) { x.scratch.dp[c.matrix + t * kChunk + i] = i <= t ? sum : C(0); });
  if (!x.beta) return;
  TileSums<C> dx;
  dx.add(
      0, s.width, [&](int t, int m) { return -c.row(x.scratch.r, t, m); }, true, u_of, true);
  dx.for_each(
      [&](int t, int i, C sum) { x.scratch.x[c.matrix + t * kChunk + i] = i < t ? sum : C(0); });
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x) / kTeam, part = static_cast<int>(threadIdx.x) % kTeam;
  C sum = 0;
  for (int m = part; m < s.width; m += kTeam) {
    sum += c.row(x.scratch.r, t, m) * c.row(x.scratch.y, t, m);
  }
  for (int i = part; i < t; i += kTeam) sum += c.of(x.scratch.x, t, i) * c.of(x.scratch.s, t, i);
  sum = sum_over_lanes<kTeam>(sum);
  if (part == 0 && t < c.count) to.dbeta[c.token + t] = sum;
}

/// Gradients of one value head for 64 tokens x 64 features from `first` on, in the places of
/// `TileSums`: of queries, and of keys where a decay ends (`row`) and begins (`column`).
template <class T, class C = compute_t<T>>
struct Tile {
  using Sums = TileSums<C>;
  Sums dq{}, row{}, column{};

  // What comes from the states before and after the chunk.
  __device__ void from_states(const Operands<T>& x, const Results<T>& to, const Place& at,
                              const Chunk<T>& c, int first) {
    const Sizes& s = x.sizes;
    const C *const before = to.states + c.state, *const after = x.scratch.dstates + c.state;
    const auto before_of = [&](int m, int d) { return state_at(before, s, first + d, m); };
    dq.add(
        0, s.width, [&](int t, int m) { return to.of_out(c, at, t, m); }, true, before_of, true);
    if (x.beta) {
      row.add(
          0, s.width, [&](int t, int m) { return -c.beta(t) * c.row(x.scratch.r, t, m); }, true,
          before_of, true);
    }
    column.add(
        0, s.width, [&](int t, int m) { return c.u(t, m); }, true,
        [&](int m, int d) { return state_at(after, s, first + d, m); }, true);
    each(first, [&](int t, int d, int i, int j) {
      dq.of[i][j] *= c.b(t, d);
      row.of[i][j] *= c.b(t, d);
      column.of[i][j] *= c.f(t, d);
    });
  }

  // What comes from P and A. Decays are products, from token to token.
  __device__ void from_pairs(const Operands<T>& x, const Chunk<T>& c, int first) {
    C decay[4][4] = {};
    for (int n = c.count - 1; n >= 0; --n) {  // row t, column n
      each(first, [&](int t, int d, int i, int j) {
        if (n > t || t >= c.count) return;
        decay[i][j] = n == t ? C(1) : decay[i][j] * c.a(n + 1, d);
        const C key = decay[i][j] * c.key(n, d);
        dq.of[i][j] += c.of(x.scratch.dp, t, n) * key;
        if (x.beta) row.of[i][j] += c.beta(t) * c.of(x.scratch.x, t, n) * key;
      });
    }
    for (int n = 0; n < c.count; ++n) {  // row n, column t
      each(first, [&](int t, int d, int i, int j) {
        if (n < t) return;
        decay[i][j] = n == t ? C(1) : decay[i][j] * c.a(n, d);
        C sum = c.of(x.scratch.dp, n, t) * c.query(n, d);
        if (x.beta) sum += c.beta(n) * c.of(x.scratch.x, n, t) * c.key(n, d);
        column.of[i][j] += decay[i][j] * sum;
      });
    }
  }

  /// Calls f(t, d, i, j) for this thread's elements [i][j].
  template <class F>
  static __device__ void each(int first, const F& f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) f(Sums::y() + 16 * i, first + Sums::x() + 16 * j, i, j);
    }
  }
};

/// Sums over tokens and features of a tile, for the gradient of g.
template <class C>
struct GateSums {
  C of_columns[16][kTile];  ///< for each 16th row: k . dk of the state after the chunk
  C last[kTile];            ///< share of the last token's g, for each feature
  C of_tokens[kChunk];
};

/// dg, from the last token to the first; of features from `first` on.
template <class T, class C = compute_t<T>>
__device__ void gate_gradient(const Operands<T>& x, const Results<T>& to, const Chunk<T>& c,
                              const Tile<T>& tile, int first, GateSums<C>& sums) {
  const Sizes& s = x.sizes;
  const int thread = static_cast<int>(threadIdx.x);
  const int feature = thread / kTeam, part = thread % kTeam;
  C with_state = 0;  // S . dS of the feature
  for (int m = part; m < s.width; m += kTeam) {
    with_state += state_at(to.states + c.state, s, first + feature, m) *
                  state_at<C>(x.scratch.dstates + c.state, s, first + feature, m);
  }
  with_state = sum_over_lanes<kTeam>(with_state);
  if (part == 0) {
    C sum = with_state * c.b(c.count - 1, first + feature);
    for (int i = 0; i < 16; ++i) sum += sums.of_columns[i][feature];
    sums.last[feature] = sum;
  }
  C of_token[4] = {};
  Tile<T>::each(first, [&](int t, int d, int i, int j) {
    const C sum =
        c.query(t, d) * tile.dq.of[i][j] + c.key(t, d) * (tile.row.of[i][j] - tile.column.of[i][j]);
    of_token[i] += sum;
    if (s.gates > 1 && c.has(t, d)) to.dg[c.gate(t, d)] = sum;
  });
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    of_token[i] = sum_over_lanes<16>(of_token[i]);
    if (TileSums<C>::x() == 0) sums.of_tokens[TileSums<C>::y() + 16 * i] = of_token[i];
  }
  __syncthreads();
  if (s.gates > 1 && thread < kTile && first + thread < s.depth) {
    C sum = sums.last[thread];
    for (int t = c.count - 1; t >= 0; --t) {
      C& dg = to.dg[c.gate(t, first + thread)];
      dg = sum += dg;
    }
  }
  if (s.gates == 1 && thread == 0) {
    C sum = 0;
    for (int d = 0; d < kTile; ++d) sum += sums.last[d];
    for (int t = c.count - 1; t >= 0; --t) {
      C& dg = to.dg[c.gate(t, 0)];
      sum += sums.of_tokens[t];
      dg = first == 0 ? sum : dg + sum;  // the sum of all tiles
    }
  }
  __syncthreads();
}

/// dq, dk and dg: a block for each chunk of each query and key head.
template <class T, class C = compute_t<T>>
__global__ void __launch_bounds__(kThreads) gradient_kernel(Operands<T> x, Results<T> to) {
  __shared__ GateSums<C> sums;
  const Sizes& s = x.sizes;
  const int block = static_cast<int>(blockIdx.x), key_head = block % s.heads;
  const Place at = s.place_of_slot(block / s.heads);
  if (at.count == 0) return;
  const int group = s.value_heads / s.heads;
  for (int first = 0; first < s.depth; first += kTile) {
    C dq[4][4] = {}, dk[4][4] = {};
    for (int head = key_head * group; head < (key_head + 1) * group; ++head) {
      const Chunk<T> c(x, at, head);
      Tile<T> tile;
      tile.from_states(x, to, at, c, first);
      C of_columns[4] = {};
      Tile<T>::each(first, [&](int t, int d, int i, int j) {
        of_columns[j] += c.key(t, d) * tile.column.of[i][j];
      });
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums.of_columns[TileSums<C>::y()][TileSums<C>::x() + 16 * j] = of_columns[j];
      }
      tile.from_pairs(x, c, first);
      __syncthreads();
      if (to.dg) gate_gradient(x, to, c, tile, first, sums);
      Tile<T>::each(first, [&](int, int, int i, int j) {
        dq[i][j] += tile.dq.of[i][j];
        dk[i][j] += tile.row.of[i][j] + tile.column.of[i][j];
      });
    }
    const int64_t token = (int64_t{at.b} * s.heads + key_head) * s.length + at.first;
    Tile<T>::each(first, [&](int t, int d, int i, int j) {
      if (t >= at.count || d >= s.depth) return;
      to.dq[(token + t) * s.depth + d] = narrow<T>(x.scale * dq[i][j]);
      to.dk[(token + t) * s.depth + d] = narrow<T>(dk[i][j]);
    });
  }
}

template <class T>
void run_backward(const KernelContext& context, const Inputs& inputs, const Gradients& grads) {
  const Memory<compute_t<T>> memory(context, inputs, true);
  const Operands<T> x(inputs, memory.scratch);
  const Results<T> to(grads);
  const int64_t across = tiles(x.sizes.width), slots = x.sizes.slots;
  const int64_t chunks = slots * x.sizes.value_heads;
  form_scores(context, x);
  if (x.beta) run(context, value_kernel<T>, chunks * across, x, to.states);
  run(context, chain_kernel<T>, int64_t{x.sizes.texts} * x.sizes.value_heads * across, x, to);
  run(context, score_gradient_kernel<T>, chunks, x, to);
  run(context, gradient_kernel<T>, slots * x.sizes.heads, x, to);
}

}  // namespace

void simple_backward(KernelContext& context, const Inputs& x, const Gradients& grads) {
  // Without features, no kernel below writes it.
  if (grads.dg && x.q.shape[3] == 0 && grads.dg->numel() > 0) {
    kernels::fill(context, *grads.dg, 0);
  }
  dispatch_any_floating(x.q.dtype, "gated_delta_rule",
                        [&]<class E>(TypeTag<E>) { run_backward<device_t<E>>(context, x, grads); });
}

}  // namespace sash::cuda::delta
