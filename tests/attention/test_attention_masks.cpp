// Masks: visible pairs, block maps, wrong calls.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <sash/ops/attention/mask/block_map_cache.h>
#include <sash/sash.h>

#include "../support/attention/mask_kinds.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

MaskShape random_shape(RandomNumbers& random, bool square) {
  const std::vector<int64_t> lengths{1, 2, 5, 17, 48, 63, 64, 65, 96, 127, 130, 200};
  const auto pick = [&] { return lengths[random.below(lengths.size())]; };
  MaskShape shape;
  shape.batch = 1 + static_cast<int64_t>(random.below(3));
  shape.heads = 1 + static_cast<int64_t>(random.below(3));
  shape.queries = pick();
  shape.keys = square ? shape.queries : pick();
  return shape;
}

// Every pair of a mask's kinds `a` and `b` joined, and each alone, with `rounds` random settings.
template <class F>
void for_each_mask(int rounds, Device device, F f) {
  RandomNumbers random(11);
  const std::vector<MaskKind>& kinds = mask_kinds();
  for (int round = 0; round < rounds; ++round) {
    for (size_t a = 0; a < kinds.size(); ++a) {
      for (size_t b = a; b < kinds.size(); ++b) {
        const MaskShape shape = random_shape(random, kinds[a].square || kinds[b].square);
        const NamedMask first = kinds[a].make(random, shape, device);
        const NamedMask second = kinds[b].make(random, shape, device);
        if (a == b) f(first, shape);
        f(both(first, second), shape);
        f(either(first, second), shape);
      }
    }
  }
}

// The pairs that a map lists, as [B, H, S_q, S_k] of 0 and 1.
std::vector<double> listed(const kernels::BlockMap& map, const MaskShape& s, bool transposed) {
  std::vector<double> seen(static_cast<size_t>(s.batch * s.heads * s.queries * s.keys));
  const int64_t blocks = transposed ? map.key_blocks : map.query_blocks;
  const kernels::BlockList& list = transposed ? map.by_key : map.by_query;
  for (int64_t head = 0; head < s.batch * s.heads; ++head) {
    for (int64_t row = 0; row < blocks; ++row) {
      const int64_t at = map.first_row(head / s.heads, head % s.heads, blocks) + row;
      const kernels::BlockRow& runs = list.rows[at];
      for (int32_t e = 0; e < runs.size(); ++e) {
        const int32_t block = list.block_of(runs, e), tile = list.tile_of(runs, e);
        CHECK((tile < 0) == (e >= runs.partial.count));
        const bool ascends =
            e == 0 || e == runs.partial.count || list.block_of(runs, e - 1) < block;
        CHECK(ascends);
        const int64_t m = transposed ? block : row, n = transposed ? row : block;
        for (int64_t i = 0; i < map.query_rows; ++i) {
          for (int64_t j = 0; j < kernels::kBlockKeys; ++j) {
            const int64_t query = m * map.query_rows + i, key = n * kernels::kBlockKeys + j;
            bool visible = tile < 0;
            if (tile >= 0 && !transposed) visible = map.bits[tile * map.query_rows + i] >> j & 1;
            if (tile >= 0 && transposed) {
              const int64_t word = (tile * kernels::kBlockKeys + j) * map.words_per_key + i / 64;
              visible = map.key_bits[word] >> (i % 64) & 1;
            }
            if (tile < 0) CHECK(key < s.keys);
            if (visible && query < s.queries) {
              REQUIRE(key < s.keys);
              seen[static_cast<size_t>((head * s.queries + query) * s.keys + key)] += 1;
            }
          }
        }
      }
    }
  }
  return seen;
}

Tensor int32s(const std::vector<int32_t>& values) {
  return tensor(values, {static_cast<int64_t>(values.size())});
}

}  // namespace

TEST_CASE("masks match their definitions, alone and combined") {
  int compared = 0;
  for_each_mask(2, kCPU, [&](const NamedMask& mask, const MaskShape& s) {
    CAPTURE(mask.name);
    CAPTURE(mask.mask.to_string());
    const Tensor dense = mask.mask.to_dense(s).expand({s.batch, s.heads, s.queries, s.keys});
    CHECK(dense.to_vector<double>() == defined(mask, s));
    ++compared;
  });
  CHECK(compared == 2 * (16 + 2 * 136));
}

