#include "group_norm.h"

#include <array>

#include "../op.h"
#include "../reduce/moments.h"
#include "../shape/rearrange.h"
#include "layer_norm.h"
#include "scaled.h"

namespace sash {
namespace {

constexpr const char* kGroupNorm = "group_norm";

/// From plain ops.
Tensor grouped(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t groups,
               double eps) {
  const int64_t rows = x.size(0) * groups, length = x.numel() / rows;
  const Tensor z = composite::layer_norm(x.reshape({rows, length}), {length}, {}, {}, eps);
  Shape channels = Shape::filled(x.rank() - 1, 1);
  channels[0] = x.size(1);
  const Tensor y = weight.defined() ? z.view(x.shape()) * weight.view(channels) : z.view(x.shape());
  return bias.defined() ? y + bias.view(channels) : y;
}

/// Numbers of the groups [N G] for each channel [N C], and sums of those of channels for each
/// group.
struct Groups {
  int64_t items, groups, channels;

  Tensor spread(const Tensor& values) const {
    return repeat_interleave(values, channels / groups, 0);
  }
  Tensor sums(const Tensor& values) const {
    return sum(values.view({items * groups, channels / groups}), {1});
  }
  /// Weight or bias [C] for each item; `otherwise` if there is none.
  Tensor each(const Tensor& values, const Tensor& like, double otherwise) const {
    return values.defined() ? values.detach().repeat(items) : full_like(like, otherwise);
  }
};

/// What the elements of a channel are normalised by, [N C].
struct GroupStatistics {
  Tensor mean, rstd;
};

/// Of y = z weight + bias with z = (x - mean) rstd: dweight = sum g z, dbias = sum g and, with the
/// means of g' = g weight and g' z over a group, dx = rstd (g' - mean g' - z mean g' z).
Gradients group_gradients(const Tensor& x, const Tensor& weight, const GroupStatistics& by,
                          const Groups& of, const Tensor& g, const Backward& pass) {
  const Tensor none = zeros_like(by.mean), scale = of.each(weight, by.mean, 1);
  const Shape lines{of.items * of.channels, x.numel() / (of.items * of.channels)};
  const Tensor products = sum(detail::scaled(x, by.mean, by.rstd, none).mul_(g).view(lines), {1});
  const Tensor totals = sum(g.reshape(lines), {1});
  Gradients found(3);
  if (pass.needs(1)) found[1] = sum(products.view({of.items, of.channels}), {0});
  if (pass.needs(2)) found[2] = sum(totals.view({of.items, of.channels}), {0});
  if (!pass.needs(0)) return found;
  const auto count = static_cast<double>(x.numel() / (of.items * of.groups));
  const auto mean_of = [&](const Tensor& sums) { return of.spread(of.sums(sums * scale) / count); };
  found[0] = detail::scaled(g, none, scale * by.rstd, -by.rstd * mean_of(totals));
  found[0].sub_(detail::scaled(x, by.mean, square(by.rstd) * mean_of(products), none));
  return found;
}

}  // namespace

Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  if (Autocast cast(kGroupNorm); cast) {
    return group_norm(cast(x), groups, cast(weight), cast(bias), eps);
  }
  check_floating(kGroupNorm, x);
  check_min_rank(kGroupNorm, x, 2);
  if (groups < 1) throw ValueError(kGroupNorm, "at least 1 group", std::to_string(groups));
  const int64_t channels = x.size(1);
  if (channels % groups != 0) {
    throw ShapeError(kGroupNorm, "channels in " + std::to_string(groups) + " groups",
                     to_string(x.shape()));
  }
  check_not_negative(kGroupNorm, "eps", eps);
  check_parameter(kGroupNorm, x, weight, {channels});
  check_parameter(kGroupNorm, x, bias, {channels});
  if (x.numel() == 0) return x.clone();
  if (is_half(x.dtype())) {
    const auto wide = [](const Tensor& t) { return cast_to(t, DType::float32); };
    return group_norm(wide(x), groups, wide(weight), wide(bias), eps).to(x.dtype());
  }
  const Groups of{x.size(0), groups, channels};
  const auto [y, by] = unrecorded([&] {
    const int64_t rows = of.items * groups, length = x.numel() / rows;
    const auto [var, mean] =
        detail::moments(x.reshape({rows, length}), {rows, 1}, static_cast<double>(length));
    const GroupStatistics found{of.spread(mean.view(rows)), of.spread(rsqrt(var.view(rows) + eps))};
    return std::pair(detail::scaled(x, found.mean, of.each(weight, found.mean, 1) * found.rstd,
                                    of.each(bias, found.mean, 0)),
                     found);
  });
  return record(kGroupNorm, {x, weight, bias}, y,
                [x = save(x), weight = save(weight), bias = save(bias), by = by, of, eps](
                    Backward& pass, const Tensor& g) {
                  if (!pass.create_graph()) {
                    return group_gradients(pass(x), pass(weight), by, of, g, pass);
                  }
                  return gradients_of_composite(pass, g, grouped,
                                                std::array{pass(x), pass(weight), pass(bias)},
                                                of.groups, eps);
                });
}

}  // namespace sash
