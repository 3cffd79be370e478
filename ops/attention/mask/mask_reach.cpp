#include "mask_part.h"

/// The causal reach of expressions.
namespace sash {
namespace {

using Reach = std::optional<PositionReach>;

bool is_all(const CausalReach& a) { return a.exact && !a.recent; }
bool includes(const CausalReach& a, const CausalReach& b) {
  return *a.recent >= *b.recent && a.first >= b.first;
}

CausalReach both(const CausalReach& a, const CausalReach& b) {
  if (is_all(a)) return b;
  if (is_all(b)) return a;
  if (a.exact && b.exact && a.first == b.first) {
    return {.recent = std::min(a.recent, b.recent), .first = a.first};
  }
  if (a.exact && b.exact && includes(a, b)) return b;
  if (a.exact && b.exact && includes(b, a)) return a;
  return {.exact = false};
}

CausalReach either(const CausalReach& a, const CausalReach& b) {
  if (is_all(a)) return a;
  if (is_all(b)) return b;
  if (!a.exact || !b.exact) return {.exact = false};
  return {.recent = std::max(a.recent, b.recent), .first = std::max(a.first, b.first)};
}

Reach reach_of(const MaskTerm& term) {
  if (term.kind == MaskTerm::Kind::part) return term.part->reach();
  const Reach left = reach_of(*term.left), right = reach_of(*term.right);
  if (!left || !right) return std::nullopt;
  if (term.kind == MaskTerm::Kind::both) {
    return PositionReach{both(left->past, right->past), left->hides_later || right->hides_later};
  }
  return PositionReach{either(left->past, right->past), left->hides_later && right->hides_later};
}

}  // namespace

std::optional<CausalReach> AttentionMask::causal_reach() const {
  const Reach reach = reach_of(term());
  if (!reach || !reach->hides_later) return std::nullopt;
  // Tokens do not see themselves: only later ones are described.
  if (reach->past.recent == 0) return CausalReach{.exact = false};
  return reach->past;
}

}  // namespace sash
