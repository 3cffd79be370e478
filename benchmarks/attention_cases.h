#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <sash/ops/attention/exact/attention.h>
#include <sash/tensor/factories.h>

#include "../tests/support/attention/attention_reference.h"

namespace sash::bench {

/// A mask and its definition as a plain comparison, for checking.
struct Pattern {
  AttentionMask mask;
  testing::Sees sees;
  double pairs = 0;  ///< visible; 0: counted by `mask_statistics`
};

inline Pattern dense() {
  return {{}, [](const MaskIndex&) { return true; }};
}

inline Pattern causal() {
  return {AttentionMask::causal(), [](const MaskIndex& at) { return at.key <= at.query; }};
}

inline Pattern window(int64_t left, int64_t right) {
  return {AttentionMask::window(left, right), [=](const MaskIndex& at) {
            return at.key >= at.query - left && at.key <= at.query + right;
          }};
}

/// A symmetric window, and the first tokens global.
inline Pattern longformer(int64_t w, int64_t tokens) {
  std::vector<int64_t> first(static_cast<size_t>(tokens));
  std::iota(first.begin(), first.end(), 0);
  return {AttentionMask::symmetric_window(w) | AttentionMask::global(first),
          [=](const MaskIndex& at) {
            return std::abs(at.key - at.query) <= w || at.key < tokens || at.query < tokens;
          }};
}

/// Of blocks of 64: window 3, global 2, random 3.
inline Pattern bigbird(int64_t length) {
  BigBirdOptions options;
  const int64_t blocks = length / options.block;
  BigBirdOptions of_blocks = options;
  of_blocks.block = 1;
  const std::vector<bool> layout = [&] {
    const auto shown = AttentionMask::bigbird(of_blocks).to_dense(blocks, blocks);
    const auto values = shown.to_vector<uint8_t>();
    return std::vector<bool>(values.begin(), values.end());
  }();
  return {AttentionMask::bigbird(options), [=](const MaskIndex& at) {
            const int64_t block = at.query / options.block * blocks + at.key / options.block;
            return static_cast<bool>(layout[static_cast<size_t>(block)]);
          }};
}

/// Causal sequences of `lengths` tokens one after the other.
inline Pattern packed_causal(const std::vector<int64_t>& lengths, Device device) {
  std::vector<int32_t> starts{0};
  std::vector<size_t> sequence;
  for (const int64_t length : lengths) {
    sequence.insert(sequence.end(), static_cast<size_t>(length), starts.size());
    starts.push_back(static_cast<int32_t>(sequence.size()));
  }
  const auto count = static_cast<int64_t>(starts.size());
  return {
      AttentionMask::causal() & AttentionMask::packed(tensor(starts, {count}, {.device = device})),
      [=](const MaskIndex& at) {
        return at.key <= at.query &&
               sequence[static_cast<size_t>(at.key)] == sequence[static_cast<size_t>(at.query)];
      }};
}

struct AttentionCase {
  std::string group, name;
  std::function<Pattern()> pattern;
  int64_t batch, heads, length, dim;
  DType dtype;
  int64_t kv_heads = heads;
  std::string series{};        ///< where set, times are also given as ratios to the case before
  AttentionOptions options{};  ///< besides the mask; timed, but left out of the check
};

using AttentionCases = std::vector<AttentionCase>;

inline std::function<Pattern()> windowed(int64_t left, int64_t right) {
  return [=] { return window(left, right); };
}

/// Those of compare_peers.py.
inline AttentionCases peer_cases(Device device) {
  constexpr DType f32 = DType::float32, bf16 = DType::bfloat16;
  const AttentionCase small{"peers", "B8H6S256D64causal", causal, 8, 6, 256, 64, f32};
  if (!device.is_cuda()) {
    return {small,
            {"peers", "B1H8S1024D64w64", windowed(64, 64), 1, 8, 1024, 64, f32},
            {"peers", "B1H8S4096D64w128", windowed(128, 128), 1, 8, 4096, 64, f32}};
  }
  return {small,
          {"peers", "B16H12S1024D64causal", causal, 16, 12, 1024, 64, f32},
          {"peers", "char", windowed(64, 0), 64, 6, 256, 64, bf16},
          {"peers", "char_causal_full", causal, 64, 6, 256, 64, bf16},
          {"peers", "s4k_d64_w128sym", windowed(128, 128), 4, 16, 4096, 64, bf16},
          {"peers", "s8k_d64_w256sym", windowed(256, 256), 2, 16, 8192, 64, bf16},
          {"peers", "s8k_d128_w512causal", windowed(512, 0), 2, 16, 8192, 128, bf16},
          {"peers", "s64k_d128_w1024causal", windowed(1024, 0), 1, 16, 65536, 128, bf16},
          {"peers", "s64k_d64_w256sym", windowed(256, 256), 1, 12, 65536, 64, bf16},
          {"peers", "s8k_d128_causal_full", causal, 2, 16, 8192, 128, bf16}};
}

/// What all cases of the other groups share on a device.
struct Usual {
  explicit Usual(Device device)
      : cuda(device.is_cuda()),
        heads(cuda ? 12 : 4),
        dtype(cuda ? DType::bfloat16 : DType::float32) {}

