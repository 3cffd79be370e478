#include "delta_rule.h"

/// The backward pass in three steps: scores again, in parallel over chunks; gradients of the states
/// from the last chunk to the first; all other gradients, in parallel over chunks again.
namespace sash::cpu::delta {
namespace {

template <class T>
class BackwardPass {
 public:
  BackwardPass(const Call<T>& call, const kernels::DeltaGradients& grads)
      : call_(call),
        x_(call.x()),
        s_(call.sizes()),
        grads_(grads),
        scores_(call.context(), x_, s_, true),
        state_gradients_(call.context(), static_cast<Index>(s_.chunks.size()) * s_.value_heads *
                                             s_.depth * s_.width) {
    dstates_ = state_gradients_.take(0);
    call_.form_scores(scores_);
  }

  void run() const {
    call_.for_each_chain(
        [&](Index text, Index head, Index first, Index n) { chain(text, head, first, n); });
    const auto chunks = static_cast<Index>(s_.chunks.size());
    parallel_for_each(chunks * s_.heads, 1,
                      [&](Index task) { gradients_of_chunk(task / s_.heads, task % s_.heads); });
  }

 private:
  /// The gradient of the state after a chunk.
  T* dstate(Index chunk, Index head) const {
    return dstates_ + (chunk * s_.value_heads + head) * s_.depth * s_.width;
  }
  const T* out_gradient(const Chunk& at, Index head) const {
    return call_.row(grads_.g_out, at, head);
  }

  // Columns [first, first + n) of the gradients of states, and dr, which takes the place of dv.
  void chain(Index text, Index head, Index first, Index n) const {
    const Index depth = s_.depth, width = s_.width, g_step = grads_.g_out.strides[2];
    Scratch<T> scratch(call_.context(), kChunk * (2 * depth + 2 * n) + Decays<T>::size(s_));
    T *const rows = scratch.take(kChunk * depth), *const scaled = scratch.take(kChunk * depth);
    T *const du = scratch.take(kChunk * n), *const dy = scratch.take(kChunk * n);
    const Decays<T> decays(scratch, s_);
    T* const now = call_.state(grads_.dinitial, text, head) + first;
    if (grads_.g_state) {
      copy_rows<T>(call_.state(*grads_.g_state, text, head) + first, width, depth, n, now, width);
    } else {
      for (Index d = 0; d < depth; ++d) std::fill_n(now + d * width, n, T(0));
    }
    for (Index c = s_.first_chunk(text + 1) - 1; c >= s_.first_chunk(text); --c) {
      const Chunk& at = s_.chunks[static_cast<size_t>(c)];
      const Index count = at.count;
      const Matrix<const T> g = matrix(out_gradient(at, head) + first, g_step);
      copy_rows<T>(now, width, depth, n, dstate(c, head) + first, width);
      call_.load_decays(at, head, decays);
      call_.load_keys(at, head, rows);
      call_.scaled(rows, decays.f, count, scaled);
      call_.multiply(count, n, depth, matrix(scaled, depth), matrix(now, width), matrix(du, n), 1,
                     0);
      call_.multiply(count, n, count, matrix(scores_.of(c, head, 0), kChunk).transposed(), g,
                     matrix(du, n), 1, 1);
      call_.decay_state(decays.b + (count - 1) * s_.gates, now, width, n);
      T* const dr = grads_.dv.ptr<T>() + call_.place(at, head) * width + first;
      if (x_.beta) {
        call_.multiply(count, n, count, matrix(scores_.of(c, head, 1), kChunk).transposed(),
                       matrix(du, n), matrix(dr, width), 1, 0);
        copy_rows<T>(dr, width, count, n, dy, n);
        call_.scale_by_beta(at, head, dy, n, n);
        call_.scaled(rows, decays.b, count, scaled);
        call_.multiply(depth, n, count, matrix(scaled, depth).transposed(), matrix(dy, n),
                       matrix(now, width), -1, 1);
      } else {
        copy_rows<T>(du, n, count, n, dr, width);
      }
      call_.load_queries(at, head, rows);
      call_.scaled(rows, decays.b, count, scaled);
      call_.multiply(depth, n, count, matrix(scaled, depth).transposed(), g, matrix(now, width), 1,
                     1);
    }
  }

  /// Buffers of a chunk. Gradients of keys: `row` where the decay ends, `column` where it begins.
  struct Tiles {
    Tiles(const KernelContext& context, const Sizes& s)
        : scratch(context,
                  kChunk * (8 * s.depth + 2 * s.width + 2 * kChunk) + Decays<T>::size(s) + s.depth),
          decays(scratch, s) {
      for (T** x : {&q, &k, &scaled, &dq, &row, &column, &sum_q, &sum_k}) {
        *x = scratch.take(kChunk * s.depth);
      }
      for (T** x : {&y, &u}) *x = scratch.take(kChunk * s.width);
      for (T** x : {&dp, &da}) *x = scratch.take(kChunk * kChunk);
      last = scratch.take(s.depth);
    }
    Scratch<T> scratch;
    Decays<T> decays;
    T *q, *k, *scaled, *dq, *row, *column, *sum_q, *sum_k;  // [kChunk, D]
    T *y, *u;                                               // [kChunk, D_v]
    T *dp, *da;                                             // [kChunk, kChunk]
    T* last;                                                // [D]: share of the last token's g
  };