namespace {

/// The blocks of a row, in the order of its entries.
std::vector<int32_t> blocks_of(const kernels::BlockList& list, int64_t row) {
  std::vector<int32_t> blocks;
  for (int32_t i = 0; i < list.rows[row].size(); ++i) {
    blocks.push_back(list.block_of(list.rows[row], i));
  }
  return blocks;
}

/// Whether the blocks of each row have no gaps between them.
bool without_gaps(const kernels::BlockList& list, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<int32_t> blocks = blocks_of(list, row);
    if (blocks.empty()) continue;
    const auto [low, high] = std::minmax_element(blocks.begin(), blocks.end());
    if (*high - *low + 1 != std::ssize(blocks)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("block maps list each visible pair once, in both directions") {
  RandomNumbers random(3);
  for_each_mask(1, kCPU, [&](const NamedMask& mask, const MaskShape& s) {
    const std::vector<int64_t> sizes{1, 24, 48, 64, 128};
    const int64_t rows = sizes[random.below(sizes.size())];
    CAPTURE(mask.mask.to_string());
    CAPTURE(rows);
    const auto blocks = cached_block_map(mask.mask.shared_term(), s, rows, kCPU);
    const std::vector<double> expected = defined(mask, s);
    CHECK(listed(blocks->map, s, false) == expected);
    CHECK(listed(blocks->map, s, true) == expected);
    const kernels::BlockMap& map = blocks->map;
    const int64_t heads = map.batches * map.heads;
    CHECK(map.by_query.contiguous == without_gaps(map.by_query, heads * map.query_blocks));
    CHECK(map.by_key.contiguous == without_gaps(map.by_key, heads * map.key_blocks));
    const double pairs = std::accumulate(expected.begin(), expected.end(), 0.0);
    CHECK(static_cast<double>(mask_statistics(mask.mask, s).visible_pairs) == pairs);
  });
}

TEST_CASE("a window lists as many blocks as the formula says") {
  // A block of 64 queries meets the blocks of 64 keys that reach from 64 m - left to
  // 64 m + 63 + right.
  for (const auto& sides : std::vector<std::pair<int64_t, int64_t>>{
           {0, 0}, {1, 0}, {63, 0}, {64, 0}, {65, 0}, {128, 128}, {256, 0}, {100, 7}, {5000, 0}}) {
    const int64_t left = sides.first, right = sides.second, length = 4096, blocks = length / 64;
    int64_t expected = 0, whole = 0;
    for (int64_t m = 0; m < blocks; ++m) {
      const int64_t first = std::max<int64_t>(64 * m - left, 0) / 64;
      const int64_t last = std::min(64 * m + 63 + right, length - 1) / 64;
      expected += last - first + 1;
      for (int64_t n = first; n <= last; ++n) {
        whole += 64 * n >= 64 * m + 63 - left && 64 * n + 63 <= 64 * m + right;
      }
    }
    const MaskStatistics found =
        mask_statistics(AttentionMask::window(left, right), length, length);
    INFO(left, ", ", right);
    CHECK(found.listed_blocks == expected);
    CHECK(found.full_blocks == whole);
    CHECK(found.all_blocks == blocks * blocks);
  }
}

TEST_CASE("a long window compiles to a handful of bit tiles, and equal masks to one map") {
  const MaskShape shape{1, 1, 1 << 17, 1 << 17};
  const auto blocks =
      cached_block_map(AttentionMask::window(256, 256).shared_term(), shape, 64, kCPU);
  CHECK(blocks->words.numel() <= 4 * 2 * 64);
  CHECK(cached_block_map(AttentionMask::symmetric_window(256).shared_term(), shape, 64, kCPU) ==
        blocks);
  CHECK(cached_block_map(AttentionMask::symmetric_window(255).shared_term(), shape, 64, kCPU) !=
        blocks);
  CHECK(mask_statistics(AttentionMask::window(256, 256), 1 << 17, 1 << 17).visible_pairs ==
        (int64_t{1} << 17) * 513 - 256 * 257);
}

namespace {

/// The bits of a row's tiles, one after the other.
std::vector<uint64_t> bits_of_row(const kernels::BlockMap& map, bool transposed, int64_t row) {
  const kernels::BlockList& list = transposed ? map.by_key : map.by_query;
  const int64_t words = transposed ? kernels::kBlockKeys * map.words_per_key : map.query_rows;
  std::vector<uint64_t> bits;
  for (int32_t i = 0; i < list.rows[row].partial.count; ++i) {
    const uint64_t* const tile =
        (transposed ? map.key_bits : map.bits) + list.tile_of(list.rows[row], i) * words;
    bits.insert(bits.end(), tile, tile + words);
  }
  return bits;
}

}  // namespace

TEST_CASE("the map of a window is that of the same mask compiled block by block") {
  RandomNumbers random(17);
  const std::vector<int64_t> sizes{1, 24, 48, 64, 128, 256};
  const auto length = [&] { return static_cast<int64_t>(random.below(1500)); };
  const auto side = [&]() -> std::optional<int64_t> {
    if (random.below(4) == 0) return std::nullopt;
    return static_cast<int64_t>(random.below(random.below(2) == 0 ? 70 : 700));
  };
  for (int round = 0; round < 300; ++round) {
    const MaskShape shape{.batch = 2, .heads = 2, .queries = length(), .keys = length()};
    const int64_t rows = sizes[random.below(sizes.size())];
    AttentionMask window = AttentionMask::window(side(), side());
    if (round % 3 == 1) window = window & AttentionMask::window(side(), side());
    if (round % 3 == 2) window = window | AttentionMask::window(side(), side());
    CAPTURE(window.to_string());
    CAPTURE(rows);
    CAPTURE(shape.queries);
    CAPTURE(shape.keys);
    const AttentionMask other = window | AttentionMask::sinks(0);  // no window: block by block
    const auto found = cached_block_map(window.shared_term(), shape, rows, kCPU);
    const auto expected = cached_block_map(other.shared_term(), shape, rows, kCPU);
    for (const bool transposed : {false, true}) {
      const kernels::BlockList& a = transposed ? found->map.by_key : found->map.by_query;
      const kernels::BlockList& b = transposed ? expected->map.by_key : expected->map.by_query;
      const int64_t count = transposed ? found->map.key_blocks : found->map.query_blocks;
      bool same = true;
      for (int64_t row = 0; row < count; ++row) {
        same =
            same && a.rows[row].partial.count == b.rows[row].partial.count &&
            blocks_of(a, row) == blocks_of(b, row) &&
            bits_of_row(found->map, transposed, row) == bits_of_row(expected->map, transposed, row);
      }
      CHECK(same);
      CHECK(std::equal(a.order, a.order + count, b.order));
      CHECK(a.entries == b.entries);
      CHECK(a.longest == b.longest);
      CHECK(a.long_rows == b.long_rows);
      CHECK(a.short_first == b.short_first);
      CHECK(a.short_last == b.short_last);
      CHECK(a.direction == b.direction);
      CHECK(a.contiguous == b.contiguous);
      CHECK(a.paired == b.paired);
      CHECK(a.scattered == b.scattered);
    }
    CHECK(found->bytes() <= expected->bytes());
  }
}

TEST_CASE("the map of a causal mask over 2^20 tokens has a range for each block row") {
  const MaskShape shape{1, 1, 1 << 20, 1 << 20};
  const auto blocks = cached_block_map(AttentionMask::causal().shared_term(), shape, 64, kCPU);
  constexpr int64_t kRows = 1 << 14;
  CHECK(blocks->map.by_query.entries == kRows * (kRows + 1) / 2);
  CHECK(blocks->map.by_key.entries == kRows * (kRows + 1) / 2);
  CHECK(blocks->bytes() < 1'000'000);
  CHECK(blocks->words.numel() == 2 * 64);
}

TEST_CASE("maps tell which block rows have the same blocks, or few in common") {
  const MaskShape shape{.batch = 1, .heads = 1, .queries = 4096, .keys = 4096};
  enum class Rows { paired, scattered, other };
  const auto rows = [&](const AttentionMask& mask) {
    const auto blocks = cached_block_map(mask.shared_term(), shape, 64, kCPU);
    const kernels::BlockList &a = blocks->map.by_query, &b = blocks->map.by_key;
    CHECK(a.paired == b.paired);
    CHECK(a.scattered == b.scattered);
    CHECK(!(a.paired && a.scattered));
    return a.paired ? Rows::paired : a.scattered ? Rows::scattered : Rows::other;
  };
  CHECK(rows(AttentionMask::random_blocks(3, 1, 128)) == Rows::paired);
  CHECK(rows(AttentionMask::random_blocks(3, 1, 64)) == Rows::scattered);
  CHECK(rows(AttentionMask::random_blocks(40, 1, 64)) == Rows::other);
  CHECK(rows(AttentionMask::causal_window(64) | AttentionMask::random_blocks(1, 1, 64)) ==
        Rows::other);
  for (const AttentionMask& mask :
       {AttentionMask(), AttentionMask::causal(), AttentionMask::causal_window(64)}) {
    CHECK(rows(mask) == Rows::other);
  }
}

TEST_CASE("block rows are scheduled so that the last ones are short") {
  const MaskShape shape{.batch = 1, .heads = 2, .queries = 2048, .keys = 2048};
  const auto order_of = [&](const kernels::BlockList& list) {
    return std::vector<int32_t>(list.order, list.order + 32);
  };
  std::vector<int32_t> up(32);
  std::iota(up.begin(), up.end(), 0);
  const std::vector<int32_t> down(up.rbegin(), up.rend());

  const auto causal = cached_block_map(AttentionMask::causal().shared_term(), shape, 64, kCPU);
  CHECK(order_of(causal->map.by_query) == down);
  CHECK(order_of(causal->map.by_key) == up);
  CHECK(causal->map.by_query.direction == -1);
  CHECK(causal->map.by_key.direction == 1);
  CHECK(causal->map.by_query.longest == 32);
  CHECK(causal->map.by_query.entries == 32 * 33 / 2);
  CHECK(causal->map.by_query.long_rows == 0);
  CHECK(causal->map.by_query.short_first == 0);
  CHECK(causal->map.by_query.short_last == 31);

  const auto window =
      cached_block_map(AttentionMask::symmetric_window(100).shared_term(), shape, 64, kCPU);
  CHECK(order_of(window->map.by_query) == up);
  CHECK(window->map.by_query.short_first == 2);  // a row within the window has five blocks
  CHECK(window->map.by_query.short_last == 2);

  // Queries of block 7 see all keys, and all queries see its keys.
  const AttentionMask global =
      AttentionMask::symmetric_window(100) | AttentionMask::global({7 * 64 + 5});
  const auto tokens = cached_block_map(global.shared_term(), shape, 64, kCPU);
  std::vector<int32_t> seventh = down;  // first 7, then the rest, of which more come after it
  std::rotate(seventh.begin(), std::find(seventh.begin(), seventh.end(), 7),
              std::find(seventh.begin(), seventh.end(), 7) + 1);
  seventh[0] = ~7;  // long
  for (const auto& list : {tokens->map.by_query, tokens->map.by_key}) {
    CHECK(order_of(list) == seventh);
    CHECK(list.long_rows == 1);
    CHECK(list.longest == 32);
    CHECK(list.direction == 0);
    CHECK(list.short_first == 2);
    CHECK(list.short_last == 2);
  }
}

TEST_CASE("bigbird shows its window, global and random blocks") {
  const BigBirdOptions options{.block = 16, .window = 3, .global = 2, .random = 3, .seed = 5};
  const int64_t length = 320, blocks = length / 16;
  const std::vector<double> seen =
      AttentionMask::bigbird(options).to_dense(length, length).to_vector<double>();
  std::set<std::vector<int64_t>> choices;
  for (int64_t m = 0; m < blocks; ++m) {
    std::vector<int64_t> others;
    for (int64_t n = 0; n < blocks; ++n) {
      const auto at = [&](int64_t i, int64_t j) {
        return seen[static_cast<size_t>((m * 16 + i) * length + n * 16 + j)];
      };
      for (int64_t i = 0; i < 16; ++i) {
        for (int64_t j = 0; j < 16; ++j) REQUIRE(at(i, j) == at(0, 0));
      }
      const bool must = m < 2 || n < 2 || std::abs(m - n) <= 1;
      if (must) CHECK(at(0, 0) == 1);
      if (!must && at(0, 0) == 1) others.push_back(n);
    }
    CHECK(others.size() <= 3);
    choices.insert(others);
  }
  CHECK(choices.size() > 10);
  const auto dense = [&](uint64_t seed) {
    return AttentionMask::random_blocks(3, seed, 16).to_dense(length, length).to_vector<double>();
  };
  CHECK(dense(1) == dense(1));
  CHECK(dense(1) != dense(2));
  const std::vector<double> three = dense(1);
  CHECK(std::accumulate(three.begin(), three.end(), 0.0) == 3 * 16 * length);
}

TEST_CASE("global tokens past the last key have no effect") {
  const auto dense = [](const AttentionMask& mask) {
    return mask.to_dense(8, 8).to_vector<double>();
  };
  CHECK(dense(AttentionMask::global({2, 8, 90})) == dense(AttentionMask::global({2})));
}

TEST_CASE("masks parsed from text equal masks from calls") {
  const std::vector<std::pair<std::string, AttentionMask>> specs{
      {"dense", AttentionMask()},
      {"causal", AttentionMask::causal()},
      {"window:256,0", AttentionMask::window(256, 0)},
      {" window: inf , 3 ", AttentionMask::window(std::nullopt, 3)},
      {"symmetric_window:7", AttentionMask::window(7, 7)},
      {"causal_window:8", AttentionMask::window(7, 0)},
      {"dilated_window:2,1,3", AttentionMask::dilated_window(2, 1, 3)},
      {"dilated_window:2,1,3,4", AttentionMask::dilated_window(2, 1, std::vector<int64_t>{3, 4})},
      {"global:3,0", AttentionMask::global({0, 3})},
      {"full", AttentionMask()},
      {"local:1", AttentionMask::window(0, 0)},
      {"local:2", AttentionMask::window(1, 0)},
      {"local:3", AttentionMask::window(1, 1)},
      {"local:256", AttentionMask::window(128, 127)},
      {"sinks:4", AttentionMask::sinks(4)},
      {"random_blocks:2,9", AttentionMask::random_blocks(2, 9)},
      {"random_blocks:2,9,16", AttentionMask::random_blocks(2, 9, 16)},
      {"bigbird", AttentionMask::bigbird()},
      {"bigbird:32,3,1,2",
       AttentionMask::bigbird({.block = 32, .window = 3, .global = 1, .random = 2})},
      {"neighborhood:1,9,3", AttentionMask::neighborhood({9}, {3})},
      {"neighborhood:2,9,8,3,5,3,1", AttentionMask::neighborhood({9, 8}, {3, 5}, {3, 1})},
      {"neighborhood:1,9,3,2,2,1", AttentionMask::neighborhood({9}, {3}, {2}, {2}, {true})},
      {"neighborhood:2,9,8,3,5,1,1,1,5",
       AttentionMask::neighborhood({9, 8}, {3, 5}, {}, {1, 5}, {})},
      {"longformer:5,0,1", AttentionMask::window(5, 5) | AttentionMask::global({0, 1})},
      {"causal & (window:3,3 | sinks:1)",
       AttentionMask::causal() & (AttentionMask::window(3, 3) | AttentionMask::sinks(1))},
      {"causal & window:3,3 | sinks:1",
       (AttentionMask::causal() & AttentionMask::window(3, 3)) | AttentionMask::sinks(1)},
  };
  for (const auto& [text, mask] : specs) {
    CHECK(AttentionMask::parse(text).to_string() == mask.to_string());
    if (mask.extents().per_head) continue;
    CHECK(AttentionMask::parse(mask.to_string()).to_string() == mask.to_string());
  }
}

TEST_CASE("wrong calls: masks") {
  using Mask = AttentionMask;
  const std::string op = "attention_mask: ";
  expect_error<ValueError>(op + "expected a left side of at least 0 keys, or none, got -1",
                           [] { Mask::window(-1, 0); });
  expect_error<ValueError>(op + "expected a right side of at least 0 keys, or none, got -3",
                           [] { Mask::window(std::nullopt, -3); });
  expect_error<ValueError>(op + "expected a causal window of at least 1 key, got 0",
                           [] { Mask::causal_window(0); });
  expect_error<ValueError>(op + "expected a local context of at least 1 key, got 0",
                           [] { Mask::local(0); });
  expect_error<ValueError>(op + "expected dilations of at least 1, got 0",
                           [] { Mask::dilated_window(1, 1, 0); });
  expect_error<ValueError>(op + "expected global tokens of at least 0, got -2", [] {
    Mask::global({1, -2});
  });
  expect_error<ValueError>(op + "expected a number of sinks of at least 0, got -1",
                           [] { Mask::sinks(-1); });
  expect_error<ShapeError>(
      op + "expected a layout of 3 x 3 blocks of 4 tokens for 10 queries and 10 keys, got [2, 3]",
      [] {
        Mask::block_sparse(zeros({2, 3}, {.dtype = DType::boolean}), 4).to_dense(10, 10);
      });
  expect_error<ValueError>(op + "expected blocks of at least one token, got 0",
                           [] { Mask::random_blocks(1, 0, 0); });
  expect_error<ValueError>(op + "expected an odd number of blocks in the window, or 0, got 2",
                           [] { Mask::bigbird({.window = 2}); });
  expect_error<DTypeError>(op + "expected lengths of int32, got int64", [] {
    Mask::key_lengths(tensor<int64_t>({1, 2}));
  });
  expect_error<ShapeError>(op + "expected a length for each of 3 batches, got [2]", [] {
    Mask::key_lengths(int32s({1, 2})).to_dense({3, 1, 4, 4});
  });
  expect_error<ShapeError>(op + "expected packed queries and keys of one length, got 3 and 4", [] {
    Mask::packed(int32s({0, 4})).to_dense(3, 4);
  });
  expect_error<ShapeError>(op + "expected ranges that broadcast to [1, 1, 4], got [3] and [3]", [] {
    Mask::row_ranges(int32s({0, 0, 0}), int32s({1, 1, 1})).to_dense(4, 4);
  });
  expect_error<ShapeError>(op + "expected a mask that broadcasts to [1, 2, 3, 4], got [3, 5]", [] {
    Mask(zeros({3, 5}, {.dtype = DType::boolean})).to_dense({1, 2, 3, 4});
  });
  expect_error<ValueError>(op + "expected one dilation, or one for each of 2 heads, got 3", [] {
    Mask::dilated_window(1, 1, std::vector<int64_t>{1, 2, 3}).to_dense({1, 2, 4, 4});
  });
  expect_error<ShapeError>(op + "expected queries and keys for the grid's 12 points, got 12 and 11",
                           [] {
                             Mask::neighborhood({3, 4}, {3, 3}).to_dense(12, 11);
                           });
  const std::string sizes =
      "expected 1 <= stride <= kernel, 1 <= dilation and kernel dilation <= extent <= 2^20, got ";
  expect_error<ValueError>(op + sizes + "1, 3, 2 and 5", [] { Mask::neighborhood({5}, {3}, {2}); });
  expect_error<ValueError>(op + sizes + "4, 3, 1 and 5",
                           [] { Mask::neighborhood({5}, {3}, {}, {4}); });
  expect_error<ValueError>(
      op + "expected a grid of 1 to 3 axes, with a kernel for each, and a dilation, a stride and "
           "causal for each or none, got 2, 1, 0, 0 and 0",
      [] {
        Mask::neighborhood({5, 5}, {3});
      });
  const auto parse = [](const char* text) { return [text] { Mask::parse(text); }; };
  expect_error<ValueError>(op + "expected after 'window' 2 numbers at position 0, got 'window:3'",
                           parse("window:3"));
  expect_error<ValueError>(op + "expected a number at position 7, got 'window:x,1'",
                           parse("window:x,1"));
  expect_error<ValueError>(op + "expected ')' at position 8, got '(causal '", parse("(causal "));
  expect_error<ValueError>(op + "expected '|', '&' or the end at position 7, got 'causal causal'",
                           parse("causal causal"));
  CHECK_THROWS_AS(Mask::parse("neighborhood:2,9,8,3"), ValueError);
  CHECK_THROWS_AS(Mask::parse("neighborhood:4,9,8,3,5"), ValueError);
  CHECK_THROWS_AS(Mask::parse("windows:3,1"), ValueError);
  CHECK_THROWS_AS(Mask::parse(""), ValueError);
}

TEST_CASE("masks: a bool mask that may be of pairs or of padding is refused") {
  const auto run = [](const Shape& mask, int64_t batch, int64_t queries) {
    return [=] {
      const Tensor q = ones({batch, 2, queries, 8}), k = ones({batch, 2, 3, 8});
      attention(q, k, k, {.mask = ones(mask, {.dtype = DType::boolean})});
    };
  };
  expect_error<ShapeError>(
      "attention_mask: expected a bool mask of more axes, since B = S_q = S_k = 3: [1, 1, 3, 3] "
      "for "
      "pairs of query and key, [3, 1, 1, 3] for padding of each sequence, got [3, 3]; the mask is "
      "tensor",
      run({3, 3}, 3, 3));
  for (const auto& call : {run({3, 3}, 2, 3), run({1, 3}, 3, 3), run({2, 3}, 2, 2),
                           run({1, 1, 3, 3}, 3, 3), run({3, 1, 1, 3}, 3, 3), run({3}, 3, 3)}) {
    CHECK_NOTHROW(call());
  }
}
