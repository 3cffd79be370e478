#include <vector>

#include "../../linalg/matmul.h"
#include "../../op.h"
#include "../../shape/concat.h"
#include "../exact/head_layout.h"
#include "linear_attention_call.h"

/// Linear attention from plain ops: its composite, and the recurrent form.
///
/// v1 = [v, 1] carries the normaliser as one more feature: sums with it are [numerator,
/// denominator], and the state is [s, z].
namespace sash {
namespace {

using detail::grouped_heads;

constexpr int64_t kChunk = 64;

// Halves are computed in float32: a normaliser soon exceeds what float16 holds.
Tensor widened(const Tensor& x) { return x.to(*row_statistics(x).dtype); }

// elu(x) + 1. Its derivative at 0 is 1; the derivative of `clamp` at its bound is 0.
Tensor features(const Tensor& x) { return where(ge(x, 0), x + 1, exp(clamp(x, {}, 0))); }

Tensor with_ones(const Tensor& v) {
  return cat({v, ones({v.size(0), v.size(1), v.size(2), 1}, v.options())}, 3);
}

// x [..., S, n] as [..., chunks, kChunk, n], zeros behind the end.
Tensor chunked(const Tensor& x) {
  Shape shape = x.shape();
  const int axis = x.rank() - 2;
  const int64_t chunks = (shape[axis] + kChunk - 1) / kChunk;
  Shape behind = shape;
  behind[axis] = chunks * kChunk - shape[axis];
  shape[axis] = chunks;
  shape.insert(axis + 1, kChunk);
  const Tensor whole = behind[axis] == 0 ? x : cat({x, zeros(behind, x.options())}, axis);
  return whole.reshape(shape);
}

// The sums over j <= i of (q[i] . k[j]) v[j], for rows of at most one chunk.
Tensor causal_sums_of_chunk(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor place = arange(0, q.size(-2), 1, {.device = q.device()});
  const Tensor later = gt(place.unsqueeze(0), place.unsqueeze(1));
  return matmul(masked_fill(matmul(q, k.mT()), later, 0), v);
}

// The same for q [B, H_kv, G, S, D], k [B, H_kv, 1, S, D], v [B, H_kv, 1, S, n], and q[i] times
// `before` [B, H_kv, 1, D, n], the state before the first token, if it is defined.
Tensor causal_sums(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& before) {
  const int64_t length = q.size(3);
  if (length <= kChunk) {
    const Tensor sums = causal_sums_of_chunk(q, k, v);
    return before.defined() ? sums + matmul(q, before) : sums;
  }
  const Tensor qs = chunked(q), ks = chunked(k), vs = chunked(v);
  const Tensor own = matmul(ks.mT(), vs);  // [B, H_kv, 1, chunks, D, n]
  const Tensor last = own.narrow(3, 0, own.size(3) - 1);
  const Tensor first =
      before.defined() ? before.unsqueeze(3) : zeros_like(own.narrow(3, 0, 1).contiguous());
  const Tensor states = cumsum(cat({first, last}, 3), 3);
  const Tensor sums = matmul(qs, states) + causal_sums_of_chunk(qs, ks, vs);
  return sums.reshape({q.size(0), q.size(1), q.size(2), sums.size(3) * kChunk, v.size(4)})
      .narrow(3, 0, length);
}

// [numerator, denominator] [B, H_kv, G, S, D_v + 1] as the result [B, H, S, D_v].
Tensor normalized(const Tensor& sums, double eps, const Tensor& q) {
  const int64_t features_of_v = sums.size(4) - 1;
  const Tensor den = sums.narrow(4, features_of_v, 1);
  return (sums.narrow(4, 0, features_of_v) / (den + eps))
      .reshape({q.size(0), q.size(1), q.size(2), features_of_v})
      .to(q.dtype());
}

}  // namespace

Tensor linear_attention_from_plain_ops(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const LinearAttentionCall& call) {
  Tensor fk = features(widened(k)), v1 = with_ones(widened(v));
  if (call.lengths.defined()) {
    const Tensor place = arange(0, k.size(2), 1, {.dtype = DType::int32, .device = k.device()});
    const Tensor hidden =
        ge(place.unsqueeze(0), call.lengths.unsqueeze(1)).unsqueeze(1).unsqueeze(3);
    fk = masked_fill(fk, hidden, 0);
    v1 = masked_fill(v1, hidden, 0);
  }
  const Tensor fq = detail::grouped_heads(features(widened(q)), k.size(1));
  fk = fk.unsqueeze(2);
  v1 = v1.unsqueeze(2);
  const Tensor sums = call.causal ? causal_sums(fq, fk, v1, {}) : matmul(fq, matmul(fk.mT(), v1));
  return normalized(sums, call.eps, q);
}

Tensor linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                             LinearAttentionState& state, double eps) {
  constexpr const char* op = "linear_attention_step";
  if (Autocast cast("linear_attention"); cast) {
    return linear_attention_step(cast(q), cast(k), cast(v), state, eps);
  }
  check_linear_attention(op, q, k, v, eps);
  if (q.size(2) != k.size(2)) {
    throw ShapeError(op, "as many queries as keys", shapes_of(q, k));
  }
  const Tensor fk = features(widened(k)), v1 = with_ones(widened(v));
  Tensor before;
  if (state.s.defined() || state.z.defined()) {
    const Shape z{k.size(0), k.size(1), k.size(3)};
    for (const Tensor* sums : {&state.s, &state.z}) check_compatible(op, fk, *sums);
    check_shape(op, state.s, {z[0], z[1], z[2], v.size(3)});
    check_shape(op, state.z, z);
    before = cat({state.s, state.z.unsqueeze(3)}, 3);
  }
  const Tensor fq = detail::grouped_heads(features(widened(q)), k.size(1));
  const Tensor sums = causal_sums(fq, fk.unsqueeze(2), v1.unsqueeze(2),
                                  before.defined() ? before.unsqueeze(2) : before);
  const Tensor added = matmul(fk.mT(), v1);
  const Tensor after = before.defined() ? before + added : added;
  state.s = after.narrow(3, 0, v.size(3));
  state.z = after.select(3, v.size(3));
  return normalized(sums, eps, q);
}

}  // namespace sash
