#pragma once

#include "../../ops/conv/interpolate.h"
#include "../../ops/conv/pool.h"
#include "../module.h"

/// Pools and other changes of an image's size as modules, for `Sequential`.
namespace sash::nn {

/// A pool with windows of size `kernel`, computed by `function(x, kernel, options)`.
template <class Kernel, class PoolOptions, auto function>
class Pool : public Module {
 public:
  using Options = PoolOptions;

  explicit Pool(Kernel kernel, const PoolOptions& options = {})
      : kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) override { return function(x, kernel_, options_); }

 private:
  Kernel kernel_;
  PoolOptions options_;
};

/// `max_pool1d`: the largest element of each window of x [N, C, L] or [C, L].
class SASH_API MaxPool1d : public Pool<int64_t, Pool1dOptions, max_pool1d> {
  using Pool::Pool;
};

/// `max_pool2d`: the largest element of each window of x [N, C, H, W] or [C, H, W].
class SASH_API MaxPool2d : public Pool<HeightWidth, Pool2dOptions, max_pool2d> {
  using Pool::Pool;
};

/// `avg_pool1d`: the mean of each window of x [N, C, L] or [C, L].
class SASH_API AvgPool1d : public Pool<int64_t, Pool1dOptions, avg_pool1d> {
  using Pool::Pool;
};

/// `avg_pool2d`: the mean of each window of x [N, C, H, W] or [C, H, W].
class SASH_API AvgPool2d : public Pool<HeightWidth, Pool2dOptions, avg_pool2d> {
  using Pool::Pool;
};

/// `adaptive_avg_pool2d`: the means of `size` parts of x [N, C, H, W] or [C, H, W].
class SASH_API AdaptiveAvgPool2d : public Module {
 public:
  explicit AdaptiveAvgPool2d(HeightWidth size) : size_(size) {}

  Tensor forward(const Tensor& x) override { return adaptive_avg_pool2d(x, size_); }

 private:
  HeightWidth size_;
};

/// `interpolate`: x [N, C, H, W] at another size.
class SASH_API Upsample : public Module {
 public:
  using Options = InterpolateOptions;

  explicit Upsample(const InterpolateOptions& options) : options_(options) {}

  Tensor forward(const Tensor& x) override { return interpolate(x, options_); }

 private:
  InterpolateOptions options_;
};

}  // namespace sash::nn
