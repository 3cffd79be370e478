#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "../../ops/attention/exact/rotary.h"

/// Rotary positions: the angles by which `rotary` rotates queries and keys.
namespace sash::nn {

/// How frequencies are changed for contexts longer than those of training.
enum class RotaryScalingKind {
  none,
  linear,       ///< all divided by factor (Chen et al., "Positional interpolation", 2023)
  ntk,          ///< theta times factor^(dim / (dim - 2)) ("NTK-aware")
  dynamic_ntk,  ///< the same with a factor that grows from 1 with the length beyond
                ///< original_context: factor length / original_context - (factor - 1)
  llama3,       ///< long wavelengths divided by factor, short ones kept, smooth in between
  yarn,     ///< the same by a ramp, and a factor of cos and sin (Peng et al., "YaRN", ICLR 2024)
  longrope  ///< each divided by its own factor (Ding et al., "LongRoPE", ICML 2024)
};

struct RotaryScaling {
  RotaryScalingKind kind = RotaryScalingKind::none;
  double factor = 1;
  int64_t original_context = 0;  ///< length of training: all kinds but linear and ntk need it
  double low_freq_factor = 1;    ///< llama3
  double high_freq_factor = 4;   ///< llama3
  double beta_fast = 32;         ///< yarn
  double beta_slow = 1;          ///< yarn
  bool truncate = true;          ///< yarn: whether the ramp begins and ends at whole dimensions
  /// Of cos and sin. By default 1; 0.1 ln(factor) + 1 for yarn; sqrt(1 + ln(factor) /
  /// ln(original_context)) for longrope.
  std::optional<double> attention_factor{};
  std::vector<double> short_factor{};  ///< longrope, [dim / 2]: lengths up to original_context
  std::vector<double> long_factor{};   ///< longrope, [dim / 2]: longer ones
};

struct RotaryOptions {
  double theta = 10000;
  int64_t dim = 0;  ///< features of a head that are rotated, the first ones; 0 means all
  RotaryLayout layout = RotaryLayout::half_split;
  RotaryScaling scaling{};
};

/// Angles per position, and the factor of their cosines and sines.
struct RotaryFrequencies {
  std::vector<double> frequency;  ///< [dim / 2]: theta^(-2 i / dim) unless scaled
  double attention_factor;
};

/// Frequencies of `dim` features (even) for a text of `length` tokens, which only dynamic_ntk and
/// longrope look at. `ValueError` for an odd dim or options that do not fit.
SASH_API RotaryFrequencies rotary_frequencies(const RotaryOptions& options, int64_t dim,
                                              int64_t length = 0);

/// Cosines and sines of the angles at each position, cached between calls. Angles are rounded to
/// float32 before their cosine is taken, as in the training of the models, unless in float64.
class SASH_API RotaryTable {
 public:
  /// For heads of `head_dim` features. `ValueError` as `rotary_frequencies`.
  RotaryTable(const RotaryOptions& options, int64_t head_dim);

  /// For the positions [first, first + count), float32, or float64 for `dtype` float64.
  RotaryAngles angles(int64_t first, int64_t count, DType dtype, Device device);
  /// The same for positions [S] or [B, S] int64, computed on their device. If frequencies depend on
  /// the length, the largest position is copied to the host.
  RotaryAngles angles(const Tensor& positions, DType dtype);

  RotaryLayout layout() const { return options_.layout; }
  /// Whether frequencies depend on the length of the text: dynamic_ntk and longrope.
  bool depends_on_length() const;

 private:
  RotaryOptions options_;
  int64_t dim_;
  RotaryFrequencies frequencies_;  // that the table has
  RotaryAngles table_{};           // of the positions from 0 on
  Tensor on_device_{};             // frequencies of the last positions that a tensor named
};

}  // namespace sash::nn
