#include <cstdio>

#include <sash/core/readable.h>
#include <sash/ops/attention/mask/mask_picture.h>
#include <sash/ops/attention/mask/mask_statistics.h>
#include <sash/optim/logging/mask_svg.h>

#include "commands.h"

namespace {

constexpr int64_t kMostDrawn = 4096;  // tokens

double percent(double part, double all) { return all > 0 ? 100 * part / all : 0; }

}  // namespace

void print_mask(const MaskChoice& choice) {
  const auto mask = sash::AttentionMask::parse(choice.mask);
  const int64_t n = choice.tokens;
  if (!choice.svg.empty()) sash::optim::save_mask_svg(choice.svg, mask, n, n);
  const sash::MaskStatistics counts = sash::mask_statistics(mask, n, n);
  if (n <= kMostDrawn) std::printf("%s\n", sash::mask_picture(mask, n, n).c_str());
  const auto tokens = static_cast<double>(n), visible = static_cast<double>(counts.visible_pairs);
  std::printf("%s, %lld tokens\n", mask.to_string().c_str(), static_cast<long long>(n));
  std::printf("visible  %s of %s pairs (%.2f %%), %.1f keys a query\n",
              sash::grouped(counts.visible_pairs).c_str(),
              sash::with_prefix(tokens * tokens).c_str(), percent(visible, tokens * tokens),
              visible / tokens);
  std::printf("work     %s of %s blocks of 64 x 64 (%.2f %%), %s of them full\n",
              sash::grouped(counts.listed_blocks).c_str(), sash::grouped(counts.all_blocks).c_str(),
              100 * counts.share_of_dense(), sash::grouped(counts.full_blocks).c_str());
  std::printf("caches   %s\n", mask.causal_reach()
                                   ? "keys and values can be cached: no query sees a later key"
                                   : "keys and values cannot be cached: a query sees later keys, "
                                     "or lengths matter");
  if (!choice.svg.empty()) std::printf("drawn to %s\n", choice.svg.c_str());
}