  // Of the chunk's tokens, for a query and key head and its value heads.
  void gradients_of_chunk(Index c, Index key_head) const {
    const Chunk& at = s_.chunks[static_cast<size_t>(c)];
    const Tiles t(call_.context(), s_);
    const Index size = at.count * s_.depth;
    Row<T> sum_q(t.sum_q, size), sum_k(t.sum_k, size);
    sum_q.setZero();
    sum_k.setZero();
    for (Index head = key_head * s_.group(); head < (key_head + 1) * s_.group(); ++head) {
      call_.load_queries(at, head, t.q);
      call_.load_keys(at, head, t.k);
      call_.load_decays(at, head, t.decays);
      form_values(c, at, head, t);
      score_gradients(c, at, head, t);
      state_terms(c, at, head, t);
      s_.gates == 1 ? pairs_by_products(at, t) : pairs_by_features(at, t);
      if (x_.g) store_gate_gradient(at, head, t);
      sum_q += ConstRow<T>(t.dq, size);
      sum_k += ConstRow<T>(t.row, size) + ConstRow<T>(t.column, size);
    }
    const Index place = ((at.b * s_.heads + key_head) * s_.length + at.first) * s_.depth;
    Row<T>(grads_.dq.ptr<T>() + place, size) = sum_q * static_cast<T>(x_.scale);
    Row<T>(grads_.dk.ptr<T>() + place, size) = sum_k;
  }

  // y and u again.
  void form_values(Index c, const Chunk& at, Index head, const Tiles& t) const {
    const Index width = s_.width, n = at.count;
    copy_rows(call_.row(x_.v, at, head), x_.v.strides[2], n, width, t.y, width);
    if (!x_.beta) {
      std::copy_n(t.y, n * width, t.u);
      return;
    }
    call_.scaled(t.k, t.decays.b, n, t.scaled);
    call_.multiply(n, width, s_.depth, matrix(t.scaled, s_.depth),
                   matrix(call_.state(grads_.kept, c, head), width), matrix(t.y, width), -1, 1);
    // N beta, in the place of dP.
    const T* const beta = call_.of_tokens(*x_.beta, at, head);
    for (Index i = 0; i < n; ++i) {
      Row<T>(t.dp + i * kChunk, n) =
          ConstRow<T>(scores_.of(c, head, 1) + i * kChunk, n) * ConstRow<T>(beta, n);
    }
    call_.multiply(n, width, n, matrix(t.dp, kChunk), matrix(t.y, width), matrix(t.u, width), 1, 0);
  }

  // dP, dA and dbeta; dr becomes dv.
  void score_gradients(Index c, const Chunk& at, Index head, const Tiles& t) const {
    const Index width = s_.width, n = at.count;
    T* const dr = grads_.dv.ptr<T>() + call_.place(at, head) * width;
    const Matrix<T> u = matrix(t.u, width);
    call_.multiply(n, n, width, matrix(out_gradient(at, head), grads_.g_out.strides[2]),
                   u.transposed(), matrix(t.dp, kChunk), 1, 0);
    for (Index i = 0; i < n; ++i) std::fill_n(t.dp + i * kChunk + i + 1, n - i - 1, T(0));
    if (!x_.beta) return;
    call_.multiply(n, n, width, matrix(dr, width), u.transposed(), matrix(t.da, kChunk), -1, 0);
    const T* const beta = call_.of_tokens(*x_.beta, at, head);
    T* const dbeta = grads_.dbeta->ptr<T>() + call_.place(at, head);
    for (Index i = 0; i < n; ++i) {
      Row<T> row(t.da + i * kChunk, n);
      row.tail(n - i).setZero();
      dbeta[i] = (ConstRow<T>(dr + i * width, width) * ConstRow<T>(t.y + i * width, width)).sum() +
                 (row * ConstRow<T>(scores_.of(c, head, 2) + i * kChunk, n)).sum();
      row *= beta[i];
    }
    call_.scale_by_beta(at, head, dr, width, width);
  }

