#pragma once

#include <cstdint>

#include "../../../ops/kernels/delta_rule.h"
#include "../attention/common/launch.cuh"
#include "../attention/common/rows.cuh"
#include "../elementwise/compute.cuh"
#include "../linalg/tile_sums.cuh"

/// The gated delta rule without tensor cores: any floating dtype, any number of features. Names are
/// from `ops/kernels/delta_rule.h`; C is the type of the arithmetic.
///
/// Products are tiles of 64 x 64, a block of threads each, whose operands are read through
/// functions: decays and betas multiply them on the way to shared memory. Scratch memory for each
/// value head: the decays of tokens, u and y [S, D_v], and three or five matrices of 64 x 64 for
/// each chunk.
namespace sash::cuda::delta {

using Inputs = kernels::DeltaInputs;
using Gradients = kernels::DeltaGradients;

constexpr int kChunk = kernels::kDeltaChunk;
constexpr int kTile = TileSums<float>::kTile, kThreads = TileSums<float>::kBlock;
static_assert(kChunk == kTile, "a chunk is a tile of tokens");

/// A chunk of one row b, or nothing: count is 0 for slots that no chunk has.
struct Place {
  int text, b, first, count;
  int64_t slot;
  bool is_first, is_last;  ///< of the text
};

struct Sizes {
  int heads, value_heads, length, depth, width, texts, slots_of_row;
  int64_t slots;
  int gates;              ///< numbers of a decay: 1 or D
  const int32_t* bounds;  ///< of packed texts, or null

  explicit Sizes(const Inputs& x)
      : heads(static_cast<int>(x.q.shape[1])),
        value_heads(static_cast<int>(x.v.shape[1])),
        length(static_cast<int>(x.q.shape[2])),
        depth(static_cast<int>(x.q.shape[3])),
        width(static_cast<int>(x.v.shape[3])),
        texts(static_cast<int>(x.text_count())),
        slots_of_row(static_cast<int>(x.slots_of_row())),
        slots(x.slots()),
        gates(x.g && x.g->rank() == 4 ? depth : 1),
        bounds(x.texts ? x.texts->ptr<const int32_t>() : nullptr) {}

  /// Clamped: a check has reported bounds that do not fit.
  __device__ int bound(int text) const { return min(max(bounds[text], 0), length); }
  __device__ int64_t first_slot(int text) const {
    return bounds ? bound(text) / kChunk + int64_t{text} : int64_t{text} * slots_of_row;
  }
  __device__ int chunks_of(int text) const {
    if (!bounds) return slots_of_row;
    return (max(bound(text + 1) - bound(text), 0) + kChunk - 1) / kChunk;
  }
  /// Chunk `chunk` of `text`.
  __device__ Place place(int text, int chunk) const {
    const int begin = bounds ? bound(text) : 0, end = bounds ? bound(text + 1) : length;
    const int first = begin + chunk * kChunk;
    return {text,
            bounds ? 0 : text,
            first,
            min(max(end - first, 0), kChunk),
            first_slot(text) + chunk,
            chunk == 0,
            end - first <= kChunk};
  }
  __device__ Place place_of_slot(int64_t slot) const {
    if (texts == 0) return {};
    int text = 0;  // the last whose first slot is at most `slot`
    for (int past = texts; past - text > 1;) {
      const int middle = text + (past - text) / 2;
      (first_slot(middle) <= slot ? text : past) = middle;
    }
    return place(text, static_cast<int>(slot - first_slot(text)));
  }
};

/// Scratch memory of a call; null where a pass has no such part.
template <class C>
struct Scratch {
  C *a, *b, *f;  ///< decays [B, H_v, S, gates]
  C *p, *s, *n;  ///< P, A and N [slots, H_v, 64, 64]
  C *y, *u, *r;  ///< [B, H_v, S, D_v]
  C *dp, *x;     ///< [slots, H_v, 64, 64]: dP; -dr u' where i < t
  C* dstates;    ///< [slots, H_v, D, D_v]: gradients of the states after chunks
};

/// What kernels read.
template <class T>
struct Operands {
  using C = compute_t<T>;

