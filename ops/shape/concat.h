#pragma once

#include <vector>

#include "../../tensor/tensor.h"

namespace sash {

/// The tensors one after the other along `axis`, in the dtype that `promote_types` gives for all of
/// them. They agree in device and every other extent: throws `DeviceError` or `ShapeError`;
/// `ValueError` for an empty list.
SASH_API Tensor cat(const std::vector<Tensor>& tensors, int64_t axis = 0);

/// The tensors, all of one shape, one after the other along a new axis.
SASH_API Tensor stack(const std::vector<Tensor>& tensors, int64_t axis = 0);

/// Views of consecutive pieces along `axis`, of the given lengths. `ShapeError` unless they are
/// not negative and add up to the extent.
SASH_API std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& lengths,
                                   int64_t axis = 0);

/// Views of consecutive pieces of `length` along `axis`; the last one may be shorter. `ValueError`
/// unless length >= 1.
SASH_API std::vector<Tensor> split(const Tensor& x, int64_t length, int64_t axis = 0);

/// At most `count` views of equal length along `axis`; the last one may be shorter. `ValueError`
/// unless count >= 1.
SASH_API std::vector<Tensor> chunk(const Tensor& x, int64_t count, int64_t axis = 0);

}  // namespace sash
