#include "position_bias.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "../../ops/index/gather.h"
#include "../../tensor/factories.h"
#include "../check.h"

namespace sash::nn {
namespace {

// The bias of each distance, [1, H, n, m], from a table [H, distances] and where in it to look.
Tensor looked_up(const Tensor& table, const std::vector<int64_t>& index, int64_t n, int64_t m) {
  const auto count = static_cast<int64_t>(index.size());
  const Tensor where = tensor(index, {count}, {.device = table.device()});
  return index_select(table, 1, where).view({1, table.size(0), n, m});
}

}  // namespace

Tensor alibi_slopes(int64_t heads, Device device) {
  check_positive("alibi_slopes", "number of heads", heads);
  const Tensor slopes = empty({heads}, {.dtype = DType::float32, .device = kCPU});
  auto* const slope = slopes.tensor_view().ptr<float>();
  for (int64_t h = 0; h < heads; ++h) {
    slope[h] = std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(heads));
  }
  return slopes.to(device);
}

Tensor position_bias(const Tensor& relative_bias, const Tensor& slopes,
                     const std::vector<int64_t>& queries, const std::vector<int64_t>& keys) {
  const auto n = static_cast<int64_t>(queries.size()), m = static_cast<int64_t>(keys.size());
  std::vector<int64_t> index;
  std::vector<double> distance;
  const int64_t reach = relative_bias.defined() ? relative_bias.size(1) / 2 : 0;
  for (const int64_t query : queries) {
    for (const int64_t key : keys) {
      index.push_back(std::clamp(key - query, -reach, reach) + reach);
      distance.push_back(static_cast<double>(std::abs(key - query)));
    }
  }
  Tensor bias;
  if (relative_bias.defined()) bias = looked_up(relative_bias, index, n, m);
  if (slopes.defined()) {
    const Tensor far = tensor(distance, {1, 1, n, m}, slopes.options());
    const Tensor alibi = -(slopes.view({1, -1, 1, 1}) * far);
    bias = bias.defined() ? bias + alibi.to(bias.dtype()) : alibi;
  }
  return bias;
}

}  // namespace sash::nn
