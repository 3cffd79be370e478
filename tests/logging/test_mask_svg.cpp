// Masks as SVG figures.
#include <fstream>
#include <iterator>
#include <string>

#include <doctest/doctest.h>

#include <sash/ops/attention/mask/mask_picture.h>
#include <sash/optim/logging/mask_svg.h>

#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using sash::AttentionMask;
using sash::optim::mask_svg;
using sash::optim::save_mask_svg;

namespace {

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t count(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

}  // namespace

TEST_CASE("an SVG picture holds a rectangle for each run of equal cells") {
  const TemporaryFolder folder;
  const std::string path = folder.file("mask.svg");
  const AttentionMask mask = AttentionMask::window(1, 0) & AttentionMask::sinks(2);
  save_mask_svg(path, mask, 4, 4);
  CHECK(folder.count() == 1);
  const std::string text = content(path);
  CHECK(text == mask_svg(mask, 4, 4));
  CHECK(text.find(" &amp; ") != std::string::npos);
  CHECK(text.find(" & ") == std::string::npos);
  // Query 0 sees key 0, query 1 keys 0 and 1, query 2 key 1, query 3 none.
  CHECK(text.find("d=\"M0 0h1v1h-1zM0 1h2v1h-2zM1 2h1v1h-1z\"") != std::string::npos);
  // Cells of 2 x 2 pairs: three quarters of those on the diagonal are visible, none to its right.
  const std::string causal = mask_svg(AttentionMask::causal(), 256, 256);
  CHECK(count(causal, "v1h-") == 128 + 127);
  CHECK(causal.find("M127 127h1v1h-1z") != std::string::npos);
}

TEST_CASE("a failed SVG write leaves no file") {
  const TemporaryFolder folder;
  const std::string path = folder.file("missing/mask.svg");
  sash::testing::expect_error<sash::IoError>(
      "plot::save: cannot create '" + path + "': No such file or directory",
      [&] { save_mask_svg(path, AttentionMask::causal(), 4, 4); });
  CHECK(folder.count() == 0);
}
