#include "../../../ops/kernels/linear_attention.h"

#include <Eigen/Core>

#include <algorithm>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../linalg/gemm.h"
#include "attention_halves.h"

/// Linear attention in chunks of tokens. Of each chunk of keys the state sum phi(k[j]) [v[j], 1]'
/// is formed, [D, D_v + 1]; sums over chunks make it the state before a chunk; a row of results is
/// its features times that state, plus what it sees within its own chunk. The backward pass has a
/// second state, sum phi(q[i]) [h[i], c[i]]' over the queries behind a chunk.
namespace sash::cpu {
namespace {

using attn::FloatOperand;
using attn::FloatResult;
using Index = int64_t;

template <class T>
using Rows = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
                        Eigen::OuterStride<>>;

struct Sizes {
  Index batch, heads, key_heads, queries, keys, depth, width;  // width: D_v + 1
  Index chunk;
  bool causal;

  Sizes(const kernels::LinearAttentionInputs& x, bool is_causal)
      : batch(x.q.shape[0]),
        heads(x.q.shape[1]),
        key_heads(x.k.shape[1]),
        queries(x.q.shape[2]),
        keys(x.k.shape[2]),
        depth(x.q.shape[3]),
        width(x.v.shape[3] + 1),
        chunk(std::max(depth, width - 1) > 64 ? 128 : 64),
        causal(is_causal) {}

  Index group() const { return heads / key_heads; }
  Index chunks(Index length) const { return (length + chunk - 1) / chunk; }
};

/// Rows [first, first + count) of one head.
struct Span {
  Index b, h, first, count;
};

/// The sum over chunks that a chunk is multiplied with.
enum class Scan { before, behind, all };

/// A state for each chunk of `length` tokens: [B, H_kv, chunks, D, D_v + 1].
template <class T>
class States {
 public:
  States(const KernelContext& context, const Sizes& s, Index length)
      : s_(s),
        chunks_(s.chunks(length)),
        memory_(context, s.batch * s.key_heads * std::max<Index>(chunks_, 1) * size() *
                             static_cast<Index>(sizeof(T))) {}

  Index size() const { return s_.depth * s_.width; }
  T* of(Index b, Index h, Index chunk) const {
    return memory_.template ptr<T>() +
           ((b * s_.key_heads + h) * std::max<Index>(chunks_, 1) + chunk) * size();
  }
  /// The one that chunk `chunk` is multiplied with.
  Matrix<const T> read(Index b, Index h, Index chunk) const {
    return {of(b, h, s_.causal ? chunk : 0), s_.width, 1};
  }

  /// Replaces each chunk's own state by the sum of those before it, or behind it; for `all`, the
  /// first one by the sum of all.
  void scan(Scan scan) const {
    constexpr Index kPiece = 2048;
    const Index pieces = (size() + kPiece - 1) / kPiece;
    parallel_for(s_.batch * s_.key_heads * pieces, 1, [&](Index begin, Index end) {
      for (Index task = begin; task < end; ++task) {
        const Index head = task / pieces, first = task % pieces * kPiece;
        T* const at = of(head / s_.key_heads, head % s_.key_heads, 0) + first;
        scan_piece(scan, at, std::min(kPiece, size() - first));
      }
    });
  }

 private:
  using Vector = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;

  void scan_piece(Scan scan, T* at, Index count) const {
    if (scan == Scan::all) {
      if (chunks_ == 0) Vector(at, count).setZero();
      for (Index c = 1; c < chunks_; ++c) Vector(at, count) += Vector(at + c * size(), count);
      return;
    }
    T running[2048] = {};
    for (Index step = 0; step < chunks_; ++step) {
      T* const own = at + (scan == Scan::before ? step : chunks_ - 1 - step) * size();
      for (Index i = 0; i < count; ++i) {
        const T sum = running[i];
        running[i] += own[i];
        own[i] = sum;
      }
    }
  }

  const Sizes& s_;
  Index chunks_;
  Workspace memory_;
};

/// Buffers of one task.
template <class T>
struct Tiles {
  Tiles(const KernelContext& context, const Sizes& s)
      : memory(context, (3 * s.chunk * s.depth + 3 * s.chunk * s.width + s.chunk * s.chunk) *
                            static_cast<Index>(sizeof(T))),
        fq(memory.ptr<T>()),
        fk(fq + s.chunk * s.depth),
        dx(fk + s.chunk * s.depth),
        v1(dx + s.chunk * s.depth),
        h1(v1 + s.chunk * s.width),
        sums(h1 + s.chunk * s.width),
        scores(sums + s.chunk * s.width) {}

