#pragma once

#include "mma_memory.cuh"

namespace sash::cuda::delta {

/// What the kernels of the backward pass read and write besides.
struct Results {
  /// `g_out` is on 16-byte boundaries. `parts`: memory for dq and dk of value heads that share a
  /// head of keys, or null.
  Results(const Gradients& grads, View g_out, float* parts_memory)
      : g(rows_of<const Half>(g_out)),
        g_state(grads.g_state ? grads.g_state->ptr<const float>() : nullptr),
        dq(grads.dq.ptr<Half>()),
        dk(grads.dk.ptr<Half>()),
        dv(grads.dv.ptr<Half>()),
        dg(grads.dg ? grads.dg->ptr<float>() : nullptr),
        dbeta(grads.dbeta ? grads.dbeta->ptr<float>() : nullptr),
        dinitial(grads.dinitial.ptr<float>()),
        parts(parts_memory),
        part_size(grads.g_out.numel() / grads.g_out.shape[3] * grads.dq.shape[3]) {}

  Rows<const Half> g;
  const float* g_state;
  Half *dq, *dk, *dv;
  float *dg, *dbeta, *dinitial;
  float* parts;  ///< two of [B, H_v, S, D]
  int64_t part_size;
};

/// dq, dk, dv, dg and dbeta of all chunks, from the states before and the gradients of states after
/// them.
template <int kWidth>
void run_gradients(const KernelContext& context, const Call& call, const Results& to);

/// Adds the parts of dq and dk of value heads that share a head of keys, if there are any.
void join_parts(const KernelContext& context, const Call& call, const Results& to);

/// Bytes of shared memory that `run_gradients` takes, and that suffice for the chains of `mma`.
int gradient_bytes(const Inputs& x);

}  // namespace sash::cuda::delta
