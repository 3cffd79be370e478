#include "../../core/dispatch.h"
#include "../../core/parallel.h"
#include "attention_tile.h"

/// The gradient of attention, from the saved log-sum-exp: with P = exp(S - lse), D = rowsum(g .
/// out) and dropout factors M, dV = (M P)' g, dS = P (M (g V') - D), dQ = scale dS K, dK = scale
/// dS' Q.
namespace sash::cpu {

namespace {

using namespace attn;

struct Operands {
  const TensorView &g, &q, &k, &v, &out, &lse;
  const kernels::AttentionParams& params;
  const TensorView &dq, &dk, &dv;
};

// One task owns a key head: it walks the query heads that read it and their tiles in order, so that
// dk and dv are summed in one order whatever the number of threads.
template <class T>
class Backward {
 public:
  Backward(const KernelContext& context, const Operands& x)
      : x_(x),
        d_(x.q.shape[3]),
        dv_(x.v.shape[3]),
        keys_(x.k.shape[2]),
        scale_(static_cast<T>(x.params.scale)),
        scratch_(context, size(x)),
        keys_by_key_(scratch_.take(keys_ * d_)),
        keys_by_feature_(scratch_.take(keys_ * d_)),
        values_(scratch_.take(keys_ * dv_)),
        q_(scratch_.take(kRows<T> * d_)),
        q_by_feature_(scratch_.take(kRows<T> * d_)),
        g_(scratch_.take(kRows<T> * dv_)),
        g_by_feature_(scratch_.take(kRows<T> * dv_)),
        q_rows_(scratch_.take(kRows<T> * d_)),
        g_rows_(scratch_.take(kRows<T> * dv_)),
        dq_(scratch_.take(kRows<T> * d_)),
        weights_(scratch_.take(kBlock)),
        slopes_(scratch_.take(kBlock)),
        factors_(scratch_.take(kBlock)),
        packed_(scratch_.take(kBlock)) {}

  void run(Index b, Index group) {
    const auto k = head<const T>(x_.k, b, group), v = head<const T>(x_.v, b, group);
    Panel<T>::template pack_right<Eigen::ColMajor>(keys_by_key_, k.data, k.stride, d_, keys_);
    Panel<T>::template pack_right<Eigen::RowMajor>(keys_by_feature_, k.data, k.stride, keys_, d_);
    Panel<T>::template pack_right<Eigen::ColMajor>(values_, v.data, v.stride, dv_, keys_);
    dk_ = head<T>(x_.dk, b, group);
    dv_rows_ = head<T>(x_.dv, b, group);
    std::fill_n(dk_.data, keys_ * d_, T(0));
    std::fill_n(dv_rows_.data, keys_ * dv_, T(0));
    const Index heads = x_.q.shape[1] / x_.k.shape[1], queries = x_.q.shape[2];
    for (Index h = group * heads; h < (group + 1) * heads; ++h) {
      for (Index i = 0; i < queries; i += kRows<T>) {
        const Index n = std::min<Index>(kRows<T>, queries - i);
        run_tile(Queries(x_.params, b, h, i, n, queries, keys_));
      }
    }
  }

 private:
  static constexpr Index kBlock = kRows<T> * kKeyBlock;

  static Index size(const Operands& x) {
    const Index d = x.q.shape[3], dv = x.v.shape[3], keys = x.k.shape[2];
    return 2 * padded<T>(keys * d) + padded<T>(keys * dv) + 4 * padded<T>(kRows<T> * d) +
           3 * padded<T>(kRows<T> * dv) + 4 * padded<T>(kBlock);
  }

  void run_tile(const Queries& tile) {
    const auto q = whole_rows<T>(head<const T>(x_.q, tile.b, tile.h), tile, d_, q_rows_);
    const auto g = whole_rows<T>(head<const T>(x_.g, tile.b, tile.h), tile, dv_, g_rows_);
    Panel<T>::template pack_left<Eigen::RowMajor>(q_, q.data, q.stride, kRows<T>, d_);
    Panel<T>::template pack_left<Eigen::RowMajor>(g_, g.data, g.stride, kRows<T>, dv_);
    Panel<T>::template pack_left<Eigen::ColMajor>(q_by_feature_, q.data, q.stride, d_, kRows<T>);
    Panel<T>::template pack_left<Eigen::ColMajor>(g_by_feature_, g.data, g.stride, dv_, kRows<T>);
    std::fill_n(dq_, kRows<T> * d_, T(0));
    Lanes<T> lse = Lanes<T>::Zero(), dot = Lanes<T>::Zero();
    load_rows(tile, g, lse, dot);
    for (Index first = 0; first < tile.keys; first += kKeyBlock) {
      const Index keys = std::min(round_up(std::min(kKeyBlock, tile.keys - first), Panel<T>::kCols),
                                  keys_ - first);
      form_slopes(tile, first, keys, lse, dot);
      add_products(first, keys);
    }
    write_rows<T>(dq_, Lanes<T>::Ones(), tile, d_, head<T>(x_.dq, tile.b, tile.h));
  }

