#include "bound_mask.h"

namespace sash {
namespace {

using Kind = MaskTerm::Kind;

constexpr int kInlineValues = 32;  // deeper stacks allocate

void sort_and_merge(KeyRanges& ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](IndexRange a, IndexRange b) { return a.first < b.first; });
  KeyRanges merged;
  for (const IndexRange range : ranges) {
    if (!range.empty()) append(merged, range);
  }
  ranges = std::move(merged);
}

KeyRanges intersection(const KeyRanges& a, const KeyRanges& b) {
  KeyRanges both;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const IndexRange next = intersect(a[i], b[j]);
    if (!next.empty()) both.push_back(next);
    ++(a[i].past < b[j].past ? i : j);
  }
  return both;
}

KeyRanges union_of(KeyRanges a, const KeyRanges& b) {
  for (const IndexRange range : b) a.push_back(range);
  sort_and_merge(a);
  return a;
}

Coverage combined(Kind kind, Coverage a, Coverage b) {
  const Coverage low = std::min(a, b), high = std::max(a, b);
  if (kind == Kind::both)
    return low == Coverage::empty ? low : high == low ? low : Coverage::partial;
  return high == Coverage::full ? high : low == high ? low : Coverage::partial;
}

// Evaluates an expression in postfix order on a stack.
template <class T, class Steps, class Leaf, class Combine>
T evaluate(const Steps& steps, Leaf leaf, Combine combine) {
  SmallVector<T, kInlineValues> values;
  for (const auto& step : steps) {
    if (step.rule) {
      values.push_back(leaf(*step.rule));
      continue;
    }
    const T last = values.back();
    values.resize(values.size() - 1);
    values.back() = combine(step.kind, values.back(), last);
  }
  return values.back();
}

}  // namespace

BoundMask::BoundMask(const MaskTerm& term, const MaskShape& shape) { add(term, shape); }

void BoundMask::add(const MaskTerm& term, const MaskShape& shape) {
  if (term.kind == Kind::part) {
    steps_.push_back({term.kind, term.part->bind(shape)});
  } else {
    add(*term.left, shape);
    add(*term.right, shape);
    steps_.push_back({term.kind, nullptr});
  }
}

KeyRanges BoundMask::key_ranges(MaskHead head, IndexRange queries) const {
  return evaluate<KeyRanges>(
      steps_,
      [&](const MaskRule& rule) {
        KeyRanges keys;
        rule.key_ranges(head, queries, keys);
        sort_and_merge(keys);
        return keys;
      },
      [](Kind kind, const KeyRanges& a, const KeyRanges& b) {
        return kind == Kind::both ? intersection(a, b) : union_of(a, b);
      });
}

Coverage BoundMask::coverage(MaskHead head, IndexRange queries, IndexRange keys) const {
  return evaluate<Coverage>(
      steps_, [&](const MaskRule& rule) { return rule.coverage(head, queries, keys); }, combined);
}

uint64_t BoundMask::row_bits(MaskHead head, int64_t query, int64_t key) const {
  return evaluate<uint64_t>(
      steps_, [&](const MaskRule& rule) { return rule.row_bits(head, query, key); },
      [](Kind kind, uint64_t a, uint64_t b) { return kind == Kind::both ? a & b : a | b; });
}

int64_t BoundMask::read_tile(MaskHead head, IndexRange queries, IndexRange keys,
                             std::span<uint64_t> rows) const {
  const auto count = static_cast<size_t>(queries.size());
  // A stack of results of `count` words.
  std::vector<uint64_t> words;
  for (const Step& step : steps_) {
    if (step.rule) {
      words.resize(words.size() + count);
      step.rule->read_rows(head, queries, keys.first, words.data() + words.size() - count);
      continue;
    }
    const uint64_t* const last = words.data() + words.size() - count;
    uint64_t* const before = words.data() + words.size() - 2 * count;
    for (size_t i = 0; i < count; ++i) {
      before[i] = step.kind == Kind::both ? before[i] & last[i] : before[i] | last[i];
    }
    words.resize(words.size() - count);
  }
  const uint64_t inside = bits_of(keys, keys.first);
  int64_t pairs = 0;
  for (size_t i = 0; i < count; ++i) {
    rows[i] = words[i] & inside;
    pairs += std::popcount(rows[i]);
  }
  return pairs;
}

}  // namespace sash
