#pragma once

#include "../../tensor/kernels/view.h"

/// Rows of a table by int64 index [N]. All views are contiguous.
namespace sash::kernels {

/// y[n] = weight[index[n]]: weight is [V, D], y [N, D]; any dtype.
extern SASH_API Kernel<void(KernelContext&, View weight, View index, View y)> embedding_forward;

/// dweight[v] = sum of g[n] over index[n] == v, in the order of n: g is [N, D], dweight [V, D];
/// floating.
extern SASH_API Kernel<void(KernelContext&, View g, View index, View dweight)> embedding_backward;

// Indexing along one axis by an int64 tensor, where negative indices count from the end. All views
// have one rank (at least 1), any strides; those of the index may be 0.

/// y[i][j][k] = x[i][index[i][j][k]][k] for axis 1, likewise for others. y has the index's shape,
/// which x covers on every other axis; any dtype.
extern SASH_API Kernel<void(KernelContext&, View x, View index, View y, int axis)> gather;

/// y[i][index[i][j][k]][k] += src[i][j][k] for axis 1, likewise for others, adding in the order of
/// j. src has the index's shape, which y covers on every other axis; floating, int32 or
/// int64.
extern SASH_API Kernel<void(KernelContext&, View y, View index, View src, int axis)> scatter_add;

/// y[i][index[i][j][k]][k] = src[i][j][k]. Of several j for one place, the last stays. Views as for
/// `scatter_add`; any dtype.
extern SASH_API Kernel<void(KernelContext&, View y, View index, View src, int axis)> scatter;

/// places = all i with mask[i], ascending. mask is bool [N]; places is int64, with an element for
/// each such i. Both are contiguous.
extern SASH_API Kernel<void(KernelContext&, View mask, View places)> true_places;

/// values[i], indices[i] (int64) = the i-th largest (smallest, unless `largest`) element along one
/// axis and its place, for as many as that axis has in `values`. NaN is the largest, ties take the
/// lowest place first; any strides.
extern SASH_API
    Kernel<void(KernelContext&, View x, View values, View indices, int axis, bool largest)>
        topk;

/// y (int64) = index of the lower median along one axis, where y has extent 1: of equal elements
/// the one that a stable sort puts there, of the first NaN if there is one. Floating, int32 and
/// int64.
extern SASH_API Kernel<void(KernelContext&, View x, View y, int axis)> median;

}  // namespace sash::kernels
