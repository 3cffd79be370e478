#include "simple.h"

#include <type_traits>

#include "../attention/common/launch.cuh"
#include "../linalg/tile_sums.cuh"
#include "common.h"
#include "rows.cuh"

/// Every step is a batch of products in tiles of 64 x 64, a block of threads each, whose operands
/// are read through functions: features are formed, hidden rows zeroed, on the way to shared
/// memory. Scratch memory: a state per chunk of 64 tokens, and the scores within chunks [B, H, S,
/// 64].
namespace sash::cuda::linear {
namespace {

constexpr int kChunk = 64;
constexpr int kTile = TileSums<float>::kTile, kThreads = TileSums<float>::kBlock;

/// A tile of a product, whose corner is at `row` and `column` of the result.
template <class C>
struct Tile {
  int row, column;
  TileSums<C> sums;

  /// Adds a(i, k) b(k, j), k < depth. The flags say whether neighbours along k are neighbours in
  /// memory.
  template <class A, class B>
  __device__ void add(int depth, const A& a, bool a_along_k, const B& b, bool b_along_k) {
    sums.add(
        0, depth, [&](int i, int k) { return a(row + i, k); }, a_along_k,
        [&](int k, int j) { return b(k, column + j); }, b_along_k);
  }

  /// Calls f(i, j, sum) for this thread's part.
  template <class F>
  __device__ void each(const F& f) const {
    sums.for_each([&](int i, int j, C sum) { f(row + i, column + j, sum); });
  }
};

/// The block's place: a tile of the result of chunk `chunk` of head (b, h).
struct Place {
  int b, h, chunk, row, column;

  /// Results [rows, columns].
  __device__ Place(int heads, int chunks, int rows, int columns) {
    const int across = (columns + kTile - 1) / kTile, down = (rows + kTile - 1) / kTile;
    int index = static_cast<int>(blockIdx.x);
    column = index % across * kTile;
    index /= across;
    row = index % down * kTile;
    index /= down;
    chunk = index % chunks;
    index /= chunks;
    h = index % heads;
    b = index / heads;
  }
};

/// Summed states, [B, H_kv, max(chunks, 1), D, D_v + 1].
template <class C>
struct States {
  const C* data;
  int chunks;

