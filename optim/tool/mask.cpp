#include <algorithm>
#include <cstdio>
#include <string>

#include <sash/core/readable.h>
#include <sash/ops/attention/mask/mask_picture.h>
#include <sash/ops/attention/mask/mask_statistics.h>
#include <sash/optim/logging/mask_svg.h>

#include "../../examples/support/program.h"
#include "commands.h"

namespace {

constexpr int64_t kMostDrawn = 4096;  // tokens
constexpr int kPictureWidth = 64;     // columns

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
  if (n <= kMostDrawn) {
    const int64_t width = std::min(kPictureWidth, terminal_columns(kPictureWidth));
    std::printf("%s\n", sash::mask_picture(mask, n, n, width).c_str());
  }
  const int64_t side = (n + 63) / 64, heads = counts.all_blocks / (side * side);
  const double queries = static_cast<double>(n) * static_cast<double>(heads);
  const double pairs = queries * static_cast<double>(n);
  const auto visible = static_cast<double>(counts.visible_pairs);
  const auto fixed = [](double value, int digits) {
    return sash::to_text(value, std::chars_format::fixed, digits);
  };
  print_line(mask.to_string() + ", " + std::to_string(n) + " tokens" +
             (heads > 1 ? ", " + sash::grouped(heads) + " heads" : ""));
  print_line("visible  " + sash::grouped(counts.visible_pairs) + " of " + sash::with_prefix(pairs) +
             " pairs (" + fixed(percent(visible, pairs), 2) + " %), " +
             fixed(visible / queries, 1) + " keys a query");
  print_line("work     " + sash::grouped(counts.listed_blocks) + " of " +
             sash::grouped(counts.all_blocks) + " blocks of 64 x 64 (" +
             fixed(100 * counts.share_of_dense(), 2) + " %), " + sash::grouped(counts.full_blocks) +
             " of them full");
  print_line("caches   " + caches(mask));
  if (!choice.svg.empty()) print_line("drawn to " + choice.svg);
}
