#include "../../../ops/kernels/attention.h"

#include <cstdlib>
#include <limits>
#include <string_view>

#include "../../../core/error.h"
#include "common/kept.h"
#include "common/limits.h"
#include "common/named_kernels.h"
#include "families.h"

/// Attention: the family of kernels that runs a call.
namespace sash::cuda {
namespace {

/// The first kernels that may run on this card. Throws `DeviceError` if SASH_ATTENTION_KERNEL names
/// hopper and the card cannot run them.
AttentionKernels first_attention_kernels(Device device) {
  const auto named = named_attention_kernels();
  if (attention_hopper_runs(device)) return named.value_or(AttentionKernels::hopper);
  if (named == AttentionKernels::hopper) {
    throw DeviceError("attention",
                      "a card of compute capability 9.0, a library with code for sm_90a and no "
                      "lower SASH_SHARED_MEMORY_LIMIT, for SASH_ATTENTION_KERNEL=hopper",
                      to_string(device) + " without one of these");
  }
  return named.value_or(AttentionKernels::mma);
}

/// The kernels for a call. The simple ones compute no halves.
AttentionKernels choose_attention(const KernelContext& context, const AttentionInputs& inputs) {
  const AttentionKernels first = first_attention_kernels(context.device);
  const bool half = size_of(inputs.q.dtype) == 2;
  if (first == AttentionKernels::hopper && attention_hopper_takes(inputs)) {
    return AttentionKernels::hopper;
  }
  if ((first != AttentionKernels::simple || half) && attention_mma_takes(context, inputs)) {
    return AttentionKernels::mma;
  }
  return AttentionKernels::simple;
}

/// Whether a call has no scores: no batch, no head, no query or no key. Kernels take no such call.
bool has_no_scores(const AttentionInputs& x) { return x.q.numel() == 0 || x.k.shape[2] == 0; }

void attention_forward(KernelContext& context, const AttentionInputs& x,
                       const AttentionParams& params, View out, View lse) {
  if (has_no_scores(x)) {
    fill(context, out, 0);
    fill(context, lse, std::numeric_limits<double>::infinity());
    return;
  }
  check_extents("attention", x.q, x.k);
  switch (choose_attention(context, x)) {
    case AttentionKernels::hopper:
      return attention_hopper_forward(context, x, params, out, lse);
    case AttentionKernels::mma:
      return attention_mma_forward(context, x, params, out, lse);
    case AttentionKernels::simple:
      return attention_simple_forward(context, x, params, out, lse);
  }
}

void attention_backward(KernelContext& context, const AttentionInputs& x,
                        const AttentionParams& params, const AttentionGradients& gradients) {
  if (has_no_scores(x)) {
    for (const TensorView* y : {&gradients.dq, &gradients.dk, &gradients.dv, gradients.drelative}) {
      if (y) fill(context, *y, 0);
    }
    return;
  }
  check_extents("attention", x.q, x.k);
  switch (choose_attention(context, x)) {
    case AttentionKernels::hopper:
      return attention_hopper_backward(context, x, params, gradients);
    case AttentionKernels::mma:
      return attention_mma_backward(context, x, params, gradients);
    case AttentionKernels::simple:
      return attention_simple_backward(context, x, params, gradients);
  }
}

void kept_bytes(KernelContext& context, const AttentionInputs& x, const AttentionParams& params,
                int64_t& bytes) {
  const bool reads = !has_no_scores(x) && choose_attention(context, x) != AttentionKernels::simple;
  bytes = reads ? attention_kept_bytes(x, params) : 0;
}

/// Every family reads maps with as many queries as keys in a block.
void attention_block_rows(KernelContext&, const AttentionInputs&, AttentionPass,
                          int64_t& query_rows) {
  query_rows = kernels::kBlockKeys;
}

}  // namespace

std::optional<AttentionKernels> named_attention_kernels() {
  const char* text = std::getenv("SASH_ATTENTION_KERNEL");
  if (!text) return std::nullopt;
  const std::string_view name = text;
  if (name == "hopper") return AttentionKernels::hopper;
  if (name == "mma") return AttentionKernels::mma;
  if (name == "simple") return AttentionKernels::simple;
  throw ValueError("attention", "SASH_ATTENTION_KERNEL of hopper, mma or simple", text);
}

void register_attention() {
  kernels::attention_block_rows.set(DeviceType::cuda, attention_block_rows);
  kernels::attention_kept_bytes.set(DeviceType::cuda, kept_bytes);
  register_attention_dropout();
  kernels::attention_forward.set(DeviceType::cuda, attention_forward);
  kernels::attention_backward.set(DeviceType::cuda, attention_backward);
}

}  // namespace sash::cuda
