#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <sash/ops/attention/mask/mask_picture.h>
#include <sash/tensor/factories.h>

#include "../support/expect_error.h"

using sash::AttentionMask;

TEST_CASE("a picture has a character for each pair") {
  const AttentionMask mask = AttentionMask::causal_window(3) | AttentionMask::sinks(1);
  CHECK(mask_picture(mask, 8, 8) ==
        "#       \n"
        "##      \n"
        "###     \n"
        "####    \n"
        "# ###   \n"
        "#  ###  \n"
        "#   ### \n"
        "#    ###\n");
  // Two queries that stand at the last two of seven keys.
  CHECK(mask_picture(AttentionMask::window(1, 0), 2, 7) ==
        "    ## \n"
        "     ##\n");
}

TEST_CASE("a picture's cells show the visible share of their pairs") {
  // Cells of 2 x 2 pairs. Those at the edges are smaller, and whole if all their pairs are visible.
  CHECK(mask_picture(AttentionMask::causal(), 7, 7, 4) ==
        "+   \n"
        "#+  \n"
        "##+ \n"
        "####\n");
  // Every third of a cell of 3 x 3 pairs: 0, 1, 2, 3, 6, 8 and 9 of 9.
  std::vector<bool> pairs;
  for (const int shown : {0, 1, 2, 3, 6, 8, 9}) {
    for (int i = 0; i < 9; ++i) pairs.push_back(i < shown);
  }
  const sash::Tensor cells = sash::tensor(pairs, {7, 3, 3}).transpose(0, 1).contiguous();
  CHECK(mask_picture(AttentionMask(cells.view({3, 21})), 3, 21, 7) == " ..:++#\n");
}

TEST_CASE("a picture looks at the first head only") {
  const std::vector<int64_t> dilations(10000, 2);  // the pairs of all heads would take 168 GB
  CHECK(mask_picture(AttentionMask::dilated_window(3, 0, dilations), 4096, 4096, 16) ==
        mask_picture(AttentionMask::dilated_window(3, 0, 2), 4096, 4096, 16));
}

TEST_CASE("a picture's lengths are limited") {
  const AttentionMask mask = AttentionMask::causal();
  CHECK(mask_picture(mask, 4096, 4096).size() == 64 * 65);
  sash::testing::expect_error<sash::ValueError>(
      "mask_picture: expected lengths in [1, 4096], got 4097",
      [&] { mask_picture(mask, 1, 4097); });
  sash::testing::expect_error<sash::ValueError>("mask_shares: expected lengths in [1, 4096], got 0",
                                                [&] { mask_shares(mask, 0, 4); });
  sash::testing::expect_error<sash::ValueError>(
      "mask_picture: expected a width of at least 1, got 0", [&] { mask_picture(mask, 4, 4, 0); });
}

// A block "```mask" holds a line "QUERIES x KEYS: MASK" and the picture, without spaces at line
// ends.
TEST_CASE("the pictures in docs/attention.md are those of their masks") {
  std::ifstream page(SASH_SOURCE_DIR "/docs/attention.md");
  int pictures = 0;
  for (std::string line; std::getline(page, line);) {
    if (line != "```mask") continue;
    int64_t queries = 0, keys = 0;
    char by = 0, colon = 0;
    std::string spec, shown;
    page >> queries >> by >> keys >> colon >> std::ws;
    std::getline(page, spec);
    while (std::getline(page, line) && line != "```") shown += line + '\n';
    std::string wanted;
    std::istringstream rows(mask_picture(AttentionMask::parse(spec), queries, keys));
    while (std::getline(rows, line))
      wanted += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
    CAPTURE(spec);
    CHECK(shown == wanted);
    ++pictures;
  }
  CHECK(pictures >= 5);
}
