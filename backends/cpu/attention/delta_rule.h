#pragma once

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "../../../core/parallel.h"
#include "../../../ops/kernels/delta_rule.h"
#include "../linalg/gemm.h"

/// What both passes of the gated delta rule share: chunks, decays, and the scores within a chunk.
/// The names are from `ops/kernels/delta_rule.h`.
namespace sash::cpu::delta {

using kernels::DeltaInputs;
using Index = int64_t;

constexpr Index kChunk = kernels::kDeltaChunk;

template <class T>
using Row = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;
template <class T>
using ConstRow = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;

/// Rows that begin every `step` elements.
template <class T>
Matrix<T> matrix(T* data, Index step) {
  return {data, step, 1};
}

/// Copies rows of n elements, which begin every `step` elements.
template <class T>
void copy_rows(const T* from, Index from_step, Index count, Index n, T* to, Index to_step) {
  for (Index i = 0; i < count; ++i) std::copy_n(from + i * from_step, n, to + i * to_step);
}

/// Tokens [first, first + count) of row b, which belong to `text`.
struct Chunk {
  Index text, b, first, count;
};

struct Sizes {
  Index batch, heads, value_heads, length, depth, width, texts;
  Index gates;                ///< numbers of a decay: 1 or D
  std::vector<Chunk> chunks;  ///< of all texts, in order
  std::vector<Index> begin;   ///< of each text's chunks, and the end of the last

  explicit Sizes(const DeltaInputs& x);
  /// Text i has the chunks [first_chunk(i), first_chunk(i + 1)).
  Index first_chunk(Index text) const { return begin[static_cast<size_t>(text)]; }
  Index group() const { return value_heads / heads; }
  Index head_count() const { return batch * value_heads; }
  /// Columns of a state that one task computes: all, or fewer if there are few heads. Depends on
  /// shapes alone, so that bits do not depend on threads.
  Index columns() const { return texts * value_heads >= 32 ? width : std::min<Index>(width, 32); }
};

/// The product of decays. Numbers below the normal ones, which are slow, count as 0.
template <class T>
T decayed(T x) {
  return x < std::numeric_limits<T>::min() ? T(0) : x;
}

/// Scratch memory of a task, taken piece by piece.
template <class T>
class Scratch {
 public:
  Scratch(const KernelContext& context, Index count)
      : memory_(context, count * static_cast<Index>(sizeof(T))), next_(memory_.ptr<T>()) {}
  T* take(Index count) { return std::exchange(next_, next_ + count); }

 private:
  Workspace memory_;
  T* next_;
};

/// Decays of a chunk's tokens, [count, gates] each.
template <class T>
struct Decays {
  T *a, *b, *f;  ///< of the token; from the chunk's first token to it; behind it to the last

  static Index size(const Sizes& s) { return 3 * kChunk * s.gates; }
  Decays(Scratch<T>& scratch, const Sizes& s)
      : a(scratch.take(kChunk * s.gates)),
        b(scratch.take(kChunk * s.gates)),
        f(scratch.take(kChunk * s.gates)) {}
};

/// P (scaled), N and A of all chunks and value heads; the last two with beta only, and A for the
/// backward pass only.
template <class T>
class Scores {
 public:
  Scores(const KernelContext& context, const DeltaInputs& x, const Sizes& s, bool backward)
      : Scores(context, s, x.beta ? 2 + backward : 1) {}
  Scores(const KernelContext& context, const Sizes& s, Index matrices)
      : heads_(s.value_heads),
        matrices_(matrices),
        memory_(context, static_cast<Index>(s.chunks.size()) * heads_ * matrices * kChunk * kChunk *
                             static_cast<Index>(sizeof(T))) {}
  /// Matrix 0, 1 or 2 of P, N and A: [kChunk, kChunk].
  T* of(Index chunk, Index head, Index matrix) const {
    return memory_.template ptr<T>() +
           ((chunk * heads_ + head) * matrices_ + matrix) * kChunk * kChunk;
  }
  bool has(Index matrix) const { return matrix < matrices_; }

 private:
  Index heads_, matrices_;
  Workspace memory_;
};

/// One call, whose operands have the type of the arithmetic.
template <class T>
class Call {
 public:
  Call(const KernelContext& context, const DeltaInputs& x) : context_(context), x_(x), s_(x) {}

  void form_scores(const Scores<T>& to) const;

