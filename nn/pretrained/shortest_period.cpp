#include <algorithm>

#include "config_json.h"

namespace sash::nn {

std::vector<LayerAttention> shortest_period(const std::vector<bool>& windowed,
                                            const LayerAttention& window,
                                            const LayerAttention& full) {
  size_t period = 1;
  const auto repeats = [&] {
    for (size_t i = period; i < windowed.size(); ++i) {
      if (windowed[i] != windowed[i - period]) return false;
    }
    return true;
  };
  while (period < windowed.size() && !repeats()) ++period;
  std::vector<LayerAttention> layers;
  for (size_t i = 0; i < std::min(period, windowed.size()); ++i) {
    layers.push_back(windowed[i] ? window : full);
  }
  return layers;
}

}  // namespace sash::nn
