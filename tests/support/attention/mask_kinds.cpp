#include "mask_kinds.h"

#include <algorithm>
#include <limits>

#include <sash/tensor/factories.h>

#include "../reference.h"

namespace sash::testing {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

bool extremes = false;

int64_t position(const MaskShape& shape, const MaskIndex& at) {
  return at.query + shape.keys - shape.queries;
}

int64_t below(RandomNumbers& random, int64_t count) {
  return static_cast<int64_t>(random.below(static_cast<uint64_t>(std::max<int64_t>(count, 1))));
}

// A window size from 0 to beyond the sequence, edges of tiles included.
int64_t reach(RandomNumbers& random, const MaskShape& shape) {
  const std::vector<int64_t> some{
      0, 1, 2, 5, 31, 47, 48, 63, 64, 65, shape.keys - 1, shape.keys, shape.keys + 7, kHuge};
  return std::max<int64_t>(some[static_cast<size_t>(below(random, extremes ? 14 : 13))], 0);
}

// `value`, or sometimes the largest int64.
int64_t or_huge(RandomNumbers& random, int64_t value) {
  return extremes && random.below(12) == 0 ? kHuge : value;
}

std::optional<int64_t> side(RandomNumbers& random, int64_t value) {
  if (extremes && random.below(5) == 0) return std::nullopt;
  return or_huge(random, value);
}

int64_t blocks_of(int64_t tokens, int64_t block) { return tokens / block + (tokens % block != 0); }

NamedMask window(RandomNumbers& random, const MaskShape& shape, Device) {
  std::optional<int64_t> left, right;
  if (random.below(5) > 0) left = reach(random, shape);
  if (random.below(5) > 0) right = reach(random, shape);
  return {"window", AttentionMask::window(left, right), [=](const MaskIndex& at) {
            const int64_t p = position(shape, at);
            return (!left || p - at.key <= *left) && (!right || at.key - p <= *right);
          }};
}

NamedMask causal(RandomNumbers&, const MaskShape& shape, Device) {
  return {"causal", AttentionMask::causal(),
          [=](const MaskIndex& at) { return at.key <= position(shape, at); }};
}

NamedMask symmetric_window(RandomNumbers& random, const MaskShape& shape, Device) {
  const int64_t w = reach(random, shape);
  return {"symmetric_window", AttentionMask::symmetric_window(w),
          [=](const MaskIndex& at) { return std::abs(at.key - position(shape, at)) <= w; }};
}

NamedMask causal_window(RandomNumbers& random, const MaskShape& shape, Device) {
  const int64_t n = std::min(reach(random, shape), kHuge - 1) + 1;
  return {"causal_window", AttentionMask::causal_window(n), [=](const MaskIndex& at) {
            const int64_t p = position(shape, at);
            return at.key <= p && p - at.key < n;
          }};
}

NamedMask dilated_window(RandomNumbers& random, const MaskShape& shape, Device) {
  const std::optional<int64_t> left = side(random, below(random, 6));
  const std::optional<int64_t> right = side(random, below(random, 6));
  std::vector<int64_t> dilations;
  const bool alike = random.below(2) == 0 || shape.heads == 0;
  for (int64_t h = 0; h < (alike ? 1 : shape.heads); ++h) {
    dilations.push_back(or_huge(random, 1 + below(random, 40)));
  }
  return {"dilated_window", AttentionMask::dilated_window(left, right, dilations),
          [=](const MaskIndex& at) {
            const int64_t step = dilations[alike ? 0 : static_cast<size_t>(at.head)];
            const int64_t distance = at.key - position(shape, at), n = distance / step;
            return distance % step == 0 && (!left || n >= -*left) && (!right || n <= *right);
          }};
}

NamedMask global(RandomNumbers& random, const MaskShape& shape, Device) {
  std::vector<int64_t> tokens;
  for (int n = 0; n < 3; ++n) tokens.push_back(or_huge(random, below(random, shape.keys)));
  const auto has = [tokens](int64_t token) {
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
  };
  return {"global", AttentionMask::global(tokens),
          [=](const MaskIndex& at) { return has(at.key) || has(position(shape, at)); }};
}

NamedMask sinks(RandomNumbers& random, const MaskShape& shape, Device) {
  const int64_t n = or_huge(random, below(random, shape.keys + 3));
  return {"sinks", AttentionMask::sinks(n), [=](const MaskIndex& at) { return at.key < n; }};
}

NamedMask block_sparse(RandomNumbers& random, const MaskShape& shape, Device device) {
  const int64_t block = or_huge(random, 1 + below(random, 70));
  const int64_t rows = blocks_of(shape.queries, block), columns = blocks_of(shape.keys, block);
  const int64_t heads = random.below(2) == 0 ? 1 : shape.heads;
  std::vector<bool> cells;
  for (int64_t n = 0; n < heads * rows * columns; ++n) cells.push_back(random.below(3) == 0);
  const Tensor layout = tensor(cells, {heads, rows, columns}, {.device = device});
  return {
      "block_sparse", AttentionMask::block_sparse(layout, block), [=](const MaskIndex& at) {
        const int64_t h = heads == 1 ? 0 : at.head;
        return cells[static_cast<size_t>((h * rows + at.query / block) * columns + at.key / block)];
      }};
}

// A random pattern has no other definition: its pairs are read from `to_dense`, tested elsewhere.
NamedMask looked_up(const std::string& name, const AttentionMask& mask, const MaskShape& shape) {
  const std::vector<double> cells = mask.to_dense(shape).to_vector<double>();
  return {name, mask, [=](const MaskIndex& at) {
            return cells[static_cast<size_t>(at.query * shape.keys + at.key)] != 0;
          }};
}

NamedMask random_blocks(RandomNumbers& random, const MaskShape& shape, Device) {
  return looked_up(
      "random_blocks",
      AttentionMask::random_blocks(or_huge(random, 1 + below(random, 2)), random.next(),
                                   or_huge(random, 1 + below(random, 40))),
      shape);
}

NamedMask bigbird(RandomNumbers& random, const MaskShape& shape, Device) {
  return looked_up("bigbird",
                   AttentionMask::bigbird({.block = or_huge(random, 1 + below(random, 30)),
                                           .window = or_huge(random, 1 + 2 * below(random, 2)),
                                           .global = or_huge(random, below(random, 2)),
                                           .random = or_huge(random, below(random, 3)),
                                           .seed = random.next()}),
                   shape);
}

NamedMask key_lengths(RandomNumbers& random, const MaskShape& shape, Device device) {
  std::vector<int32_t> lengths;
  for (int64_t b = 0; b < shape.batch; ++b) {
    lengths.push_back(static_cast<int32_t>(below(random, shape.keys + 1)));
  }
  return {"key_lengths",
          AttentionMask::key_lengths(tensor(lengths, {shape.batch}, {.device = device})),
          [=](const MaskIndex& at) { return at.key < lengths[static_cast<size_t>(at.batch)]; }};
}

NamedMask packed(RandomNumbers& random, const MaskShape& shape, Device device) {
  std::vector<int32_t> cu{0};
  while (cu.back() < shape.keys) {
    const int64_t left = shape.keys - cu.back();
    cu.push_back(cu.back() + static_cast<int32_t>(std::min(left, below(random, 50))));
  }
  return {"packed",
          AttentionMask::packed(tensor(cu, {static_cast<int64_t>(cu.size())}, {.device = device})),
          [=](const MaskIndex& at) {
            const auto sequence = [&](int64_t token) {
              return std::upper_bound(cu.begin(), cu.end(), token) - cu.begin();
            };
            return sequence(at.query) == sequence(at.key);
          }};
}

NamedMask row_ranges(RandomNumbers& random, const MaskShape& shape, Device device) {
  const int64_t batch = random.below(2) == 0 ? 1 : shape.batch;
  std::vector<int32_t> first, past;
  for (int64_t n = 0; n < batch * shape.queries; ++n) {
    first.push_back(static_cast<int32_t>(below(random, shape.keys + 1)));
    past.push_back(static_cast<int32_t>(below(random, shape.keys + 1)));
  }
  const Shape extents{batch, 1, shape.queries};
  return {"row_ranges",
          AttentionMask::row_ranges(tensor(first, extents, {.device = device}),
                                    tensor(past, extents, {.device = device})),
          [=](const MaskIndex& at) {
            const auto row =
                static_cast<size_t>((batch == 1 ? 0 : at.batch) * shape.queries + at.query);
            return at.key >= first[row] && at.key < past[row];
          }};
}

NamedMask selected(RandomNumbers& random, const MaskShape& shape, Device device) {
  const int64_t block = or_huge(random, 1 + below(random, 70));
  const int64_t height = or_huge(random, 1 + below(random, 3));
  const int64_t rows = blocks_of(shape.queries, height), blocks = blocks_of(shape.keys, block);
  const int64_t batch = random.below(2) == 0 ? 1 : shape.batch, width = below(random, 5);
  const int64_t heads = random.below(2) == 0 ? 1 : std::max<int64_t>(shape.heads, 1);
  std::vector<int32_t> index;
  for (int64_t n = 0; n < batch * heads * rows * width; ++n) {
    index.push_back(static_cast<int32_t>(below(random, blocks + 1)) - 1);
  }
  const Tensor on_device = tensor(index, {batch, heads, rows, width}, {.device = device});
  return {"selected", AttentionMask::selected(on_device, block, height), [=](const MaskIndex& at) {
            const int64_t b = batch == 1 ? 0 : at.batch, h = heads == 1 ? 0 : at.head;
            const auto row = index.begin() + ((b * heads + h) * rows + at.query / height) * width;
            return std::find(row, row + width, at.key / block) != row + width;
          }};
}

NamedMask visible(RandomNumbers& random, const MaskShape& shape, Device device) {
  std::vector<bool> cells;
  for (int64_t n = 0; n < shape.batch * shape.queries * shape.keys; ++n) {
    cells.push_back(random.below(2) == 0);
  }
  return {
      "tensor",
      AttentionMask(tensor(cells, {shape.batch, 1, shape.queries, shape.keys}, {.device = device})),
      [=](const MaskIndex& at) {
        return cells[static_cast<size_t>((at.batch * shape.queries + at.query) * shape.keys +
                                         at.key)];
      }};
}

NamedMask predicate(RandomNumbers& random, const MaskShape&, Device) {
  const int64_t a = 1 + below(random, 5), b = below(random, 7);
  const Sees sees = [=](const MaskIndex& at) {
    return (a * at.query + b * at.key + at.head) % 3 != 0;
  };
  return {"predicate", AttentionMask::predicate(sees, {.per_head = true}), sees};
}

}  // namespace

