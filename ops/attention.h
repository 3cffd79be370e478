#pragma once

#include <optional>

#include "../core/philox.h"
#include "../tensor/tensor.h"
#include "attention_mask.h"

namespace sash {

struct AttentionOptions {
  AttentionMask mask{};           ///< which keys a query may see; all by default
  std::optional<double> scale{};  ///< factor of the scores; 1 / sqrt(D) by default
  double dropout = 0;             ///< probability with which an attention weight is dropped
};

/// Scaled dot-product attention (Vaswani et al., "Attention is all you need", 2017):
/// o = dropout(softmax(scale q k' where visible)) v.
///
/// q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, D_v] give o [B, H, S_q, D_v]; H is a
/// multiple of H_kv, and query head h reads key and value head floor(h H_kv / H). Floating
/// dtypes. Memory grows with S_q + S_k, not with their product. A query that sees no key gets
/// zeros and a zero gradient. The weight of [b, h, i, j] is dropped or kept by its row-major index
/// in [B, H, S_q, S_k] alone.
///
/// Throws `ShapeError` if the tensors or the mask do not fit, `DTypeError`, `DeviceError`, and
/// `ValueError` unless 0 <= dropout <= 1 and the scale is finite.
SASH_API Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionOptions& options = {});

namespace composite {
/// The same from plain ops, holding the S_q x S_k matrix: what runs on a backend without the fused
/// kernels, what is differentiated for second derivatives, and what tests compare with. `philox`
/// says where the dropout mask starts.
SASH_API Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionOptions& options, PhiloxState philox);
}  // namespace composite

}  // namespace sash
