#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <sash/ops/attention/approximate/select_blocks.h>

#include "../reference.h"

/// `select_blocks` by its definition, in float64.
namespace sash::testing {

class PlainSelection {
 public:
  /// `pooled` without elements: the means of the blocks of k.
  PlainSelection(const Array& q, const Array& k, const SelectBlocksOptions& options,
                 const Array& pooled = Array(Shape{0}))
      : q_(q), options_(options), keys_(k.shape[2]), pooled_(pooled) {
    blocks_ = (keys_ + options.block - 1) / options.block;
    if (!pooled.values.empty()) return;
    pooled_ = generate({k.shape[0], k.shape[1], blocks_, k.shape[3]}, [&](const Index& at) {
      const int64_t first = at[2] * options.block, past = std::min(first + options.block, keys_);
      double sum = 0;
      for (int64_t j = first; j < past; ++j) sum += k[{at[0], at[1], j, at[3]}];
      return sum / double(past - first);
    });
  }

  Array operator()() {
    const bool logits = options_.score == BlockScore::logits;
    const int64_t heads = logits ? q_.shape[1] : pooled_.shape[1],
                  per_row = options_.queries_per_row;
    Array index({q_.shape[0], heads, (q_.shape[2] + per_row - 1) / per_row, options_.count}, -1);
    for_each_index({index.shape[0], index.shape[1], index.shape[2]}, [&](const Index& at) {
      const std::vector<double> chosen = row(at);
      for (size_t i = 0; i < chosen.size(); ++i) {
        index[{at[0], at[1], at[2], static_cast<int64_t>(i)}] = chosen[i];
      }
    });
    return index;
  }

  /// The least difference of two scores of a row, one of a chosen block and one of another.
  double gap() const { return gap_; }

  /// The scores of all blocks of row at[2] of head at[1].
  std::vector<double> scores(const Index& at) const {
    constexpr double kHidden = -std::numeric_limits<double>::infinity();
    const bool logits = options_.score == BlockScore::logits;
    const int64_t group = logits ? 1 : q_.shape[1] / pooled_.shape[1];
    const double scale = logits ? 1 : options_.scale.value_or(1 / std::sqrt(double(q_.shape[3])));
    std::vector<double> sums(static_cast<size_t>(blocks_));
    for (const int64_t i : queries(at[2])) {
      for (int64_t g = at[1] * group; g < (at[1] + 1) * group; ++g) {
        std::vector<double> line;
        for (int64_t c = 0; c < pooled_.shape[2]; ++c) {
          const int64_t keys = logits ? c * options_.block : (c + 1) * options_.block - 1;
          const bool sees = !options_.causal || keys <= position(i);
          line.push_back(sees ? scale * logit(at, g, i, c) : logits ? 0 : kHidden);
        }
        if (!logits) line = softmax_line(line);
        for (size_t c = 0; c < line.size(); ++c) sums[c] += line[c];
      }
    }
    for (double& sum : sums) sum = std::isnan(sum) ? kHidden : sum;
    return sums;
  }

 private:
  int64_t position(int64_t i) const { return i + keys_ - q_.shape[2]; }

  double logit(const Index& at, int64_t head, int64_t i, int64_t block) const {
    const int64_t kv = head / (q_.shape[1] / pooled_.shape[1]);
    double sum = 0;
    for (int64_t d = 0; d < q_.shape[3]; ++d) {
      sum += q_[{at[0], head, i, d}] * pooled_[{at[0], kv, block, d}];
    }
    return sum;
  }

  std::vector<int64_t> queries(int64_t row) const {
    std::vector<int64_t> all;
    const int64_t first = row * options_.queries_per_row;
    for (int64_t i = first; i < std::min(first + options_.queries_per_row, q_.shape[2]); ++i) {
      all.push_back(i);
    }
    return all;
  }

  bool forced(int64_t row, int64_t block) const {
    if (block < options_.first) return true;
    std::vector<int64_t> own;
    for (const int64_t i : queries(row)) {
      if (position(i) >= 0) own.push_back(position(i) / options_.block);
    }
    if (own.empty()) return false;
    if (options_.own && std::count(own.begin(), own.end(), block) > 0) return true;
    return block < own.front() && block >= own.front() - options_.neighbours;
  }

  std::vector<double> row(const Index& at) {
    struct Candidate {
      bool forced;
      double score;
      int64_t block;
    };
    std::vector<Candidate> all;
    const std::vector<double> of = scores(at);
    for (int64_t c = 0; c < blocks_; ++c) {
      if (options_.causal && c * options_.block > position(queries(at[2]).back())) break;
      all.push_back({forced(at[2], c), of[static_cast<size_t>(c)], c});
    }
    std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
      return a.forced != b.forced ? a.forced : !a.forced && a.score > b.score;
    });
    const size_t taken = std::min(all.size(), static_cast<size_t>(options_.count));
    if (taken > 0 && taken < all.size() && !all[taken - 1].forced) {
      gap_ = std::min(gap_, std::abs(all[taken - 1].score - all[taken].score));
    }
    std::vector<double> chosen;
    for (size_t i = 0; i < taken; ++i) chosen.push_back(double(all[i].block));
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  }

  Array q_;
  SelectBlocksOptions options_;
  int64_t keys_, blocks_ = 0;
  Array pooled_;
  double gap_ = std::numeric_limits<double>::infinity();
};

}  // namespace sash::testing
