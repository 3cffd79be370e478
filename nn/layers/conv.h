#pragma once

#include "../../ops/conv/conv.h"
#include "../module.h"

namespace sash::nn {

/// `sash::Conv1dOptions`, and whether there is a bias.
struct Conv1dOptions {
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

/// `sash::Conv2dOptions`, and whether there is a bias.
struct Conv2dOptions {
  HeightWidth stride = 1;
  HeightWidth padding = 0;
  HeightWidth dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

/// `sash::ConvTranspose2dOptions`, and whether there is a bias.
struct ConvTranspose2dOptions {
  HeightWidth stride = 1;
  HeightWidth padding = 0;
  HeightWidth output_padding = 0;
  HeightWidth dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

/// What convolutions share: the parameters.
class SASH_API Convolution : public Module {
 public:
  std::string describe() const override;

  Tensor weight;
  Tensor bias;  ///< undefined without one

 protected:
  /// `ValueError` unless channels and kernel are positive, and groups divide the channels.
  Convolution(const char* name, int64_t in_channels, int64_t out_channels, const Shape& kernel,
              int64_t groups, bool has_bias, bool transposed = false);

 private:
  int64_t groups_;
  bool transposed_;
};

/// `conv1d` of x [N, C, L] or [C, L] with weight [O, C / groups, K].
///
/// Parameters: `weight` and `bias` [O], both U(-a, a) at first with a = 1 / sqrt(C / groups K).
class SASH_API Conv1d : public Convolution {
 public:
  using Options = Conv1dOptions;

  Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel, Conv1dOptions options = {});

  Tensor forward(const Tensor& x) override;

 private:
  sash::Conv1dOptions options_;
};

/// `conv2d` of x [N, C, H, W] or [C, H, W] with weight [O, C / groups, KH, KW]; parameters as for
/// Conv1d.
class SASH_API Conv2d : public Convolution {
 public:
  using Options = Conv2dOptions;

  Conv2d(int64_t in_channels, int64_t out_channels, HeightWidth kernel, Conv2dOptions options = {});

  Tensor forward(const Tensor& x) override;

 private:
  sash::Conv2dOptions options_;
};

/// `conv_transpose2d` of x [N, C, H, W] or [C, H, W] with weight [C, O / groups, KH, KW].
///
/// Parameters: `weight` and `bias` [O], both U(-a, a) at first with a = 1 / sqrt(O / groups KH KW).
class SASH_API ConvTranspose2d : public Convolution {
 public:
  using Options = ConvTranspose2dOptions;

  ConvTranspose2d(int64_t in_channels, int64_t out_channels, HeightWidth kernel,
                  ConvTranspose2dOptions options = {});

  Tensor forward(const Tensor& x) override;

 private:
  sash::ConvTranspose2dOptions options_;
};

}  // namespace sash::nn
