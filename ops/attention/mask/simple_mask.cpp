#include "simple_mask.h"

#include "mask_part.h"

namespace sash {
namespace {

// Adds what `term` hides to `mask`; false if that is something else.
bool add(const MaskTerm& term, SimpleMask& mask) {
  if (term.kind == MaskTerm::Kind::either) return false;
  if (term.kind == MaskTerm::Kind::both) return add(*term.left, mask) && add(*term.right, mask);
  const std::string text = term.part->text();
  if (text == "dense") return true;
  if (text == "causal") return mask.causal = true;
  if (!text.starts_with("key_lengths") || mask.key_lengths.defined()) return false;
  mask.key_lengths = term.part->tensors()[0];
  return true;
}

}  // namespace

std::optional<SimpleMask> simple_mask(const AttentionMask& mask) {
  SimpleMask simple;
  if (!add(mask.term(), simple)) return std::nullopt;
  return simple;
}

}  // namespace sash