  Operands(const Inputs& x, const Scratch<C>& memory)
      : q(rows_of<const T>(x.q)),
        k(rows_of<const T>(x.k)),
        v(rows_of<const T>(x.v)),
        g(x.g ? x.g->ptr<const C>() : nullptr),
        beta(x.beta ? x.beta->ptr<const C>() : nullptr),
        initial(x.initial ? x.initial->ptr<const C>() : nullptr),
        scale(static_cast<C>(x.scale)),
        sizes(x),
        scratch(memory) {}

  Rows<const T> q, k, v;
  const C *g, *beta, *initial;
  C scale;
  Sizes sizes;
  Scratch<C> scratch;
};

/// A chunk of one value head. Elements outside it are 0.
template <class T>
struct Chunk {
  using C = compute_t<T>;

  __device__ Chunk(const Operands<T>& o, const Place& at, int value_head)
      : x(o), count(at.count), head(value_head) {
    const Sizes& s = o.sizes;
    const int key_head = head / (s.value_heads / s.heads);
    q = o.q.at(at.b, key_head).data + at.first * o.q.row;
    k = o.k.at(at.b, key_head).data + at.first * o.k.row;
    v = o.v.at(at.b, head).data + at.first * o.v.row;
    token = (int64_t{at.b} * s.value_heads + head) * s.length + at.first;
    matrix = (at.slot * s.value_heads + head) * kChunk * kChunk;
    state = (at.slot * s.value_heads + head) * int64_t{s.depth} * s.width;
  }

  __device__ bool has(int t, int d) const { return t < count && d < x.sizes.depth; }
  __device__ int64_t gate(int t, int d) const {
    return (token + t) * x.sizes.gates + (x.sizes.gates == 1 ? 0 : d);
  }
  /// Scaled.
  __device__ C query(int t, int d) const {
    return has(t, d) ? widen(q[t * x.q.row + d]) * x.scale : C(0);
  }
  __device__ C key(int t, int d) const { return has(t, d) ? widen(k[t * x.k.row + d]) : C(0); }
  __device__ C value(int t, int m) const {
    return t < count && m < x.sizes.width ? widen(v[t * x.v.row + m]) : C(0);
  }
  __device__ C a(int t, int d) const { return has(t, d) ? x.scratch.a[gate(t, d)] : C(0); }
  __device__ C b(int t, int d) const { return has(t, d) ? x.scratch.b[gate(t, d)] : C(0); }
  __device__ C f(int t, int d) const { return has(t, d) ? x.scratch.f[gate(t, d)] : C(0); }
  __device__ C beta(int t) const { return x.beta && t < count ? x.beta[token + t] : C(1); }
  /// Of a matrix of tokens.
  __device__ C of(const C* m, int t, int i) const {
    return t < count && i < count ? m[matrix + t * kChunk + i] : C(0);
  }
  /// Of [B, H_v, S, D_v].
  __device__ C row(const C* rows, int t, int m) const {
    return t < count && m < x.sizes.width ? rows[(token + t) * x.sizes.width + m] : C(0);
  }
  __device__ C u(int t, int m) const { return x.beta ? row(x.scratch.u, t, m) : value(t, m); }

  const Operands<T>& x;
  const T *q, *k, *v;
  int count, head;
  int64_t token, matrix, state;
};

/// Element (d, m) of a state.
template <class C>
__device__ C state_at(const C* state, const Sizes& s, int d, int m) {
  return d < s.depth && m < s.width ? state[int64_t{d} * s.width + m] : C(0);
}

/// The work of a block of a kernel over chains of states: columns of a text's head.
struct Chain {
  int text, head, column;
  int64_t state;  ///< where the head's state begins in [N, H_v, D, D_v]

