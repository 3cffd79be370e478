#include "cdist.h"

#include "../op.h"
#include "../reduce/norm.h"
#include "matmul.h"

namespace sash {
namespace {

/// For p = 2, by one product. Squares below 0 are rounding errors. With w = g / d the gradient of
/// a_i is sum_j w_ij (a_i - b_j).
Tensor by_product(const Tensor& a, const Tensor& b) {
  const Tensor y = unrecorded([&] {
    Tensor squares = sum(square(a), {-1}, true) + sum(square(b), {-1}, true).mT();
    return sqrt(clamp(squares.sub_(matmul(a * 2, b.mT())), 0));
  });
  return record(
      "cdist", {a, b}, y,
      [a = save(a), b = save(b), y = save_output(y)](Backward& pass, const Tensor& g) {
        const Tensor d = pass(y), none = eq(d.detach(), 0);
        const Tensor w = masked_fill(g / masked_fill(d, none, 1), none, 0);
        const Tensor from = pass(a), to = pass(b);
        return gradients_of(
            pass, [&] { return sum_to(from * sum(w, {-1}, true) - matmul(w, to), from.shape()); },
            [&] {
              const Tensor v = w.mT();
              return sum_to(to * sum(v, {-1}, true) - matmul(v, from), to.shape());
            });
      });
}

}  // namespace

Tensor cdist(const Tensor& a, const Tensor& b, double p) {
  constexpr const char* op = "cdist";
  if (Autocast cast(op); cast) return cdist(cast(a), cast(b), p);
  check_floating_pair(op, a, b);
  check_min_rank(op, a, 2);
  check_min_rank(op, b, 2);
  if (a.size(-1) != b.size(-1)) {
    throw ShapeError(op, "a [..., M, D] and b [..., N, D] with one D", shapes_of(a, b));
  }
  if (!(p >= 0)) throw ValueError(op, "p of at least 0", to_text(p));
  check_room_for_axis(op, a);
  check_room_for_axis(op, b);
  if (is_half(a.dtype())) {
    return cdist(a.to(DType::float32), b.to(DType::float32), p).to(a.dtype());
  }
  constexpr int64_t few = 25;
  if (p == 2 && (a.size(-2) > few || b.size(-2) > few)) return by_product(a, b);
  const Tensor difference = a.unsqueeze(-2) - b.unsqueeze(-3);
  if (a.size(-1) == 0) return sum(difference, {-1});  // 0, for any p
  return norm(difference, p, {-1});
}

}  // namespace sash
