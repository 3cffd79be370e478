#include <cstdio>
#include <string>

#include <sash/core/readable.h>
#include <sash/ops/attention/mask/mask_picture.h>
#include <sash/ops/attention/mask/mask_statistics.h>
#include <sash/optim/logging/mask_svg.h>

#include "commands.h"

namespace {

constexpr int64_t kMostDrawn = 4096;  // tokens

// What a cache holds under a mask that hides later keys.
std::string held(const sash::CausalReach& reach) {
  if (!reach.recent) return "all tokens";
  const std::string last = "the last " + sash::grouped(*reach.recent) + " tokens";
  if (reach.first == 0) return last;
  return "the first " + (reach.first == 1 ? "" : sash::grouped(reach.first) + " ") + "and " + last;
}

std::string caches(const sash::AttentionMask& mask) {
  if (const auto reach = mask.causal_reach()) return "hold " + held(*reach);
  const auto reach = (sash::AttentionMask::causal() & mask).causal_reach();
  if (!reach) return "cannot be used: what a query sees depends on more than positions";
  return "hold " + held(*reach) +
         " in decoders, which hide later keys; alone, this mask shows some";
}

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
  std::printf("caches   %s\n", caches(mask).c_str());
  if (!choice.svg.empty()) std::printf("drawn to %s\n", choice.svg.c_str());
}