  Workspace memory;
  T *fq, *fk, *dx;    // [chunk, D]
  T *v1, *h1, *sums;  // [chunk, D_v + 1]
  T* scores;          // [chunk, chunk]
};

template <class T>
class Pass {
 public:
  Pass(const KernelContext& context, const kernels::LinearAttentionInputs& x,
       const kernels::LinearAttentionParams& params)
      : context_(context), x_(x), params_(params), s_(x, params.causal) {}

  void forward(const TensorView& out, const TensorView& den) {
    const States<T> keys(context_, s_, s_.keys);
    form_states_of_keys(keys);
    for_each_chunk(s_.heads, s_.queries, [&](const Tiles<T>& t, const Span& at) {
      load_features(x_.q, at, t.fq);
      const Index key_head = at.h / s_.group(), n = at.count;
      multiply(n, s_.width, s_.depth, rows(t.fq), keys.read(at.b, key_head, at.first / s_.chunk),
               matrix(t.sums, s_.width), 0);
      if (s_.causal) {
        const Index seen = load_keys(t, {at.b, key_head, at.first, n});
        multiply(n, seen, s_.depth, rows(t.fq), rows(t.fk).transposed(), scores(t), 0);
        hide_later(t, n, seen);
        multiply(n, s_.width, seen, scores(t), wide_rows(t.v1), matrix(t.sums, s_.width), 1);
      }
      const Index row = (at.b * s_.heads + at.h) * s_.queries + at.first;
      T* const y = out.ptr<T>() + row * (s_.width - 1);
      T* const d = den.ptr<T>() + row;
      for (Index i = 0; i < n; ++i) {
        const T* const sum = t.sums + i * s_.width;
        d[i] = sum[s_.width - 1] + static_cast<T>(params_.eps);
        for (Index m = 0; m < s_.width - 1; ++m) y[i * (s_.width - 1) + m] = sum[m] / d[i];
      }
    });
  }

  void backward(const kernels::LinearAttentionGradients& grads) {
    grads_ = &grads;
    {
      const States<T> keys(context_, s_, s_.keys);
      form_states_of_keys(keys);
      for_each_chunk(s_.heads, s_.queries,
                     [&](const Tiles<T>& t, const Span& at) { query_gradient(t, at, keys); });
    }
    const States<T> queries(context_, s_, s_.queries);
    form_states_of_queries(queries);
    for_each_chunk(s_.key_heads, s_.keys,
                   [&](const Tiles<T>& t, const Span& at) { key_gradients(t, at, queries); });
  }

 private:
  /// Calls `f(tiles, span)` for each chunk of each head.
  template <class F>
  void for_each_chunk(Index heads, Index length, F&& f) const {
    const Index chunks = s_.chunks(length);
    parallel_for(s_.batch * heads * chunks, 4, [&](Index begin, Index end) {
      const Tiles<T> tiles(context_, s_);
      for (Index task = begin; task < end; ++task) {
        const Index first = task % chunks * s_.chunk, head = task / chunks;
        f(tiles, {head / heads, head % heads, first, std::min(s_.chunk, length - first)});
      }
    });
  }

  void form_states_of_keys(const States<T>& states) const {
    for_each_chunk(s_.key_heads, s_.keys, [&](const Tiles<T>& t, const Span& at) {
      const Index seen = load_keys(t, at);
      multiply(s_.depth, s_.width, seen, rows(t.fk).transposed(), wide_rows(t.v1),
               matrix(states.of(at.b, at.h, at.first / s_.chunk), s_.width), 0);
    });
    states.scan(s_.causal ? Scan::before : Scan::all);
  }

  void form_states_of_queries(const States<T>& states) const {
    for_each_chunk(s_.key_heads, s_.queries, [&](const Tiles<T>& t, const Span& at) {
      if (s_.group() == 0)
        std::fill_n(states.of(at.b, at.h, at.first / s_.chunk), states.size(), T(0));
      for (Index h = at.h * s_.group(); h < (at.h + 1) * s_.group(); ++h) {
        load_queries(t, {at.b, h, at.first, at.count});
        multiply(s_.depth, s_.width, at.count, rows(t.fq).transposed(), wide_rows(t.h1),
                 matrix(states.of(at.b, at.h, at.first / s_.chunk), s_.width),
                 h == at.h * s_.group() ? 0 : 1);
      }
    });
    states.scan(s_.causal ? Scan::behind : Scan::all);
  }