  void load_decays(const Chunk& at, Index head, const Decays<T>& to) const;
  /// Rows of a chunk, times `factor`.
  void load(const TensorView& x, const Chunk& at, Index head, T factor, T* to) const {
    for (Index i = 0; i < at.count; ++i) {
      Row<T>(to + i * x.shape[3], x.shape[3]) =
          ConstRow<T>(row(x, at, head) + i * x.strides[2], x.shape[3]) * factor;
    }
  }
  void load_queries(const Chunk& at, Index head, T* to) const {
    load(x_.q, at, head / s_.group(), static_cast<T>(x_.scale), to);
  }
  void load_keys(const Chunk& at, Index head, T* to) const {
    load(x_.k, at, head / s_.group(), T(1), to);
  }
  /// to = x times a decay, [count, D].
  void scaled(const T* x, const T* decay, Index count, T* to) const {
    for (Index i = 0; i < count; ++i) {
      const ConstRow<T> from(x + i * s_.depth, s_.depth);
      Row<T> row(to + i * s_.depth, s_.depth);
      if (s_.gates == 1) {
        row = from * decay[i];
      } else {
        row = from * ConstRow<T>(decay + i * s_.depth, s_.depth);
      }
    }
  }
  /// Multiplies the rows of a state's columns [D, n] by a decay.
  void decay_state(const T* decay, T* state, Index step, Index n) const {
    for (Index d = 0; d < s_.depth; ++d)
      Row<T>(state + d * step, n) *= decay[s_.gates == 1 ? 0 : d];
  }
  void scale_by_beta(const Chunk& at, Index head, T* x, Index step, Index n) const {
    const T* const beta = of_tokens(*x_.beta, at, head);
    for (Index i = 0; i < at.count; ++i) Row<T>(x + i * step, n) *= beta[i];
  }

  static const T* row(const TensorView& x, const Chunk& at, Index head) {
    return x.ptr<const T>() + at.b * x.strides[0] + head * x.strides[1] + at.first * x.strides[2];
  }
  /// Where a chunk begins in contiguous [B, H_v, S] or [B, H_v, S, n].
  Index place(const Chunk& at, Index head) const {
    return (at.b * s_.value_heads + head) * s_.length + at.first;
  }
  const T* of_tokens(const TensorView& x, const Chunk& at, Index head) const {
    return x.ptr<const T>() + place(at, head) * (x.rank() == 4 ? x.shape[3] : 1);
  }
  /// The state of `head` of text or chunk `i`, in [n, H_v, D, D_v].
  T* state(const TensorView& x, Index i, Index head) const {
    return x.ptr<T>() + (i * s_.value_heads + head) * s_.depth * s_.width;
  }

  /// c = alpha a b + beta c, c [m, n].
  template <class A, class B>
  void multiply(Index m, Index n, Index k, const Matrix<A>& a, const Matrix<B>& b,
                const Matrix<T>& c, T alpha, T beta) const {
    gemm<T>(context_, {.m = m,
                       .n = n,
                       .k = k,
                       .a = {a.data, a.row_stride, a.col_stride},
                       .b = {b.data, b.row_stride, b.col_stride},
                       .c = c,
                       .alpha = alpha,
                       .beta = beta});
  }
  /// Calls f(text, head, first column, columns) for each chain of states, in parallel.
  template <class F>
  void for_each_chain(const F& f) const {
    const Index step = s_.columns(), pieces = step == 0 ? 0 : (s_.width + step - 1) / step;
    parallel_for_each(s_.texts * s_.value_heads * pieces, 1, [&](Index task) {
      const Index first = task % pieces * step, head = task / pieces;
      f(head / s_.value_heads, head % s_.value_heads, first, std::min(step, s_.width - first));
    });
  }

  const KernelContext& context() const { return context_; }
  const DeltaInputs& x() const { return x_; }
  const Sizes& sizes() const { return s_; }

 private:
  void form_scores_of(const Chunk& at, Index head, T* p, T* a) const;
  void invert(const Chunk& at, Index head, const T* a, T* n) const;

  KernelContext context_;
  DeltaInputs x_;
  Sizes s_;
};

extern template class Call<float>;
extern template class Call<double>;

/// The backward pass.
template <class T>
void backward(const Call<T>& call, const kernels::DeltaGradients& grads);
extern template void backward(const Call<float>&, const kernels::DeltaGradients&);
extern template void backward(const Call<double>&, const kernels::DeltaGradients&);

}  // namespace sash::cpu::delta
