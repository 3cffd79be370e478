#pragma once

#include "../../ops/conv/pool.h"
#include "../module.h"

/// Pools as modules, for `Sequential`; each is the op of the same name.
namespace sash::nn {

/// `max_pool1d`: the largest element of each window of x [N, C, L] or [C, L].
class SASH_API MaxPool1d : public Module {
 public:
  using Options = Pool1dOptions;

  explicit MaxPool1d(int64_t kernel, Pool1dOptions options = {})
      : kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) override;

 private:
  int64_t kernel_;
  Pool1dOptions options_;
};

/// `max_pool2d`: the largest element of each window of x [N, C, H, W] or [C, H, W].
class SASH_API MaxPool2d : public Module {
 public:
  using Options = Pool2dOptions;

  explicit MaxPool2d(HeightWidth kernel, Pool2dOptions options = {})
      : kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) override;

 private:
  HeightWidth kernel_;
  Pool2dOptions options_;
};

/// `avg_pool1d`: the mean of each window of x [N, C, L] or [C, L].
class SASH_API AvgPool1d : public Module {
 public:
  using Options = Pool1dOptions;

  explicit AvgPool1d(int64_t kernel, Pool1dOptions options = {})
      : kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) override;

 private:
  int64_t kernel_;
  Pool1dOptions options_;
};

/// `avg_pool2d`: the mean of each window of x [N, C, H, W] or [C, H, W].
class SASH_API AvgPool2d : public Module {
 public:
  using Options = Pool2dOptions;

  explicit AvgPool2d(HeightWidth kernel, Pool2dOptions options = {})
      : kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) override;

 private:
  HeightWidth kernel_;
  Pool2dOptions options_;
};

}  // namespace sash::nn
