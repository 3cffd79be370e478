#include "../../../ops/kernels/select_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../shape/in_float.h"
#include "dot.h"

namespace sash::cpu {
namespace {

using kernels::BlockRules;
using kernels::RowBlocks;

template <class T>
struct Scored {
  T score;
  int32_t block;
};

// A row's blocks, in the memory of a thread.
template <class T>
class BlockChoice {
 public:
  BlockChoice(View q, View pooled, const TensorView* lse, const BlockRules& rules, double scale,
              View index)
      : q_(q), pooled_(pooled), lse_(lse), rules_(rules), scale_(static_cast<T>(scale)) {
    heads_ = index.shape[1], rows_ = index.shape[2], count_ = index.shape[3];
  }

  // Row number `row` of all heads.
  void choose(int64_t row, int32_t* to) {
    const RowBlocks blocks(rules_, row % rows_);
    int32_t* const end = to + count_;
    if (blocks.candidates <= count_) {
      for (int64_t b = 0; b < blocks.candidates; ++b) *to++ = static_cast<int32_t>(b);
      std::fill(to, end, -1);
      return;
    }
    best_.clear();
    const auto room = static_cast<size_t>(count_ - blocks.forced());
    for (int64_t b = 0; room > 0 && b < blocks.candidates; ++b) {
      if (!blocks.is_forced(b))
        insert({score(row / rows_, blocks, b), static_cast<int32_t>(b)}, room);
    }
    for (int64_t i = 0; i < blocks.forced(); ++i) {
      *to++ = static_cast<int32_t>(blocks.forced(i));
    }
    for (const Scored<T>& chosen : best_) *to++ = chosen.block;
    std::sort(end - count_, end);
  }

 private:
  T score(int64_t head, const RowBlocks& row, int64_t b) const {
    const int64_t batch = head / heads_, group = q_.shape[1] / heads_;
    T sum = 0;
    for (int64_t g = head % heads_ * group; g < (head % heads_ + 1) * group; ++g) {
      const int64_t kv = g / (q_.shape[1] / pooled_.shape[1]);
      const int64_t width = pooled_.shape[3];
      const T* const key =
          pooled_.ptr<T>() + ((batch * pooled_.shape[1] + kv) * rules_.scored + b) * width;
      for (int64_t i = row.query; i < row.past_query; ++i) {
        if (b >= rules_.seen(rules_.position(i))) continue;
        const T* const query =
            q_.ptr<T>() + batch * q_.strides[0] + g * q_.strides[1] + i * q_.strides[2];
        const T logit = dot_of(query, key, width);
        sum += lse_ ? std::exp(scale_ * logit - lse_of(batch, g, i)) : logit;
      }
    }
    return std::isnan(sum) ? -std::numeric_limits<T>::infinity() : sum;
  }
  T lse_of(int64_t batch, int64_t head, int64_t query) const {
    return lse_->ptr<T>()[(batch * q_.shape[1] + head) * q_.shape[2] + query];
  }
  // `best_` is in descending order; of equal scores, the block that came first stays first.
  void insert(Scored<T> next, size_t room) {
    if (best_.size() == room) {
      if (!(next.score > best_.back().score)) return;
      best_.pop_back();
    }
    const auto at = std::upper_bound(best_.begin(), best_.end(), next,
                                     [](auto& a, auto& b) { return a.score > b.score; });
    best_.insert(at, next);
  }

  const TensorView q_, pooled_;
  const TensorView* lse_;
  BlockRules rules_;
  T scale_;
  int64_t heads_, rows_, count_;
  std::vector<Scored<T>> best_{};
};

void select_blocks(KernelContext&, const TensorView& q, const TensorView& pooled,
                   const TensorView* lse, const BlockRules& rules, double scale,
                   const TensorView& index) {
  const int64_t rows = index.numel() / index.shape[3];
  const int64_t group = q.shape[1] / std::max<int64_t>(1, index.shape[1]);
  const int64_t work = std::max<int64_t>(1, rules.scored) * pooled.shape[3] * group *
                       std::min(rules.queries_per_row, rules.queries);
  dispatch_floating(q.dtype, "select_blocks", [&]<class T>(TypeTag<T>) {
    parallel_for(rows, std::max<int64_t>(1, 65536 / work), [&](int64_t begin, int64_t end) {
      BlockChoice<T> choice(q, pooled, lse, rules, scale, index);
      for (int64_t row = begin; row < end; ++row) {
        choice.choose(row, index.ptr<int32_t>() + row * index.shape[3]);
      }
    });
  });
}

}  // namespace

void register_select_blocks() {
  kernels::select_blocks.set(DeviceType::cpu, in_float<select_blocks>);
}

}  // namespace sash::cpu
