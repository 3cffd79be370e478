#pragma once

#include <cmath>

#include "../shape/convert.h"
#include "attention_scores.h"

/// Attention of a few queries, for example when a text is generated token by token. The lanes of a
/// vector are features of one query, so no lane is padding. Keys and values are read where they are
/// stored, halves too, once for each query head.
namespace sash::cpu::attn {

/// The most queries. A tile of kRows queries costs about as much as this number of queries does
/// here.
inline constexpr Index kFewQueries = 8;

inline bool has_few_queries(const AttentionDims& dims) {
  const kernels::AttentionParams& params = dims.params;
  return dims.queries <= kFewQueries && params.dropout == 0 && !params.bias &&
         !params.relative_bias && !params.slopes;
}

/// The queries of one head. q, out and lse are of type T, k and v of type `Element`.
template <class T, class Element>
class FewQueries {
  using Packet = typename Eigen::internal::packet_traits<T>::type;
  static constexpr Index kPacket = Panel<T>::kPacket;

 public:
  /// The score of a query and a key, before the softcap.
  static T score(const AttentionDims& dims, const T* q, const Element* k) {
    using namespace Eigen::internal;
    Packet sum = pset1<Packet>(T(0));
    Index d = 0;
    for (; d + kPacket <= dims.depth; d += kPacket) {
      sum = pmadd(ploadu<Packet>(q + d), load(k + d), sum);
    }
    T total = predux(sum);
    for (; d < dims.depth; ++d) total += q[d] * static_cast<T>(k[d]);
    return static_cast<T>(dims.params.scale) * total;
  }

  FewQueries(const KernelContext& context, const AttentionDims& dims,
             const kernels::AttentionInputs& x, const TensorView& out, const TensorView& lse,
             Index b, Index h)
      : dims_(dims),
        tile_(dims, b, h, 0),
        most_(TileBlocks(dims, tile_).size() * kBlockKeys),
        q_(head<const T>(x.q, b, h)),
        k_(head<const Element>(x.k, b, dims.group_of(h))),
        v_(head<const Element>(x.v, b, dims.group_of(h))),
        out_(head<T>(out, b, h)),
        lse_(lse.ptr<T>() + (b * dims.heads + h) * dims.queries),
        scratch_(context, {tile_.count * most_}) {}

  void run() {
    const FlushDenormals flush;
    Index columns = 0;
    for_each_segment([&](const Segment& segment, const IndexRange& keys, Index column) {
      for (Index i = 0; i < tile_.count; ++i) form_scores(segment, keys, i, row(i) + column);
      columns = column + round_up(keys.size(), kLanes);
    });
    T factor[kFewQueries];
    for (Index i = 0; i < tile_.count; ++i) {
      const T highest = finite_max(row(i), columns);
      const T total = weigh(row(i), columns, highest);
      const bool empty = total == 0;
      factor[i] = empty ? T(0) : 1 / total;
      lse_[i] = empty ? -kHidden<T> : highest + std::log(total);
      std::fill_n(out_.row(i), dims_.v_depth, T(0));
    }
    for_each_segment([&](const Segment& segment, const IndexRange& keys, Index column) {
      for (Index i = 0; i < tile_.count; ++i) {
        add_values(row(i) + column, v_.row(segment.key + keys.first), keys.size(), out_.row(i));
      }
    });
    for (Index i = 0; i < tile_.count; ++i) {
      for (Index e = 0; e < dims_.v_depth; ++e) out_.row(i)[e] *= factor[i];
    }
  }

 private:
  // The weights of query i.
  T* row(Index i) const { return scratch_[0] + i * most_; }

  // Calls `f` with each segment, the keys from the first to the last that a query sees, and their
  // first column.
  template <class F>
  void for_each_segment(F&& f) const {
    Steps steps(dims_, tile_);
    for (Index column = 0; steps.next();) {
      for (const Segment& segment : steps.segments()) {
        static_assert(kFewQueries == kGroup);
        IndexRange keys = segment.keys_of(0);
        keys.past = std::min(keys.past, dims_.keys - segment.key);
        if (keys.past <= keys.first) continue;
        f(segment, keys, column);
        column += round_up(keys.size(), kLanes);
      }
    }
  }

  static Packet load(const Element* x) {
    if constexpr (std::is_same_v<T, Element>) {
      return Eigen::internal::ploadu<Packet>(x);
    } else {
      return widened<Packet>(x);
    }
  }

  // The scores of query i. The last vector is filled up with the score of a hidden key.
  void form_scores(const Segment& segment, const IndexRange& keys, Index i, T* scores) const {
    const Index count = keys.size(), first = segment.key + keys.first;
    for (Index j = 0; j < count; ++j) scores[j] = score(dims_, q_.row(i), k_.row(first + j));
    const Index padded = round_up(count, kLanes);
    std::fill(scores + count, scores + padded, T(0));
    if (dims_.params.softcap > 0) {
      cap(static_cast<T>(dims_.params.softcap), padded, scores, static_cast<T*>(nullptr));
    }
    for (Index j = 0; segment.visible && j < count; ++j) {
      if (!(segment.visible[keys.first + j] >> i & 1)) scores[j] = kHidden<T>;
    }
    std::fill(scores + count, scores + padded, kHidden<T>);
  }

  // Replaces the scores by weights; returns the sum of the weights.
  static T weigh(T* scores, Index columns, T highest) {
    Lanes<T> sum = T(0);
    for (Index j = 0; j < columns; j += kLanes) {
      const Lanes<T> weight = exp_of_negative(Lanes<T>(scores + j) - Lanes<T>(highest));
      weight.store(scores + j);
      sum += weight;
    }
    return sum_of(sum);
  }

  // to += sum_j weights[j] v[j].
  void add_values(const T* weights, const Element* v, Index count, T* to) const {
    constexpr int kTogether = 4;
    Index e = 0;
    for (; e + kTogether * kPacket <= dims_.v_depth; e += kTogether * kPacket) {
      add_packets<kTogether>(weights, v + e, count, to + e);
    }
    for (; e + kPacket <= dims_.v_depth; e += kPacket) {
      add_packets<1>(weights, v + e, count, to + e);
    }
    for (; e < dims_.v_depth; ++e) {
      for (Index j = 0; j < count; ++j) to[e] += weights[j] * static_cast<T>(v[j * v_.stride + e]);
    }
  }

  template <int kPackets>
  void add_packets(const T* weights, const Element* v, Index count, T* to) const {
    using namespace Eigen::internal;
    Packet sum[kPackets];
#pragma GCC unroll 4
    for (int p = 0; p < kPackets; ++p) sum[p] = ploadu<Packet>(to + p * kPacket);
    for (Index j = 0; j < count; ++j, v += v_.stride) {
      const Packet weight = pset1<Packet>(weights[j]);
#pragma GCC unroll 4
      for (int p = 0; p < kPackets; ++p) sum[p] = pmadd(weight, load(v + p * kPacket), sum[p]);
    }
#pragma GCC unroll 4
    for (int p = 0; p < kPackets; ++p) pstoreu(to + p * kPacket, sum[p]);
  }

  const AttentionDims& dims_;
  QueryTile tile_;
  Index most_;  // the most columns
  Rows<const T> q_;
  Rows<const Element> k_, v_;
  Rows<T> out_;
  T* lse_;
  Scratch<T, 1> scratch_;
};

}  // namespace sash::cpu::attn
