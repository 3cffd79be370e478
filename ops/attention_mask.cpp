#include "attention_mask.h"

#include "../tensor/factories.h"
#include "../tensor/grad_mode.h"
#include "checks.h"
#include "compare.h"

namespace sash {
namespace {

bool shows_all(const AttentionMask::Term& term) { return !term.causal && !term.visible.defined(); }

Tensor both(const Tensor& a, const Tensor& b) {
  if (!a.defined()) return b;
  return b.defined() ? logical_and(a, b) : a;
}

// Whether b shows everything that a shows, as far as handles tell.
bool includes(const AttentionMask::Term& b, const AttentionMask::Term& a) {
  return (!b.causal || a.causal) && (!b.visible.defined() || b.visible.is_same(a.visible));
}

Tensor dense_term(const AttentionMask::Term& term, int64_t queries, int64_t keys, Device device) {
  const TensorOptions options{.device = device};
  if (!term.causal) {
    const Tensor all = full({queries, keys}, true, {.dtype = DType::boolean, .device = device});
    return both(term.visible, all);
  }
  const Tensor last = arange(keys - queries, keys, 1, options).unsqueeze(1);
  return both(term.visible, le(arange(0, keys, 1, options).unsqueeze(0), last));
}

}  // namespace

AttentionMask::AttentionMask(const Tensor& visible) {
  check_defined("attention_mask", visible);
  check_dtype("attention_mask", visible, DType::boolean);
  terms_.push_back({false, visible});
}

AttentionMask AttentionMask::causal() {
  AttentionMask mask;
  mask.terms_[0].causal = true;
  return mask;
}

AttentionMask operator&(const AttentionMask& a, const AttentionMask& b) {
  AttentionMask mask;
  mask.terms_.clear();
  for (const AttentionMask::Term& x : a.terms_) {
    for (const AttentionMask::Term& y : b.terms_) {
      mask.terms_.push_back({x.causal || y.causal, both(x.visible, y.visible)});
    }
  }
  return mask;
}

AttentionMask operator|(const AttentionMask& a, const AttentionMask& b) {
  AttentionMask mask = a;
  for (const AttentionMask::Term& y : b.terms_) {
    bool known = false;
    for (const AttentionMask::Term& x : a.terms_) known = known || includes(x, y);
    if (shows_all(y)) return {};
    if (!known) mask.terms_.push_back(y);
  }
  return mask;
}

Tensor AttentionMask::to_dense(int64_t queries, int64_t keys, Device device) const {
  const NoGradGuard no_grad;
  Tensor dense;
  for (const Term& term : terms_) {
    const Tensor next = dense_term(term, queries, keys, device);
    dense = dense.defined() ? logical_or(dense, next) : next;
  }
  return dense;
}

AttentionMask::Term AttentionMask::compile(int64_t queries, int64_t keys, Device device) const {
  if (terms_.size() == 1) return terms_[0];
  return {false, to_dense(queries, keys, device)};
}

}  // namespace sash
