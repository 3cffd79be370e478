#pragma once

#include "mma_gradients.cuh"

/// The chains of states on Hopper, by wgmma and TMA.
namespace sash::cuda::delta {

bool hopper_takes(const KernelContext& context, const Inputs& x);

/// Prepares all chunks, then out and the states after the last chunks, and what `arrays` has memory
/// for of the states and u.
template <int kWidth>
void hopper_forward(const KernelContext& context, const Inputs& x,
                    const PreparedMemory<kWidth>& prepared, const Arrays& arrays, View out,
                    View state);

/// Prepares all chunks, then the gradients of states and u. `g_out` is that of `to`.
template <int kWidth>
void hopper_dstates(const KernelContext& context, const Inputs& x,
                    const PreparedMemory<kWidth>& prepared, const Arrays& arrays, View g_out,
                    const Results& to);

}  // namespace sash::cuda::delta