  /// The one that a chunk is multiplied with.
  __device__ const C* of(const Sizes& p, int b, int h, int chunk) const {
    const int64_t head = static_cast<int64_t>(b) * p.key_heads + h;
    return data + (head * max(chunks, 1) + (p.causal ? chunk : 0)) * p.depth * p.width;
  }
};

/// The state of a chunk of keys or queries; of all `group` heads that share it.
template <class C, class Side>
__global__ void __launch_bounds__(kThreads)
    state_kernel(Side side, Sizes p, int group, int chunks, C* states) {
  const Place at(p.key_heads, chunks, p.depth, p.width);
  Tile<C> tile{at.row, at.column, {}};
  for (int n = 0; n < group; ++n) {
    const auto head = side.at(at.b, at.h * group + n);
    const int first = at.chunk * kChunk;
    tile.add(
        kChunk, [&](int d, int i) { return head.feature(first + i, d); }, false,
        [&](int i, int m) { return head.wide(first + i, m); }, false);
  }
  C* const to = states + ((static_cast<int64_t>(at.b) * p.key_heads + at.h) * chunks + at.chunk) *
                             p.depth * p.width;
  tile.each([&](int d, int m, C sum) {
    if (d < p.depth && m < p.width) to[static_cast<int64_t>(d) * p.width + m] = sum;
  });
}

/// Scores of a chunk of queries with the keys of the same chunk, 0 where j > i: products of the
/// features, or of the wide rows.
template <bool kWide, class T, class C = compute_t<T>>
__global__ void __launch_bounds__(kThreads)
    score_kernel(Queries<T> queries, Keys<T> keys, Sizes p, int chunks, C* scores) {
  const Place at(p.heads, chunks, kChunk, kChunk);
  const auto q = queries.at(at.b, at.h);
  const auto k = keys.at(at.b, at.h / p.group());
  const int first = at.chunk * kChunk;
  Tile<C> tile{0, 0, {}};
  tile.add(
      kWide ? p.width : p.depth,
      [&](int i, int d) { return kWide ? q.wide(first + i, d) : q.feature(first + i, d); }, true,
      [&](int d, int j) { return kWide ? k.wide(first + j, d) : k.feature(first + j, d); }, true);
  C* const to =
      scores + ((static_cast<int64_t>(at.b) * p.heads + at.h) * p.queries + first) * kChunk;
  tile.each([&](int i, int j, C sum) {
    if (first + i < p.queries) to[i * kChunk + j] = j <= i ? sum : C(0);
  });
}

/// [numerator, denominator] of a chunk of queries, or their dq (kGradient).
template <bool kGradient, class T, class C = compute_t<T>>
__global__ void __launch_bounds__(kThreads)
    query_kernel(Queries<T> queries, Keys<T> keys, Sizes p, int chunks, States<C> states,
                 const C* scores, std::conditional_t<kGradient, T, C>* to) {
  const int columns = kGradient ? p.depth : p.width;
  const Place at(p.heads, chunks, kChunk, columns);
  const int key_head = at.h / p.group(), first = at.chunk * kChunk;
  const auto q = queries.at(at.b, at.h);
  const auto k = keys.at(at.b, key_head);
  const C* const state = states.of(p, at.b, key_head, at.chunk);
  const int64_t row = (static_cast<int64_t>(at.b) * p.heads + at.h) * p.queries + first;
  const int count = min(kChunk, p.queries - first);
  Tile<C> tile{0, at.column, {}};
  tile.add(
      kGradient ? p.width : p.depth,
      [&](int i, int n) { return kGradient ? q.wide(first + i, n) : q.feature(first + i, n); },
      true,
      [&](int n, int c) {
        const int d = kGradient ? c : n, m = kGradient ? n : c;
        return c < columns ? state[static_cast<int64_t>(d) * p.width + m] : C(0);
      },
      kGradient);
  if (p.causal) {
    tile.add(
        kChunk, [&](int i, int j) { return i < count ? scores[(row + i) * kChunk + j] : C(0); },
        true,
        [&](int j, int c) { return kGradient ? k.feature(first + j, c) : k.wide(first + j, c); },
        false);
  }
  tile.each([&](int i, int c, C sum) {
    if (i >= count || c >= columns) return;
    if constexpr (kGradient) {
      to[(row + i) * columns + c] = narrow<T>(sum * min(q.feature(first + i, c), C(1)));
    } else {
      to[(row + i) * columns + c] = sum;
    }
  });
}

/// dk (kValues = false) or dv. `scores` are products of the wide rows, or of the features.
template <bool kValues, class T, class C = compute_t<T>>
__global__ void __launch_bounds__(kThreads)
    key_gradient_kernel(Queries<T> queries, Keys<T> keys, Sizes p, int chunks, States<C> states,
                        const C* scores, T* dx) {
  const int columns = kValues ? p.width - 1 : p.depth;
  const Place at(p.key_heads, chunks, kChunk, columns);
  const int first = at.chunk * kChunk;
  const auto k = keys.at(at.b, at.h);
  const C* const state = states.of(p, at.b, at.h, at.chunk);
  Tile<C> tile{0, at.column, {}};
  if constexpr (kValues) {
    tile.add(
        p.depth, [&](int j, int d) { return k.feature(first + j, d); }, true,
        [&](int d, int m) {
          return m < p.width ? state[static_cast<int64_t>(d) * p.width + m] : C(0);
        },
        false);
  } else {
    tile.add(
        p.width, [&](int j, int m) { return k.wide(first + j, m); }, true,
        [&](int m, int d) {
          return d < p.depth ? state[static_cast<int64_t>(d) * p.width + m] : C(0);
        },
        true);
  }
  for (int n = 0; p.causal && n < p.group(); ++n) {
    const int h = at.h * p.group() + n;
    const auto q = queries.at(at.b, h);
    const int64_t row = (static_cast<int64_t>(at.b) * p.heads + h) * p.queries + first;
    tile.add(
        min(kChunk, p.queries - first),
        [&](int j, int i) { return scores[(row + i) * kChunk + j]; }, false,
        [&](int i, int d) { return kValues ? q.wide(first + i, d) : q.feature(first + i, d); },
        false);
  }
  T* const to = dx + ((static_cast<int64_t>(at.b) * p.key_heads + at.h) * p.keys + first) * columns;
  tile.each([&](int j, int d, C sum) {
    if (first + j >= p.keys || d >= columns) return;
    if (!kValues) sum *= min(k.feature(first + j, d), C(1));
    to[static_cast<int64_t>(j) * columns + d] = narrow<T>(first + j < k.end ? sum : C(0));
  });
}

/// out and den from the sums.
template <class T, class C = compute_t<T>>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const C* sums, int64_t count, int width, C eps, T* out, C* den) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i / width, m = i - row * width;
  const C total = sums[row * width + width - 1] + eps;
  if (m == width - 1) {
    den[row] = total;
  } else {
    out[row * (width - 1) + m] = narrow<T>(sums[i] / total);
  }
}

template <class... Parameters, class... Arguments>
void run(const KernelContext& context, void (*kernel)(Parameters...), int64_t blocks,
         const Arguments&... arguments) {
  launch_tiles(context, blocks, kThreads, 0, kernel, arguments...);
}

int64_t tiles(int64_t extent) { return (extent + kTile - 1) / kTile; }

/// One call.
template <class T>
class Pass {
 public:
  using C = compute_t<T>;

  Pass(const KernelContext& context, const Inputs& x, const Params& params)
      : context_(context), p_(x, params), keys_(x, params) {}

