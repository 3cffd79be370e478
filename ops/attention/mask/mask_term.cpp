#include <string_view>

#include "../../../core/error.h"
#include "mask_part.h"

/// Expressions of parts: joined, balanced, compared and written.
namespace sash {
namespace {

using Kind = MaskTerm::Kind;

constexpr int kMaxHeight = 1000;  // bounds the recursion over an expression
constexpr uint64_t kBase = 0x9e3779b97f4a7c15;
constexpr int64_t kMaxExtent = int64_t{1} << 40;

// The finaliser of S. Vigna's splitmix64.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A run of operands joined by `kind`. The hash is a polynomial over the operands, so it does not
// depend on how the run is nested.
struct Run {
  int height;
  uint64_t hash, base;
};

Run run_of(const MaskTerm& term, Kind kind) {
  if (term.kind == kind) return {term.run_height, term.hash, term.base};
  return {0, mixed(term.hash + static_cast<uint64_t>(term.kind)), kBase};
}

int run_height(const MaskTermPtr& term, Kind kind) { return run_of(*term, kind).height; }

MaskTermPtr pair_of(Kind kind, const MaskTermPtr& left, const MaskTermPtr& right) {
  const Run a = run_of(*left, kind), b = run_of(*right, kind);
  const int height = std::max(left->height, right->height) + 1;
  if (height > kMaxHeight) {
    throw ValueError("attention_mask",
                     "an expression nested at most " + std::to_string(kMaxHeight) + " deep",
                     "a deeper one");
  }
  return std::make_shared<const MaskTerm>(MaskTerm{.kind = kind,
                                                   .left = left,
                                                   .right = right,
                                                   .height = height,
                                                   .run_height = std::max(a.height, b.height) + 1,
                                                   .hash = a.hash * b.base + b.hash,
                                                   .base = a.base * b.base});
}

// The same, balanced: AVL rotations for heights that differ by up to 2.
MaskTermPtr rotated(Kind kind, const MaskTermPtr& left, const MaskTermPtr& right) {
  const int a = run_height(left, kind), b = run_height(right, kind);
  const auto pair = [kind](const MaskTermPtr& x, const MaskTermPtr& y) {
    return pair_of(kind, x, y);
  };
  if (a > b + 1) {
    const MaskTermPtr &outer = left->left, &inner = left->right;
    if (run_height(outer, kind) >= run_height(inner, kind)) return pair(outer, pair(inner, right));
    return pair(pair(outer, inner->left), pair(inner->right, right));
  }
  if (b > a + 1) {
    const MaskTermPtr &inner = right->left, &outer = right->right;
    if (run_height(outer, kind) >= run_height(inner, kind)) return pair(pair(left, inner), outer);
    return pair(pair(left, inner->left), pair(inner->right, outer));
  }
  return pair(left, right);
}

void append(std::string& text, const MaskTerm& term, Kind around) {
  if (term.kind == Kind::part) {
    text += term.part->text();
    return;
  }
  const bool enclosed = around == Kind::both && term.kind == Kind::either;
  if (enclosed) text += '(';
  append(text, *term.left, term.kind);
  text += term.kind == Kind::both ? " & " : " | ";
  append(text, *term.right, term.kind);
  if (enclosed) text += ')';
}

}  // namespace

MaskTermPtr leaf(std::shared_ptr<const MaskPart> part) {
  const std::string text = part->text();
  return std::make_shared<const MaskTerm>(MaskTerm{.part = std::move(part),
                                                   .hash = std::hash<std::string_view>()(text),
                                                   .shows_all = text == "dense"});
}

MaskTermPtr join(Kind kind, const MaskTermPtr& left, const MaskTermPtr& right) {
  const int a = run_height(left, kind), b = run_height(right, kind);
  if (a > b + 1) return rotated(kind, left->left, join(kind, left->right, right));
  if (b > a + 1) return rotated(kind, join(kind, left, right->left), right->right);
  return pair_of(kind, left, right);
}

bool is_same(const MaskTermPtr& a, const MaskTermPtr& b) {
  if (a == b) return true;
  return a->kind == b->kind && a->hash == b->hash && to_string(*a) == to_string(*b);
}

std::string to_string(const MaskTerm& term) {
  std::string text;
  append(text, term, term.kind);
  return text;
}

MaskExtents extents_of(const MaskTerm& term) {
  MaskExtents all;
  for_each_part(term, [&](const MaskPart& part) {
    const MaskExtents one = part.extents();
    all.per_batch = all.per_batch || one.per_batch;
    all.per_head = all.per_head || one.per_head;
  });
  return all;
}

std::optional<KeyWindow> window_of(const MaskTerm& term) {
  if (term.kind == MaskTerm::Kind::part) return term.part->window();
  const auto a = window_of(*term.left), b = window_of(*term.right);
  if (!a || !b) return std::nullopt;
  // Both windows hold the query's own position, so there is no gap between them.
  if (term.kind == MaskTerm::Kind::both) {
    return KeyWindow{std::min(a->left, b->left), std::min(a->right, b->right)};
  }
  return KeyWindow{std::max(a->left, b->left), std::max(a->right, b->right)};
}

MaskShape shape_of(const MaskTerm& term, int64_t queries, int64_t keys) {
  MaskShape shape{1, 1, queries, keys};
  for_each_part(term, [&](const MaskPart& part) { part.fit(shape); });
  return shape;
}

void check_mask_shape(const MaskShape& shape) {
  const Shape whole{shape.batch, shape.heads, shape.queries, shape.keys};
  for (const int64_t extent : whole) {
    if (extent >= 0 && extent <= kMaxExtent) continue;
    throw ValueError("attention_mask", "batches, heads, queries and keys in [0, 2^40]",
                     to_string(whole));
  }
}

}  // namespace sash