  void load_rows(const Queries& tile, Rows<const T> g, Lanes<T>& lse, Lanes<T>& dot) {
    using Row = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;
    const Index row = (tile.b * x_.q.shape[1] + tile.h) * x_.q.shape[2] + tile.first;
    const auto out = head<const T>(x_.out, tile.b, tile.h);
    for (Index i = 0; i < tile.count; ++i) {
      lse[i] = x_.lse.template ptr<const T>()[row + i];
      dot[i] =
          (Row(g.data + i * g.stride, dv_) * Row(out.data + (tile.first + i) * out.stride, dv_))
              .sum();
    }
  }

  // weights = M P and slopes = P (M (g V') - D) of one block.
  void form_slopes(const Queries& tile, Index first, Index keys, const Lanes<T>& lse,
                   const Lanes<T>& dot) {
    Tile<T> weights(weights_, kRows<T>, keys), slopes(slopes_, kRows<T>, keys);
    weights.setZero();
    slopes.setZero();
    Panel<T>::multiply(weights_, kRows<T>, q_, keys_by_key_ + first * d_, kRows<T>, d_, keys,
                       scale_);
    Panel<T>::multiply(slopes_, kRows<T>, g_, values_ + first * dv_, kRows<T>, dv_, keys, T(1));
    const bool masked = hide<T>(x_.params, tile, first, keys, weights);
    if (x_.params.dropout == 0) {
      for (Index j = 0; j < keys; ++j) {
        exp_column<T>(weights.col(j), lse, masked);
        slopes.col(j) = weights.col(j) * (slopes.col(j) - dot);
      }
      return;
    }
    Tile<T> factors(factors_, kRows<T>, keys);
    draw_dropout<T>(x_.params, tile, x_.q.shape[1], x_.q.shape[2], keys_, first, keys, factors);
    for (Index j = 0; j < keys; ++j) {
      exp_column<T>(weights.col(j), lse, masked);
      slopes.col(j) = weights.col(j) * (slopes.col(j) * factors.col(j) - dot);
      weights.col(j) *= factors.col(j);
    }
  }

  void add_products(Index first, Index keys) {
    Panel<T>::multiply(dq_, kRows<T>, slopes_, keys_by_feature_, kRows<T>, keys, d_, scale_, keys_,
                       first);
    Panel<T>::template pack_right<Eigen::ColMajor>(packed_, weights_, kRows<T>, kRows<T>, keys);
    Panel<T>::multiply(dv_rows_.data + first * dv_rows_.stride, dv_rows_.stride, g_by_feature_,
                       packed_, dv_, kRows<T>, keys, T(1));
    Panel<T>::template pack_right<Eigen::ColMajor>(packed_, slopes_, kRows<T>, kRows<T>, keys);
    Panel<T>::multiply(dk_.data + first * dk_.stride, dk_.stride, q_by_feature_, packed_, d_,
                       kRows<T>, keys, scale_);
  }

  const Operands& x_;
  Index d_, dv_, keys_;
  T scale_;
  Scratch<T> scratch_;
  // k as the right operand of q k' and of dS k; v as that of g v'.
  T *keys_by_key_, *keys_by_feature_, *values_;
  // A tile's q and g as left operands, with queries and with features as rows.
  T *q_, *q_by_feature_, *g_, *g_by_feature_, *q_rows_, *g_rows_;
  T* dq_;
  T *weights_, *slopes_, *factors_, *packed_;
  Rows<T> dk_{}, dv_rows_{};
};

}  // namespace

void attention_backward(KernelContext& context, const TensorView& g, const TensorView& q,
                        const TensorView& k, const TensorView& v, const TensorView& out,
                        const TensorView& lse, const kernels::AttentionParams& params,
                        const TensorView& dq, const TensorView& dk, const TensorView& dv) {
  const Operands operands{g, q, k, v, out, lse, params, dq, dk, dv};
  const Index groups = k.shape[1];
  dispatch_floating(q.dtype, "attention", [&]<class T>(TypeTag<T>) {
    parallel_for(q.shape[0] * groups, 1, [&](Index task, Index) {
      Backward<T>(context, operands).run(task / groups, task % groups);
    });
  });
}

}  // namespace sash::cpu