  void forward(const Queries<T>& queries, double eps, T* out, C* den) const {
    const Workspace key_states(context_, state_bytes(p_.keys));
    make_states(keys_, 1, p_.keys, Scan::before, key_states.ptr<C>());
    const Workspace scores(context_, p_.causal ? score_bytes() : 0);
    if (p_.causal) make_scores<false>(queries, scores.ptr<C>());
    const int64_t rows = int64_t{p_.batches} * p_.heads * p_.queries, count = rows * p_.width;
    const Workspace sums(context_, count * int64_t{sizeof(C)});
    const int chunks = chunks_of(p_.queries);
    run(context_, query_kernel<false, T>, items(p_.heads, chunks) * tiles(p_.width), queries, keys_,
        p_, chunks, States<C>{key_states.ptr<const C>(), chunks_of(p_.keys)}, scores.ptr<const C>(),
        sums.ptr<C>());
    run(context_, finish_kernel<T>, (count + kThreads - 1) / kThreads, sums.ptr<const C>(), count,
        p_.width, static_cast<C>(eps), out, den);
  }

  void backward(const Queries<T>& queries, T* dq, T* dk, T* dv) const {
    const Workspace scores(context_, p_.causal ? score_bytes() : 0);
    const Workspace wide_scores(context_, p_.causal ? score_bytes() : 0);
    if (p_.causal) {
      make_scores<false>(queries, scores.ptr<C>());
      make_scores<true>(queries, wide_scores.ptr<C>());
    }
    const int query_chunks = chunks_of(p_.queries), key_chunks = chunks_of(p_.keys);
    {
      const Workspace states(context_, state_bytes(p_.keys));
      make_states(keys_, 1, p_.keys, Scan::before, states.ptr<C>());
      run(context_, query_kernel<true, T>, items(p_.heads, query_chunks) * tiles(p_.depth), queries,
          keys_, p_, query_chunks, States<C>{states.ptr<const C>(), key_chunks},
          wide_scores.ptr<const C>(), dq);
    }
    const Workspace states(context_, state_bytes(p_.queries));
    make_states(queries, p_.group(), p_.queries, Scan::behind, states.ptr<C>());
    const States<C> sums{states.ptr<const C>(), query_chunks};
    run(context_, key_gradient_kernel<false, T>, items(p_.key_heads, key_chunks) * tiles(p_.depth),
        queries, keys_, p_, key_chunks, sums, wide_scores.ptr<const C>(), dk);
    run(context_, key_gradient_kernel<true, T>,
        items(p_.key_heads, key_chunks) * tiles(p_.width - 1), queries, keys_, p_, key_chunks, sums,
        scores.ptr<const C>(), dv);
  }

 private:
  static int chunks_of(int length) { return (length + kChunk - 1) / kChunk; }
  int64_t items(int heads, int chunks) const { return int64_t{p_.batches} * heads * chunks; }
  int64_t state_bytes(int length) const {
    return items(p_.key_heads, std::max(1, chunks_of(length))) * p_.depth * p_.width *
           int64_t{sizeof(C)};
  }
  int64_t score_bytes() const {
    return int64_t{p_.batches} * p_.heads * p_.queries * kChunk * int64_t{sizeof(C)};
  }

  template <class Side>
  void make_states(const Side& side, int group, int length, Scan scan, C* states) const {
    const int chunks = chunks_of(length);
    run(context_, state_kernel<C, Side>,
        items(p_.key_heads, chunks) * tiles(p_.depth) * tiles(p_.width), side, p_, group, chunks,
        states);
    scan_states(context_, p_.causal ? scan : Scan::all, states, int64_t{p_.batches} * p_.key_heads,
                chunks, int64_t{p_.depth} * p_.width);
  }

  template <bool kWide>
  void make_scores(const Queries<T>& queries, C* scores) const {
    const int chunks = chunks_of(p_.queries);
    run(context_, score_kernel<kWide, T>, items(p_.heads, chunks), queries, keys_, p_, chunks,
        scores);
  }

  KernelContext context_;
  Sizes p_;
  Keys<T> keys_;
};

}  // namespace

void simple_forward(const KernelContext& context, const Inputs& x, const Params& params, View out,
                    View den) {
  dispatch_any_floating(out.dtype, "linear_attention", [&]<class E>(TypeTag<E>) {
    using T = device_t<E>;
    Pass<T>(context, x, params)
        .forward(Queries<T>(x), params.eps, out.ptr<T>(), den.ptr<compute_t<T>>());
  });
}

void simple_backward(const KernelContext& context, const Inputs& x, const Params& params,
                     const Gradients& grads) {
  const int64_t rows = grads.den.numel();
  const Workspace dots(context, rows * size_of(grads.den.dtype));
  form_dots(context, grads, dots.ptr<void>());
  dispatch_any_floating(grads.out.dtype, "linear_attention", [&]<class E>(TypeTag<E>) {
    using T = device_t<E>;
    Pass<T>(context, x, params)
        .backward(Queries<T>(x, grads, dots.ptr<const compute_t<T>>()), grads.dq.ptr<T>(),
                  grads.dk.ptr<T>(), grads.dv.ptr<T>());
  });
}

}  // namespace sash::cuda::linear