  void query_gradient(const Tiles<T>& t, const Span& at, const States<T>& keys) const {
    load_queries(t, at);
    const Index key_head = at.h / s_.group(), n = at.count;
    multiply(n, s_.depth, s_.width, wide_rows(t.h1),
             keys.read(at.b, key_head, at.first / s_.chunk).transposed(), matrix(t.dx, s_.depth),
             0);
    if (s_.causal) {
      const Index seen = load_keys(t, {at.b, key_head, at.first, n});
      multiply(n, seen, s_.width, wide_rows(t.h1), wide_rows(t.v1).transposed(), scores(t), 0);
      hide_later(t, n, seen);
      multiply(n, s_.depth, seen, scores(t), rows(t.fk), matrix(t.dx, s_.depth), 1);
    }
    store(t.dx, t.fq, n, n,
          grads_->dq.ptr<T>() + ((at.b * s_.heads + at.h) * s_.queries + at.first) * s_.depth);
  }

  void key_gradients(const Tiles<T>& t, const Span& at, const States<T>& queries) const {
    const Index seen = load_keys(t, at);
    const Matrix<const T> state = queries.read(at.b, at.h, at.first / s_.chunk);
    // The last column of `sums` is not used.
    multiply(seen, s_.depth, s_.width, wide_rows(t.v1), state.transposed(), matrix(t.dx, s_.depth),
             0);
    multiply(seen, s_.width, s_.depth, rows(t.fk), state, matrix(t.sums, s_.width), 0);
    for (Index h = at.h * s_.group(); s_.causal && h < (at.h + 1) * s_.group(); ++h) {
      load_queries(t, {at.b, h, at.first, at.count});
      const Index n = at.count;
      multiply(n, seen, s_.depth, rows(t.fq), rows(t.fk).transposed(), scores(t), 0);
      hide_later(t, n, seen);
      multiply(seen, s_.width, n, scores(t).transposed(), wide_rows(t.h1), matrix(t.sums, s_.width),
               1);
      multiply(n, seen, s_.width, wide_rows(t.h1), wide_rows(t.v1).transposed(), scores(t), 0);
      hide_later(t, n, seen);
      multiply(seen, s_.depth, n, scores(t).transposed(), rows(t.fq), matrix(t.dx, s_.depth), 1);
    }
    const Index row = (at.b * s_.key_heads + at.h) * s_.keys + at.first, width = s_.width - 1;
    store(t.dx, t.fk, seen, at.count, grads_->dk.ptr<T>() + row * s_.depth);
    Rows<T> dv(grads_->dv.ptr<T>() + row * width, at.count, width, Eigen::OuterStride<>(width));
    dv.topRows(seen) = Rows<T>(t.sums, seen, width, Eigen::OuterStride<>(s_.width));
    dv.bottomRows(at.count - seen).setZero();
  }

  /// phi(x) of the rows `at`.
  void load_features(const TensorView& x, const Span& at, T* to) const {
    for (Index i = 0; i < at.count; ++i) {
      using Vector = Eigen::Array<T, Eigen::Dynamic, 1>;
      const Eigen::Map<const Vector> from(row_of(x, at, i), s_.depth);
      // (x + abs(x)) / 2 is max(x, 0), and keeps a NaN.
      Eigen::Map<Vector>(to + i * s_.depth, s_.depth) =
          (from + from.abs()) * T(0.5) + from.min(T(0)).exp();
    }
  }

  /// phi(k) and [v, 1] of the visible keys of `at`; returns their number.
  Index load_keys(const Tiles<T>& t, const Span& at) const {
    Index end = s_.keys;
    if (params_.lengths) {
      end = params_.lengths->ptr<const int32_t>()[at.b * params_.lengths->strides[0]];
    }
    const Index seen = std::clamp<Index>(end - at.first, 0, at.count);
    load_features(x_.k, {at.b, at.h, at.first, seen}, t.fk);
    for (Index i = 0; i < seen; ++i) {
      T* const to = t.v1 + i * s_.width;
      std::copy_n(row_of(x_.v, at, i), s_.width - 1, to);
      to[s_.width - 1] = 1;
    }
    return seen;
  }

  /// phi(q) and [h, c] of the queries of `at`.
  void load_queries(const Tiles<T>& t, const Span& at) const {
    load_features(x_.q, at, t.fq);
    const Index row = (at.b * s_.heads + at.h) * s_.queries + at.first, width = s_.width - 1;
    for (Index i = 0; i < at.count; ++i) {
      using Vector = Eigen::Array<T, Eigen::Dynamic, 1>;
      const Eigen::Map<const Vector> g(row_of(grads_->g, at, i), width);
      const Eigen::Map<const Vector> out(grads_->out.ptr<const T>() + (row + i) * width, width);
      const T factor = 1 / grads_->den.ptr<const T>()[row + i];
      Eigen::Map<Vector>(t.h1 + i * s_.width, width) = g * factor;
      t.h1[i * s_.width + width] = -(g * out).sum() * factor;
    }
  }

