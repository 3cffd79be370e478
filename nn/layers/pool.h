#pragma once

#include "../../ops/conv/pool.h"
#include "../module.h"

/// Pools as modules, for `Sequential`; each is the op of the same name.
namespace sash::nn {

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