  __device__ explicit Chain(const Sizes& s) {
    const int across = (s.width + kTile - 1) / kTile, block = static_cast<int>(blockIdx.x);
    column = block % across * kTile;
    head = block / across % s.value_heads;
    text = block / across / s.value_heads;
    state = (int64_t{text} * s.value_heads + head) * s.depth * s.width;
  }
};

/// Copies 64 columns of a state, or zeros if `from` is null.
template <class C>
__device__ void copy_columns(const Sizes& s, int column, const C* from, C* to) {
  for (int i = static_cast<int>(threadIdx.x); i < s.depth * kTile; i += kThreads) {
    const int m = column + i % kTile;
    const int64_t at = int64_t{i / kTile} * s.width + m;
    if (m < s.width) to[at] = from ? from[at] : C(0);
  }
}

/// Lets 64 columns of a state decay over the chunk, and adds sums of features from `first` on.
template <class T, class C>
__device__ void add_to_columns(const Chunk<T>& c, int column, int first, const TileSums<C>& sums,
                               C* state) {
  const Sizes& s = c.x.sizes;
  sums.for_each([&](int row, int j, C sum) {
    const int d = first + row, m = column + j;
    if (d >= s.depth || m >= s.width) return;
    C& to = state[int64_t{d} * s.width + m];
    to = c.b(c.count - 1, d) * to + sum;
  });
}

/// Writes value(t, m, sum) to 64 columns of [B, H_v, S, D_v].
template <class T, class To, class C, class F>
__device__ void store_rows(const Chunk<T>& c, int column, const TileSums<C>& sums, To* to,
                           const F& value) {
  const int width = c.x.sizes.width;
  sums.for_each([&](int t, int j, C sum) {
    const int m = column + j;
    if (t < c.count && m < width) to[(c.token + t) * width + m] = value(t, m, sum);
  });
  __syncthreads();
}

inline int64_t tiles(int64_t extent) { return ceil_div(extent, kTile); }

template <class... Parameters, class... Arguments>
void run(const KernelContext& context, void (*kernel)(Parameters...), int64_t blocks,
         const Arguments&... arguments) {
  launch_tiles(context, blocks, kThreads, 0, kernel, arguments...);
}

/// Decays, P, A and N of all chunks.
template <class T>
void form_scores(const KernelContext& context, const Operands<T>& x);

/// Memory that both passes need, in scratch memory of the call.
template <class C>
class Memory {
 public:
  Memory(const KernelContext& context, const Inputs& x, bool backward)
      : tokens_(x.v.shape[0] * x.v.shape[1] * x.v.shape[2]),
        matrices_(x.slots() * x.v.shape[1] * kChunk * kChunk),
        gates_(context, 3 * tokens_ * Sizes(x).gates * kSize),
        scores_(context, (backward ? 5 : 3) * matrices_ * kSize),
        values_(context, (backward ? 3 : 1) * tokens_ * x.v.shape[3] * kSize),
        dstates_(context,
                 backward ? x.slots() * x.v.shape[1] * x.q.shape[3] * x.v.shape[3] * kSize : 0) {
    const int64_t gates = tokens_ * Sizes(x).gates, values = tokens_ * x.v.shape[3];
    scratch.a = gates_.ptr<C>();
    scratch.b = scratch.a + gates;
    scratch.f = scratch.b + gates;
    scratch.p = scores_.ptr<C>();
    scratch.s = scratch.p + matrices_;
    scratch.n = scratch.s + matrices_;
    scratch.u = values_.ptr<C>();
    if (!backward) return;
    scratch.dp = scratch.n + matrices_;
    scratch.x = scratch.dp + matrices_;
    scratch.y = scratch.u + values;
    scratch.r = scratch.y + values;
    scratch.dstates = dstates_.ptr<C>();
  }

  Scratch<C> scratch{};

 private:
  static constexpr auto kSize = static_cast<int64_t>(sizeof(C));
  int64_t tokens_, matrices_;
  Workspace gates_, scores_, values_, dstates_;
};

}  // namespace sash::cuda::delta
