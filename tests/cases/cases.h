#pragma once

#include <cmath>
#include <limits>
#include <string>

#include <sash/ops/kernels/elementwise_table.h>

#include "../support/op_case.h"

/// Each family of ops adds its rows to the table.
namespace sash::testing {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline const std::vector<DType> kNumbers{DType::float32, DType::float64, DType::int32,
                                         DType::int64};
inline const std::vector<DType> kFloats{DType::float32, DType::float64};

/// The dtypes that the elementwise table gives an op.
inline std::vector<DType> dtypes_of(op::Dtypes dtypes) {
  return dtypes == op::Dtypes::numbers ? kNumbers : kFloats;
}

using enum Layout;

using T = const Tensor&;
using I = const Index&;

template <class... N>
Index at(N... n) {
  return {n...};
}

/// Whole numbers in [0, count).
inline InputSpec indices(const Shape& shape, int64_t count, Layout layout = contiguous) {
  return {shape, layout, 0, static_cast<double>(count), DType::int64};
}

inline std::string layout_name(Layout layout) {
  constexpr const char* names[] = {"contiguous", "transposed", "heads",
                                   "sliced",     "padded",     "expanded"};
  return names[static_cast<int>(layout)];
}

inline std::string describe(const InputSpec& spec) {
  return to_string(spec.shape) + (spec.layout == contiguous ? "" : " " + layout_name(spec.layout));
}

void add_attention(OpTable& table);
void add_baddbmm(OpTable& table);
void add_batch_norm(OpTable& table);
void add_binary(OpTable& table);
void add_block_sparse(OpTable& table);
void add_clustered_attention(OpTable& table);
void add_clusters(OpTable& table);
void add_compare(OpTable& table);
void add_concat(OpTable& table);
void add_conv(OpTable& table);
void add_copy(OpTable& table);
void add_cross_entropy(OpTable& table);
void add_dropout(OpTable& table);
void add_einsum(OpTable& table);
void add_embedding(OpTable& table);
void add_factories(OpTable& table);
void add_float8(OpTable& table);
void add_gated_delta_rule(OpTable& table);
void add_gated_sum(OpTable& table);
void add_gather(OpTable& table);
void add_indexing(OpTable& table);
void add_gelu(OpTable& table);
void add_glu(OpTable& table);
void add_images(OpTable& table);
void add_in_place(OpTable& table);
void add_in_place_rows(OpTable& table);
void add_layer_norm(OpTable& table);
void add_integer_arithmetic(OpTable& table);
void add_linear(OpTable& table);
void add_linear_attention(OpTable& table);
void add_losses(OpTable& table);
void add_matmul(OpTable& table);
void add_mse_loss(OpTable& table);
void add_optimizer(OpTable& table);
void add_rearrange(OpTable& table);
void add_reduce(OpTable& table);
void add_rms_norm(OpTable& table);
void add_rotary(OpTable& table);
void add_sampling(OpTable& table);
void add_select_blocks(OpTable& table);
void add_softmax(OpTable& table);
void add_sparse_products(OpTable& table);
void add_steps(OpTable& table);
void add_topk(OpTable& table);
void add_softmax_modes(OpTable& table);
void add_unary(OpTable& table);
void add_update_rules(OpTable& table);
void add_views(OpTable& table);
void add_where(OpTable& table);
void add_words(OpTable& table);
void add_window_matmul(OpTable& table);

}  // namespace sash::testing