  bool cuda;
  int64_t heads;
  DType dtype;
};

/// How times grow with the length at one window, and with the window at one length.
inline AttentionCases scaling_cases(Device device) {
  const Usual usual(device);
  AttentionCases cases;
  const auto add = [&](const std::string& series, int64_t length, int64_t left) {
    cases.push_back({.group = "scaling",
                     .name = series + "_s" + std::to_string(length) + "_w" + std::to_string(left),
                     .pattern = windowed(left, 0),
                     .batch = usual.cuda ? 8 : 1,
                     .heads = usual.heads,
                     .length = length,
                     .dim = 64,
                     .dtype = usual.dtype,
                     .series = series});
  };
  for (int64_t length = 1024; length <= (usual.cuda ? 32768 : 8192); length *= 2) {
    add("length", length, 128);
  }
  for (int64_t left = 64; left <= (usual.cuda ? 2048 : 512); left *= 2) {
    add("window", usual.cuda ? 8192 : 4096, left);
  }
  return cases;
}

/// Lengths of both kinds of attention that language models train with. The peers have the same.
inline AttentionCases length_cases(Device device) {
  const Usual usual(device);
  AttentionCases cases;
  for (int64_t length = 256; length <= 16384; length *= 2) {
    AttentionCase setup{.group = "lengths",
                        .name = "s" + std::to_string(length) + "_causal",
                        .pattern = causal,
                        .batch = 1,
                        .heads = usual.heads,
                        .length = length,
                        .dim = 64,
                        .dtype = usual.dtype};
    cases.push_back(setup);
    setup.name = "s" + std::to_string(length) + "_w256causal";
    setup.pattern = windowed(256, 0);
    cases.push_back(setup);
  }
  return cases;
}

/// A window, and how many times longer all pairs of the same length take.
inline AttentionCases dense_cases(Device device) {
  const Usual usual(device);
  AttentionCases cases;
  for (int64_t length = 1024; length <= (usual.cuda ? 16384 : 4096); length *= 2) {
    const std::string series = "s" + std::to_string(length);
    AttentionCase setup{.group = "dense",
                        .name = series + "_w128sym",
                        .pattern = windowed(128, 128),
                        .batch = usual.cuda ? 4 : 1,
                        .heads = usual.heads,
                        .length = length,
                        .dim = 64,
                        .dtype = usual.dtype,
                        .series = series};
    cases.push_back(setup);
    setup.name = series + "_dense";
    setup.pattern = dense;
    cases.push_back(setup);
  }
  return cases;
}

/// Global tokens, random blocks, sequences of uneven lengths, heads that share keys.
inline AttentionCases sparse_cases(Device device) {
  const Usual usual(device);
  AttentionCases cases;
  const auto add = [&](const std::string& name, int64_t length, std::function<Pattern()> pattern) {
    cases.push_back({"sparse", name + "_s" + std::to_string(length), std::move(pattern), 1,
                     usual.heads, length, 64, usual.dtype});
  };
  using Lengths = std::vector<int64_t>;
  for (const int64_t length : usual.cuda ? Lengths{16384, 65536} : Lengths{4096}) {
    add("bigbird", length, [=] { return bigbird(length); });
    add("longformer_w256_g64", length, [] { return longformer(256, 64); });
  }
  const Lengths lengths = usual.cuda
                              ? Lengths{4096, 37, 2911, 1024, 512, 300, 3000, 91, 1365, 1048, 2000}
                              : Lengths{1500, 37, 91, 1024, 300, 1144};
  add("packed_causal", std::accumulate(lengths.begin(), lengths.end(), int64_t{0}),
      [=] { return packed_causal(lengths, device); });
  cases.push_back({.group = "sparse",
                   .name = usual.cuda ? "heads32_8_s8192_w1024" : "heads8_2_s4096_w256",
                   .pattern = windowed(usual.cuda ? 1024 : 256, 0),
                   .batch = 1,
                   .heads = usual.cuda ? 32 : 8,
                   .length = usual.cuda ? 8192 : 4096,
                   .dim = usual.cuda ? 128 : 64,
                   .dtype = usual.dtype,
                   .kv_heads = usual.cuda ? 8 : 2});
  return cases;
}

/// In a square of `blocks` blocks, each row sees its own block and `others` random ones.
inline Pattern own_and_random(int64_t blocks, int64_t block, int64_t others) {
  std::vector<uint8_t> shown(static_cast<size_t>(blocks * blocks));
  std::mt19937 random(7);
  for (int64_t row = 0; row < blocks; ++row) {
    uint8_t* const seen = shown.data() + row * blocks;
    seen[row] = 1;
    for (int64_t left = others; left > 0;) {
      uint8_t& at = seen[random() % static_cast<uint64_t>(blocks)];
      left -= !at;
      at = 1;
    }
  }
  const Tensor layout = tensor(shown, {blocks, blocks}).to(DType::boolean);
  return {AttentionMask::block_sparse(layout, block), [=](const MaskIndex& at) {
            return shown[static_cast<size_t>(at.query / block * blocks + at.key / block)] != 0;
          }};
}

/// Packed texts of 256 to 4,096 tokens, and blocks that a layout lists, 1,024 keys a query.
inline AttentionCases block_cases(Device device) {
  const Usual usual(device);
  AttentionCases cases;
  const auto add = [&](const std::string& name, int64_t length, int64_t dim,
                       std::function<Pattern()> pattern) {
    cases.push_back({"blocks", name + "_s" + std::to_string(length), std::move(pattern), 1,
                     usual.cuda ? 16 : 4, length, dim, usual.dtype});
  };
  const std::vector<int64_t> texts = {864,  1220, 1400, 2231, 3155, 3845, 1932, 1905, 3987, 3161,
                                      2674, 2950, 3437, 2678, 3512, 3169, 3157, 3338, 2356, 1193,
                                      624,  4052, 3539, 626,  2240, 680,  1610, 1};
  for (const int64_t length :
       usual.cuda ? std::vector<int64_t>{16384, 65536} : std::vector<int64_t>{4096}) {
    std::vector<int64_t> lengths;
    for (int64_t left = length; left > 0; left -= lengths.back()) {
      lengths.push_back(std::min(left, texts[lengths.size()]));
    }
    add("packed_d128", length, 128, [=] { return packed_causal(lengths, device); });
    for (const int64_t block : {128, 64}) {
      add("blocks" + std::to_string(block) + "_d128", length, 128,
          [=] { return own_and_random(length / block, block, 1024 / block - 1); });
    }
    add("blocks64_d64", length, 64, [=] { return own_and_random(length / 64, 64, 15); });
  }
  return cases;
}

/// Causal, and for each query and key head `count` blocks of `block` keys: the first, the query's
/// own, the one before it, and random earlier ones.
inline Pattern selected_blocks(int64_t length, int64_t key_heads, int64_t group, int64_t block,
                               int64_t count, Device device) {
  std::mt19937 random(7);
  const auto rows =
      std::make_shared<std::vector<int32_t>>(static_cast<size_t>(key_heads * length * count), -1);
  double pairs = 0;
  for (int64_t at = 0; at < key_heads * length; ++at) {
    const int64_t query = at % length, own = query / block;
    int32_t* const row = rows->data() + at * count;
    int64_t listed = 0;
    const auto add = [&](int64_t n) {
      if (std::find(row, row + listed, n) == row + listed) row[listed++] = static_cast<int32_t>(n);
    };
    for (const int64_t n : {int64_t{0}, own, std::max<int64_t>(own - 1, 0)}) add(n);
    while (listed < std::min(count, own + 1)) {
      add(static_cast<int64_t>(random() % static_cast<uint64_t>(own + 1)));
    }
    pairs += static_cast<double>(group * ((listed - 1) * block + query % block + 1));
  }
  const Tensor index = tensor(*rows, {1, key_heads, length, count}, {.device = device});
  return {AttentionMask::selected(index, block) & AttentionMask::causal(),
          [=](const MaskIndex& at) {
            const auto row = rows->begin() + (at.head / group * length + at.query) * count;
            return at.key <= at.query && std::find(row, row + count, at.key / block) != row + count;
          },
          pairs};
}

/// Blocks that data selects: 16 of 64 keys for 16 heads of a key head, and 8 of 512 for each head.
inline AttentionCases selected_cases(Device device) {
  const Usual usual(device);
  AttentionCases cases;
  for (const int64_t length :
       usual.cuda ? std::vector<int64_t>{16384, 65536} : std::vector<int64_t>{4096}) {
    for (const int64_t dim : {64, 128}) {
      const auto add = [&](const std::string& name, int64_t heads, int64_t kv, int64_t block,
                           int64_t count) {
        cases.push_back(
            {"selected", name + "_d" + std::to_string(dim) + "_s" + std::to_string(length),
             [=] { return selected_blocks(length, kv, heads / kv, block, count, device); }, 1,
             heads, length, dim, usual.dtype, kv});
      };
      add("blocks64_of16", usual.cuda ? 64 : 16, usual.cuda ? 4 : 1, 64, 16);
      add("blocks512_of8", usual.cuda ? 16 : 4, usual.cuda ? 16 : 4, usual.cuda ? 512 : 128, 8);
    }
  }
  return cases;
}

/// One window over heads of every width that has tiles of its own.
inline AttentionCases width_cases(Device device) {
  const Usual usual(device);
  AttentionCases cases;
  for (const int64_t dim : {32, 64, 96, 128, 256}) {
    cases.push_back({.group = "widths",
                     .name = (usual.cuda ? "s8k_d" : "s2k_d") + std::to_string(dim) + "_w256sym",
                     .pattern = windowed(256, 256),
                     .batch = usual.cuda ? 2 : 1,
                     .heads = usual.cuda ? 16 : 4,
                     .length = usual.cuda ? 8192 : 2048,
                     .dim = dim,
                     .dtype = usual.dtype});
  }
  return cases;
}

/// One window with each of the options that change scores or weights, then with most of them.
inline AttentionCases option_cases(Device device) {
  const Usual usual(device);
  AttentionCases cases;
  const auto add = [&](const std::string& name, int64_t dim, const AttentionOptions& options) {
    cases.push_back({.group = "options",
                     .name = "d" + std::to_string(dim) + "_" + name,
                     .pattern = windowed(512, 0),
                     .batch = usual.cuda ? 2 : 1,
                     .heads = usual.heads,
                     .length = usual.cuda ? 8192 : 2048,
                     .dim = dim,
                     .dtype = usual.dtype,
                     .options = options});
  };
  const Tensor slopes = full({usual.heads}, 0.01, {.device = device});
  for (const int64_t dim : {64, 128}) {
    add("softcap", dim, {.softcap = 30});
    add("alibi", dim, {.alibi_slopes = slopes});
    add("dropout", dim, {.dropout = 0.1});
    add("softcap_alibi_dropout", dim, {.softcap = 30, .alibi_slopes = slopes, .dropout = 0.1});
  }
  return cases;
}

/// Patterns without dropout, then with it. The peers have the same.
inline AttentionCases dropout_cases(Device device) {
  const bool cuda = device.is_cuda();
  AttentionCases cases;
  const auto add = [&](const std::string& name, std::function<Pattern()> pattern, int64_t batch,
                       int64_t heads, int64_t length, int64_t dim) {
    AttentionCase setup{.group = "dropout",
                        .name = name,
                        .pattern = std::move(pattern),
                        .batch = cuda ? batch : 1,
                        .heads = cuda ? heads : 4,
                        .length = cuda ? length : length / 4,
                        .dim = dim,
                        .dtype = Usual(device).dtype,
                        .series = name};
    cases.push_back(setup);
    setup.name += "_dropout";
    setup.options = {.dropout = 0.1};
    cases.push_back(setup);
  };
  add("s4k_d64_causal", causal, 4, 12, 4096, 64);
  add("s8k_d128_w1024causal", windowed(1024, 0), 2, 16, 8192, 128);
  add("s4k_d64_w256causal", windowed(256, 0), 4, 16, 4096, 64);
  add("s16k_d128_causal", causal, 1, 16, 16384, 128);
  return cases;
}

/// Lengths whose scores would not fit into memory.
inline AttentionCases memory_cases(Device device) {
  const Usual usual(device);
  AttentionCases cases{{"memory", "s65536_w256sym", windowed(256, 256), 1, usual.cuda ? 12 : 2,
                        65536, 64, usual.dtype}};
  if (usual.cuda) {
    cases.push_back(
        {"memory", "s1048576_w256sym", windowed(256, 256), 1, 8, 1 << 20, 64, usual.dtype});
  }
  return cases;
}

inline AttentionCases attention_cases(Device device) {
  AttentionCases cases;
  for (const auto group :
       {peer_cases, scaling_cases, length_cases, dense_cases, sparse_cases, block_cases,
        selected_cases, width_cases, option_cases, dropout_cases, memory_cases}) {
    for (AttentionCase& setup : group(device)) cases.push_back(std::move(setup));
  }
  return cases;
}

}  // namespace sash::bench