  /// y = dx phi'(x), where phi' = min(phi, 1), for `seen` of `count` rows; the others are 0.
  void store(const T* dx, const T* features, Index seen, Index count, T* y) const {
    using Vector = Eigen::Array<T, Eigen::Dynamic, 1>;
    const Eigen::Map<const Vector> d(dx, seen * s_.depth), f(features, seen * s_.depth);
    Eigen::Map<Vector>(y, seen * s_.depth) = d * f.min(T(1));
    std::fill_n(y + seen * s_.depth, (count - seen) * s_.depth, T(0));
  }

  /// Zeros the scores of keys behind their query.
  void hide_later(const Tiles<T>& t, Index queries, Index keys) const {
    for (Index i = 0; i < std::min(queries, keys); ++i) {
      std::fill(t.scores + i * s_.chunk + i + 1, t.scores + i * s_.chunk + keys, T(0));
    }
  }

  const T* row_of(const TensorView& x, const Span& at, Index i) const {
    return x.ptr<const T>() + at.b * x.strides[0] + at.h * x.strides[1] +
           (at.first + i) * x.strides[2];
  }
  static Matrix<T> matrix(T* data, Index step) { return {data, step, 1}; }
  Matrix<const T> rows(const T* data) const { return {data, s_.depth, 1}; }
  Matrix<const T> wide_rows(const T* data) const { return {data, s_.width, 1}; }
  Matrix<T> scores(const Tiles<T>& t) const { return {t.scores, s_.chunk, 1}; }

  template <class A, class B>
  void multiply(Index m, Index n, Index k, const Matrix<A>& a, const Matrix<B>& b,
                const Matrix<T>& c, int beta) const {
    gemm<T>(context_, {.m = m,
                       .n = n,
                       .k = k,
                       .a = {a.data, a.row_stride, a.col_stride},
                       .b = {b.data, b.row_stride, b.col_stride},
                       .c = c,
                       .beta = static_cast<T>(beta)});
  }

  KernelContext context_;
  kernels::LinearAttentionInputs x_;
  kernels::LinearAttentionParams params_;
  Sizes s_;
  const kernels::LinearAttentionGradients* grads_ = nullptr;
};

void forward(KernelContext& context, const kernels::LinearAttentionInputs& x,
             const kernels::LinearAttentionParams& params, const TensorView& out,
             const TensorView& den) {
  if (out.numel() == 0) return;
  const FloatOperand q(context, x.q), k(context, x.k), v(context, x.v);
  FloatResult y(context, out);
  dispatch_floating(den.dtype, "linear_attention", [&]<class T>(TypeTag<T>) {
    Pass<T>(context, {q.view(), k.view(), v.view()}, params).forward(y.view(), den);
  });
  y.write();
}

void backward(KernelContext& context, const kernels::LinearAttentionInputs& x,
              const kernels::LinearAttentionParams& params,
              const kernels::LinearAttentionGradients& grads) {
  if (grads.dq.numel() == 0 && grads.dk.numel() == 0) return;
  const FloatOperand q(context, x.q), k(context, x.k), v(context, x.v);
  const FloatOperand g(context, grads.g), out(context, grads.out);
  FloatResult dq(context, grads.dq), dk(context, grads.dk), dv(context, grads.dv);
  dispatch_floating(grads.den.dtype, "linear_attention", [&]<class T>(TypeTag<T>) {
    Pass<T>(context, {q.view(), k.view(), v.view()}, params)
        .backward({g.view(), out.view(), grads.den, dq.view(), dk.view(), dv.view()});
  });
  dq.write();
  dk.write();
  dv.write();
}

/// States are recomputed: that takes little of the time.
void kept_bytes(KernelContext&, const kernels::LinearAttentionInputs&,
                const kernels::LinearAttentionParams&, int64_t& bytes) {
  bytes = 0;
}

}  // namespace

void register_linear_attention() {
  kernels::linear_attention_kept_bytes.set(DeviceType::cpu, kept_bytes);
  kernels::linear_attention_forward.set(DeviceType::cpu, forward);
  kernels::linear_attention_backward.set(DeviceType::cpu, backward);
}

}  // namespace sash::cpu