void draw_extremes(bool draw) { extremes = draw; }

const std::vector<MaskKind>& mask_kinds() {
  static const std::vector<MaskKind> kinds{
      {"causal", causal},
      {"window", window},
      {"symmetric_window", symmetric_window},
      {"causal_window", causal_window},
      {"dilated_window", dilated_window},
      {"global", global},
      {"sinks", sinks},
      {"block_sparse", block_sparse},
      {"random_blocks", random_blocks},
      {"bigbird", bigbird},
      {"key_lengths", key_lengths},
      {"packed", packed, true},
      {"row_ranges", row_ranges},
      {"selected", selected},
      {"tensor", visible},
      {"predicate", predicate},
  };
  return kinds;
}

NamedMask both(const NamedMask& a, const NamedMask& b) {
  return {"(" + a.name + " & " + b.name + ")", a.mask & b.mask,
          [a, b](const MaskIndex& at) { return a.sees(at) && b.sees(at); }};
}

NamedMask either(const NamedMask& a, const NamedMask& b) {
  return {"(" + a.name + " | " + b.name + ")", a.mask | b.mask,
          [a, b](const MaskIndex& at) { return a.sees(at) || b.sees(at); }};
}

std::vector<double> defined(const NamedMask& mask, const MaskShape& s) {
  std::vector<double> seen;
  for_each_index({s.batch, s.heads, s.queries, s.keys}, [&](const Index& at) {
    seen.push_back(mask.sees({at[0], at[1], at[2], at[3]}));
  });
  return seen;
}

}  // namespace sash::testing
