#include "op_table.h"

#include "../cases/cases.h"

namespace sash::testing {

const OpTable& op_table() {
  static const OpTable table = [] {
    OpTable rows;
    for (const auto add : {add_unary,
                           add_binary,
                           add_compare,
                           add_where,
                           add_in_place,
                           add_reduce,
                           add_copy,
                           add_views,
                           add_concat,
                           add_rearrange,
                           add_indexing,
                           add_gather,
                           add_embedding,
                           add_matmul,
                           add_linear,
                           add_window_matmul,
                           add_block_sparse,
                           add_softmax,
                           add_layer_norm,
                           add_rms_norm,
                           add_gelu,
                           add_glu,
                           add_dropout,
                           add_attention,
                           add_rotary,
                           add_steps,
                           add_linear_attention,
                           add_float8,
                           add_gated_delta_rule,
                           add_gated_sum,
                           add_cross_entropy,
                           add_mse_loss,
                           add_losses,
                           add_factories,
                           add_optimizer,
                           add_topk,
                           add_clusters,
                           add_select_blocks,
                           add_sparse_products,
                           add_clustered_attention,
                           add_in_place_rows,
                           add_baddbmm,
                           add_softmax_modes,
                           add_sampling,
                           add_einsum,
                           add_conv,
                           add_batch_norm,
                           add_update_rules,
                           add_integer_arithmetic,
                           add_images,
                           add_words}) {
      add(rows);
    }
    return rows;
  }();
  return table;
}

}  // namespace sash::testing
