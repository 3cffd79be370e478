#include "delta_rule.h"

#include "../../../core/backend/dispatch.h"
#include "../shape/halves.h"

namespace sash::cpu {
namespace delta {

Sizes::Sizes(const DeltaInputs& x)
    : batch(x.q.shape[0]),
      heads(x.q.shape[1]),
      value_heads(x.v.shape[1]),
      length(x.q.shape[2]),
      depth(x.q.shape[3]),
      width(x.v.shape[3]),
      texts(x.text_count()),
      gates(x.g && x.g->rank() == 4 ? depth : 1) {
  for (Index text = 0; text < texts; ++text) {
    begin.push_back(static_cast<Index>(chunks.size()));
    const auto* const bounds = x.texts ? x.texts->ptr<const int32_t>() + text : nullptr;
    const Index end = bounds ? bounds[1] : length;
    for (Index first = bounds ? bounds[0] : 0; first < end; first += kChunk) {
      chunks.push_back({text, x.texts ? 0 : text, first, std::min(kChunk, end - first)});
    }
  }
  begin.push_back(static_cast<Index>(chunks.size()));
}

template <class T>
void Call<T>::load_decays(const Chunk& at, Index head, const Decays<T>& to) const {
  const Index n = s_.gates, last = at.count - 1;
  Row<T> a(to.a, at.count * n);
  if (x_.g) {
    a = ConstRow<T>(of_tokens(*x_.g, at, head), at.count * n).exp();
  } else {
    a.setOnes();
  }
  std::copy_n(to.a, n, to.b);
  std::fill_n(to.f + last * n, n, T(1));
  for (Index i = n; i < at.count * n; ++i) to.b[i] = decayed(to.b[i - n] * to.a[i]);
  for (Index i = last * n - 1; i >= 0; --i) to.f[i] = decayed(to.f[i + n] * to.a[i + n]);
}

// P and A of one chunk; zeros where i > t, and i >= t.
template <class T>
void Call<T>::form_scores_of(const Chunk& at, Index head, T* p, T* a) const {
  const Index n = at.count, depth = s_.depth;
  Scratch<T> scratch(context_, 2 * kChunk * depth + Decays<T>::size(s_));
  T *const q = scratch.take(kChunk * depth), *const k = scratch.take(kChunk * depth);
  const Decays<T> decays(scratch, s_);
  load_queries(at, head, q);
  load_keys(at, head, k);
  load_decays(at, head, decays);
  if (s_.gates == 1) {
    multiply(n, n, depth, matrix(q, depth), matrix(k, depth).transposed(), matrix(p, kChunk), 1, 0);
    multiply(n, n, depth, matrix(k, depth), matrix(k, depth).transposed(), matrix(a, kChunk), 1, 0);
    for (Index t = 0; t < n; ++t) {
      T decay = 1;
      for (Index i = t; i >= 0; --i) {
        p[t * kChunk + i] *= decay;
        a[t * kChunk + i] *= decay;
        decay = decayed(decay * decays.a[i]);
      }
    }
  } else {
    for (Index t = 0; t < n; ++t) {
      const ConstRow<T> query(q + t * depth, depth), key(k + t * depth, depth);
      const ConstRow<T> decay(decays.a + t * depth, depth);
      p[t * kChunk + t] = (query * key).sum();
      // k[i] becomes a(i, t] k[i]; `key` itself comes later.
      for (Index i = 0; i < t; ++i) {
        Row<T> earlier(k + i * depth, depth);
        earlier *= decay;
        p[t * kChunk + i] = (query * earlier).sum();
        a[t * kChunk + i] = (key * earlier).sum();
      }
    }
  }
  for (Index t = 0; t < n; ++t) {
    std::fill(p + t * kChunk + t + 1, p + t * kChunk + n, T(0));
    std::fill(a + t * kChunk + t, a + t * kChunk + n, T(0));
  }
}

// N = (I + beta A)^-1 by rows: N[t] = e[t] - beta[t] sum of A[t, i] N[i].
template <class T>
void Call<T>::invert(const Chunk& at, Index head, const T* a, T* n) const {
  const T* const beta = of_tokens(*x_.beta, at, head);
  for (Index t = 0; t < at.count; ++t) {
    Row<T> row(n + t * kChunk, at.count);
    row.setZero();
    for (Index i = 0; i < t; ++i) {
      row.head(i + 1) += a[t * kChunk + i] * ConstRow<T>(n + i * kChunk, i + 1);
    }
    row.head(t) *= -beta[t];
    row[t] = 1;
  }
}

template <class T>
void Call<T>::form_scores(const Scores<T>& scores) const {
  const auto chunks = static_cast<Index>(s_.chunks.size());
  parallel_for_each(chunks * s_.value_heads, 1, [&](Index task) {
    const Index chunk = task / s_.value_heads, head = task % s_.value_heads;
    const Chunk& at = s_.chunks[static_cast<size_t>(chunk)];
    Scratch<T> scratch(context_, kChunk * kChunk);
    T* const a = scores.has(2) ? scores.of(chunk, head, 2) : scratch.take(kChunk * kChunk);
    form_scores_of(at, head, scores.of(chunk, head, 0), a);
    if (x_.beta) invert(at, head, a, scores.of(chunk, head, 1));
  });
}

template class Call<float>;
template class Call<double>;

namespace {

// Columns [first, first + n) of the states and results, over the chunks of one text.
template <class T>
void forward_chain(const Call<T>& call, const Scores<T>& scores, Index text, Index head,
                   Index first, Index n, const TensorView& out, const TensorView& state,
                   const TensorView* kept) {
  const DeltaInputs& x = call.x();
  const Sizes& s = call.sizes();
  const Index depth = s.depth, width = s.width;
  Scratch<T> scratch(call.context(), 2 * kChunk * (depth + n) + Decays<T>::size(s));
  T *const rows = scratch.take(kChunk * depth), *const scaled = scratch.take(kChunk * depth);
  T *u = scratch.take(kChunk * n), *y = scratch.take(kChunk * n);
  const Decays<T> decays(scratch, s);
  T* const now = call.state(state, text, head) + first;
  if (x.initial) {
    copy_rows<T>(call.state(*x.initial, text, head) + first, width, depth, n, now, width);
  } else {
    for (Index d = 0; d < depth; ++d) std::fill_n(now + d * width, n, T(0));
  }
  for (Index c = s.first_chunk(text); c < s.first_chunk(text + 1); ++c) {
    const Chunk& at = s.chunks[static_cast<size_t>(c)];
    const Index count = at.count;
    if (kept) {
      copy_rows<T>(now, width, depth, n, call.state(*kept, c, head) + first, width);
    }
    call.load_decays(at, head, decays);
    call.load_queries(at, head, rows);
    call.scaled(rows, decays.b, count, scaled);
    T* const to = out.ptr<T>() + call.place(at, head) * width + first;
    call.multiply(count, n, depth, matrix(scaled, depth), matrix(now, width), matrix(to, width), 1,
                  0);
    call.load_keys(at, head, rows);
    copy_rows(call.row(x.v, at, head) + first, x.v.strides[2], count, n, u, n);
    if (x.beta) {
      call.scaled(rows, decays.b, count, scaled);
      call.multiply(count, n, depth, matrix(scaled, depth), matrix(now, width), matrix(u, n), -1,
                    1);
      call.scale_by_beta(at, head, u, n, n);
      std::swap(u, y);
      call.multiply(count, n, count, matrix(scores.of(c, head, 1), kChunk), matrix(y, n),
                    matrix(u, n), 1, 0);
    }
    call.multiply(count, n, count, matrix(scores.of(c, head, 0), kChunk), matrix(u, n),
                  matrix(to, width), 1, 1);
    call.scaled(rows, decays.f, count, scaled);
    call.decay_state(decays.b + (count - 1) * s.gates, now, width, n);
    call.multiply(depth, n, count, matrix(scaled, depth).transposed(), matrix(u, n),
                  matrix(now, width), 1, 1);
  }
}

}  // namespace
}  // namespace delta

namespace {

void delta_forward(KernelContext& context, const kernels::DeltaInputs& x, const TensorView& out,
                   const TensorView& state, const TensorView* kept) {
  const FloatOperand q(context, x.q), k(context, x.k), v(context, x.v);
  FloatResult y(context, out);
  kernels::DeltaInputs wide = x;
  wide.q = q.view();
  wide.k = k.view();
  wide.v = v.view();
  dispatch_floating(state.dtype, "gated_delta_rule", [&]<class T>(TypeTag<T>) {
    const delta::Call<T> call(context, wide);
    const delta::Scores<T> scores(context, wide, call.sizes(), false);
    call.form_scores(scores);
    call.for_each_chain([&](int64_t text, int64_t head, int64_t first, int64_t n) {
      delta::forward_chain(call, scores, text, head, first, n, y.view(), state, kept);
    });
  });
  y.write();
}

void delta_backward(KernelContext& context, const kernels::DeltaInputs& x,
                    const kernels::DeltaGradients& grads) {
  const FloatOperand q(context, x.q), k(context, x.k), v(context, x.v), g(context, grads.g_out);
  FloatResult dq(context, grads.dq), dk(context, grads.dk), dv(context, grads.dv);
  kernels::DeltaInputs wide = x;
  wide.q = q.view();
  wide.k = k.view();
  wide.v = v.view();
  kernels::DeltaGradients to = grads;
  to.g_out = g.view();
  to.dq = dq.view();
  to.dk = dk.view();
  to.dv = dv.view();
  dispatch_floating(grads.dinitial.dtype, "gated_delta_rule", [&]<class T>(TypeTag<T>) {
    delta::backward(delta::Call<T>(context, wide), to);
  });
  dq.write();
  dk.write();
  dv.write();
}

void delta_kept_bytes(KernelContext&, const kernels::DeltaInputs& x, int64_t& bytes) {
  bytes = x.states_size() * (x.q.dtype == DType::float64 ? 8 : 4);
}

}  // namespace

void register_delta_rule() {
  kernels::delta_rule_kept_bytes.set(DeviceType::cpu, delta_kept_bytes);
  kernels::delta_rule_forward.set(DeviceType::cpu, delta_forward);
  kernels::delta_rule_backward.set(DeviceType::cpu, delta_backward);
}

}  // namespace sash::cpu