  // What reaches q, k and the last token's g from the states before and after the chunk.
  void state_terms(Index c, const Chunk& at, Index head, const Tiles& t) const {
    const Index width = s_.width, depth = s_.depth, n = at.count, size = n * depth;
    const T *const before = call_.state(grads_.kept, c, head), *const after = dstate(c, head);
    const auto times_state = [&](const Matrix<const T>& x, const T* state, T alpha, T* to) {
      call_.multiply(n, depth, width, x, matrix(state, width).transposed(), matrix(to, depth),
                     alpha, 0);
    };
    times_state(matrix(out_gradient(at, head), grads_.g_out.strides[2]), before, 1, t.scaled);
    call_.scaled(t.scaled, t.decays.b, n, t.dq);
    if (x_.beta) {
      const T* const dy = grads_.dv.ptr<const T>() + call_.place(at, head) * width;
      times_state(matrix(dy, width), before, -1, t.scaled);
      call_.scaled(t.scaled, t.decays.b, n, t.row);
    } else {
      std::fill_n(t.row, size, T(0));
    }
    times_state(matrix(static_cast<const T*>(t.u), width), after, 1, t.scaled);
    call_.scaled(t.scaled, t.decays.f, n, t.column);
    if (!x_.g) return;
    const T* const decay = t.decays.b + (n - 1) * s_.gates;
    for (Index d = 0; d < depth; ++d) {
      const ConstRow<T> s(before + d * width, width), ds(after + d * width, width);
      t.last[d] = (s * ds).sum() * decay[s_.gates == 1 ? 0 : d];
    }
    for (Index i = 0; i < n; ++i) {
      Row<T>(t.last, depth) +=
          ConstRow<T>(t.k + i * depth, depth) * ConstRow<T>(t.column + i * depth, depth);
    }
  }

  // What reaches q and k from P and A: a number for each decay.
  void pairs_by_products(const Chunk& at, const Tiles& t) const {
    const Index n = at.count, depth = s_.depth;
    for (Index i = 0; i < n; ++i) {
      T decay = 1;
      for (Index j = i; j >= 0; --j) {
        t.dp[i * kChunk + j] *= decay;
        if (x_.beta) t.da[i * kChunk + j] *= decay;
        decay = decayed(decay * t.decays.a[j]);
      }
    }
    const auto add = [&](const Matrix<T>& d, const T* x, T* to) {
      call_.multiply(n, depth, n, d, matrix(x, depth), matrix(to, depth), 1, 1);
    };
    const Matrix<T> dp = matrix(t.dp, kChunk), da = matrix(t.da, kChunk);
    add(dp, t.k, t.dq);
    add(dp.transposed(), t.q, t.column);
    if (!x_.beta) return;
    add(da, t.k, t.row);
    add(da.transposed(), t.k, t.column);
  }

  // The same with a number for each feature.
  void pairs_by_features(const Chunk& at, const Tiles& t) const {
    const Index n = at.count, depth = s_.depth;
    const auto row_of = [&](T* x, Index i) { return Row<T>(x + i * depth, depth); };
    Row<T>(t.scaled, n * depth).setOnes();  // a(j, i]
    for (Index i = 0; i < n; ++i) {
      const Row<T> q = row_of(t.q, i), k = row_of(t.k, i), a = row_of(t.decays.a, i);
      for (Index j = 0; j < i; ++j) {
        Row<T> decay = row_of(t.scaled, j);
        decay *= a;
        const T dp = t.dp[i * kChunk + j], da = x_.beta ? t.da[i * kChunk + j] : T(0);
        row_of(t.dq, i) += dp * decay * row_of(t.k, j);
        row_of(t.row, i) += da * decay * row_of(t.k, j);
        row_of(t.column, j) += decay * (dp * q + da * k);
      }
      row_of(t.dq, i) += t.dp[i * kChunk + i] * k;
      row_of(t.column, i) += t.dp[i * kChunk + i] * q;
    }
  }

  void store_gate_gradient(const Chunk& at, Index head, const Tiles& t) const {
    const Index depth = s_.depth, n = s_.gates;
    T* const dg = grads_.dg->ptr<T>() + call_.place(at, head) * n;
    Row<T> sum(t.last, depth);  // over the tokens from i on
    for (Index i = at.count - 1; i >= 0; --i) {
      const auto row_of = [&](const T* x) { return ConstRow<T>(x + i * depth, depth); };
      sum += row_of(t.q) * row_of(t.dq) + row_of(t.k) * (row_of(t.row) - row_of(t.column));
      if (n == 1) {
        dg[i] = sum.sum();
      } else {
        Row<T>(dg + i * n, n) = sum;
      }
    }
  }

  const Call<T>& call_;
  const DeltaInputs& x_;
  const Sizes& s_;
  const kernels::DeltaGradients& grads_;
  Scores<T> scores_;
  Scratch<T> state_gradients_;
  T* dstates_;
};

}  // namespace

template <class T>
void backward(const Call<T>& call, const kernels::DeltaGradients& grads) {
  BackwardPass<T>(call, grads).run();
}

template void backward(const Call<float>&, const kernels::DeltaGradients&);
template void backward(const Call<double>&, const kernels::DeltaGradients&);

}  // namespace sash::cpu::delta
