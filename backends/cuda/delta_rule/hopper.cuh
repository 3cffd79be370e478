#pragma once

#include "mma_gradients.cuh"

/// The chains of states on Hopper, by wgmma and TMA.
namespace sash::cuda::delta {

bool hopper_takes(const KernelContext& context, const Inputs& x);

/// `Arrays::run_log2` of a call with a decay for each head.
int hopper_run_log2(const KernelContext& context, const Inputs& x);

/// Out and the states after the last chunks, and what the call has memory for of the states and w.
template <int kWidth>
void hopper_forward(const KernelContext& context, const Inputs& x, const Call& call, View out,
                    View state);

/// The gradients of states and u. `g_out` is that of `to`.
template <int kWidth>
void hopper_dstates(const KernelContext& context, const Inputs& x, const Call& call, View g_out,
                    const Results& to);

/// What `run_gradients` does, with a decay for each head.
template <int kWidth>
void hopper_gradients(const KernelContext& context, const Inputs& x, const Call& call, View g_out,
                      const Results& to);

}  // namespace sash::cuda::delta
