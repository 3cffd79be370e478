#include "../../ops/kernels/attention.h"

#include "../../core/dispatch.h"
#include "../../core/parallel.h"
#include "attention_tile.h"

/// Attention in tiles with a running softmax (M. Milakov and N. Gimelshein, "Online normalizer
/// calculation for softmax", 2018; T. Dao et al., "FlashAttention", NeurIPS 2022).
namespace sash::cpu {

namespace {

using namespace attn;

// Query tiles per task: keys and values are packed once for all of them.
constexpr Index kTilesPerTask = 16;

template <class T>
class Forward {
 public:
  Forward(const KernelContext& context, const TensorView& q, const TensorView& k,
          const TensorView& v, const kernels::AttentionParams& params, const TensorView& out,
          const TensorView& lse)
      : context_(context), q_(q), k_(k), v_(v), params_(params), out_(out), lse_(lse) {}

  void run() {
    const Index queries = q_.shape[2];
    const Index chunks = (queries + kChunk - 1) / kChunk;
    parallel_for(q_.shape[0] * q_.shape[1] * chunks, 1, [&](Index task, Index) {
      const Index item = task / chunks, first = task % chunks * kChunk;
      run_chunk(item / q_.shape[1], item % q_.shape[1], first, std::min(kChunk, queries - first));
    });
  }

 private:
  static constexpr Index kChunk = kTilesPerTask * kRows<T>;

  // Packed and accumulated operands of one task.
  struct Buffers : Scratch<T> {
    Buffers(const KernelContext& context, Index keys, Index d, Index dv)
        : Scratch<T>(context, padded<T>(keys * d) + padded<T>(keys * dv) + padded<T>(kRows<T> * d) +
                                  padded<T>(kRows<T> * dv) + 2 * kRows<T> * kKeyBlock +
                                  padded<T>(kRows<T> * d)),
          k(this->take(keys * d)),
          v(this->take(keys * dv)),
          q(this->take(kRows<T> * d)),
          out(this->take(kRows<T> * dv)),
          weights(this->take(kRows<T> * kKeyBlock)),
          factors(this->take(kRows<T> * kKeyBlock)),
          rows(this->take(kRows<T> * d)) {}
    T *k, *v, *q, *out, *weights, *factors, *rows;
  };

  void run_chunk(Index b, Index h, Index first, Index count) {
    const Index d = q_.shape[3], dv = v_.shape[3];
    const Index group = h * k_.shape[1] / q_.shape[1];
    const Queries chunk(params_, b, h, first, count, q_.shape[2], k_.shape[2]);
    const Index keys = std::min(round_up(chunk.keys, Panel<T>::kCols), k_.shape[2]);
    Buffers to(context_, keys, d, dv);
    const auto k = head<const T>(k_, b, group), v = head<const T>(v_, b, group);
    Panel<T>::template pack_right<Eigen::ColMajor>(to.k, k.data, k.stride, d, keys);
    Panel<T>::template pack_right<Eigen::RowMajor>(to.v, v.data, v.stride, keys, dv);
    for (Index i = first; i < first + count; i += kRows<T>) {
      const Index n = std::min<Index>(kRows<T>, first + count - i);
      run_tile(Queries(params_, b, h, i, n, q_.shape[2], k_.shape[2]), keys, to);
    }
  }

  void run_tile(const Queries& tile, Index packed_keys, Buffers& to) {
    const Index d = q_.shape[3], dv = v_.shape[3];
    const auto q = whole_rows<T>(head<const T>(q_, tile.b, tile.h), tile, d, to.rows);
    Panel<T>::template pack_left<Eigen::RowMajor>(to.q, q.data, q.stride, kRows<T>, d);
    std::fill_n(to.out, kRows<T> * dv, T(0));
    Lanes<T> highest = Lanes<T>::Constant(kHidden<T>), total = Lanes<T>::Zero();
    for (Index first = 0; first < tile.keys; first += kKeyBlock) {
      const Index keys = std::min(round_up(std::min(kKeyBlock, tile.keys - first), Panel<T>::kCols),
                                  packed_keys - first);
      Tile<T> weights(to.weights, kRows<T>, keys);
      weights.setZero();
      Panel<T>::multiply(to.weights, kRows<T>, to.q, to.k + first * d, kRows<T>, d, keys,
                         static_cast<T>(params_.scale));
      const bool masked = hide<T>(params_, tile, first, keys, weights);
      const Lanes<T> rescale = update(weights, masked, highest, total);
      if (first > 0) {
        Tile<T> out(to.out, kRows<T>, dv);
        for (Index e = 0; e < dv; ++e) out.col(e) *= rescale;
      }
      if (params_.dropout > 0) drop(tile, first, weights, to.factors);
      Panel<T>::multiply(to.out, kRows<T>, to.weights, to.v, kRows<T>, keys, dv, T(1), packed_keys,
                         first);
    }
    finish(tile, highest, total, to.out);
  }

  // Turns a block's scores into weights relative to the highest score so far; returns what the sums
  // of earlier blocks have to be multiplied with.
  static Lanes<T> update(Tile<T>& weights, bool masked, Lanes<T>& highest, Lanes<T>& total) {
    Lanes<T> now = highest;
    for (Index j = 0; j < weights.cols(); ++j) now = now.max(weights.col(j));
    const Lanes<T> shift = (now == kHidden<T>).select(Lanes<T>::Zero(), now);
    const Lanes<T> rescale = (highest - shift).exp();
    Lanes<T> sum = Lanes<T>::Zero();
    for (Index j = 0; j < weights.cols(); ++j) {
      exp_column<T>(weights.col(j), shift, masked);
      sum += weights.col(j);
    }
    total = total * rescale + sum;
    highest = now;
    return rescale;
  }

  void drop(const Queries& tile, Index first, Tile<T>& weights, T* buffer) {
    Tile<T> factors(buffer, kRows<T>, weights.cols());
    draw_dropout<T>(params_, tile, q_.shape[1], q_.shape[2], k_.shape[2], first, weights.cols(),
                    factors);
    weights *= factors;
  }

  void finish(const Queries& tile, const Lanes<T>& highest, const Lanes<T>& total, const T* sums) {
    const auto empty = (total == T(0)).eval();
    const Lanes<T> factor = empty.select(Lanes<T>::Zero(), total.inverse());
    write_rows<T>(sums, factor, tile, v_.shape[3], head<T>(out_, tile.b, tile.h));
    const Lanes<T> infinite = Lanes<T>::Constant(-kHidden<T>);
    const Lanes<T> lse = empty.select(infinite, highest + total.log());
    T* to = lse_.ptr<T>() + (tile.b * q_.shape[1] + tile.h) * q_.shape[2] + tile.first;
    std::copy_n(lse.data(), tile.count, to);
  }

  const KernelContext& context_;
  const TensorView &q_, &k_, &v_;
  const kernels::AttentionParams& params_;
  const TensorView &out_, &lse_;
};

void attention_forward(KernelContext& context, const TensorView& q, const TensorView& k,
                       const TensorView& v, const kernels::AttentionParams& params,
                       const TensorView& out, const TensorView& lse) {
  dispatch_floating(q.dtype, "attention", [&]<class T>(TypeTag<T>) {
    Forward<T>(context, q, k, v, params, out, lse).run();
  });
}

}  // namespace

void register_attention() {
  kernels::attention_forward.set(DeviceType::cpu, attention_forward);
  kernels::attention_backward.set(DeviceType::cpu, attention_backward);
}

}  // namespace sash::cpu
