#include "mask_svg.h"

#include <algorithm>

#include "../../ops/attention/mask/mask_picture.h"
#include "plot.h"

namespace sash::optim {

std::string mask_svg(const AttentionMask& mask, int64_t queries, int64_t keys) {
  constexpr int64_t kCells = 128;  // along the longer side
  return plot::heat_map(mask_shares(mask, queries, keys, kCells),
                        {.title = mask.to_string(),
                         .x = {.label = "key"},
                         .y = {.label = "query"},
                         .value = "visible",
                         .low = 0,
                         .high = 1,
                         .cell = (std::max(queries, keys) + kCells - 1) / kCells});
}

void save_mask_svg(const std::string& path, const AttentionMask& mask, int64_t queries,
                   int64_t keys) {
  plot::save(path, mask_svg(mask, queries, keys));
}

}  // namespace sash::optim
