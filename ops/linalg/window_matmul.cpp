#include "window_matmul.h"

#include "../kernels/linalg.h"
#include "../op.h"

namespace sash {

namespace kernels {
constinit decltype(window_matmul) window_matmul{"window_matmul"};
constinit decltype(unwindow_matmul) unwindow_matmul{"unwindow_matmul"};
}  // namespace kernels

namespace {

using detail::Window;

constexpr int64_t kWidestWindow = int64_t{1} << 29;

// x [..., R, C] as kernels take it, [B, H, R, C]; copied if more than two leading axes cannot be
// merged.
Tensor four_axes(const Tensor& x) {
  if (x.rank() == 2) return x.unsqueeze(0).unsqueeze(0);
  return x.rank() == 3 ? x.unsqueeze(1) : x.flatten(0, -4);
}

// Parameters of a kernel call; `views` holds the view of the lengths.
kernels::WindowParams params_of(const Window& window, OptionalViews<1>& views) {
  return {window.left, window.right, views(window.lengths)};
}

// The window that a backward pass reads; throws if the lengths were written since.
struct SavedWindow {
  explicit SavedWindow(const Window& window)
      : left(window.left), right(window.right), lengths(save(window.lengths)) {}
  Window get(const Backward& pass) const { return {left, right, pass(lengths)}; }

  int64_t left, right;
  Saved lengths;
};

void check_operands(const char* op, const Tensor& a, const Tensor& b) {
  check_floating_pair(op, a, b);
  check_min_rank(op, a, 2);
  check_min_rank(op, b, 2);
}

void check_mask(const Tensor& mask, const Tensor& q) {
  if (!mask.defined()) return;
  check_same_device("window_matmul", q, mask);
  check_dtype("window_matmul", mask, DType::boolean);
}

}  // namespace

void detail::check_window(const char* op, const char* what, int64_t size) {
  if (size >= 0 && size <= kWidestWindow) return;
  throw ValueError(op, std::string(what) + " in [0, 2^29]", std::to_string(size));
}

Tensor detail::window_scores(const char* op, const Tensor& q, const Tensor& k, const Window& window,
                             double fill) {
  const Tensor a = empty(with_last(q, window.left + 1 + window.right), q.options());
  {
    const NoGradGuard no_grad;
    OptionalViews<1> views;
    run_kernel(kernels::window_matmul, four_axes(q), four_axes(k), params_of(window, views), fill,
               four_axes(a));
  }
  return record(op, {q, k}, a,
                [op, q = save_if(k.requires_grad(), q), k = save_if(q.requires_grad(), k),
                 window = SavedWindow(window)](Backward& pass, const Tensor& g) {
                  return gradients_of(
                      pass, [&] { return window_sums(op, g, pass(k), window.get(pass), false); },
                      [&] { return window_sums(op, g, pass(q), window.get(pass), true); });
                });
}

Tensor detail::window_sums(const char* op, const Tensor& a, const Tensor& v, const Window& window,
                           bool transposed) {
  const Tensor band = a.contiguous();
  const Tensor o = empty(v.shape(), v.options());
  {
    const NoGradGuard no_grad;
    OptionalViews<1> views;
    run_kernel(kernels::unwindow_matmul, four_axes(band), four_axes(v), params_of(window, views),
               transposed, four_axes(o));
  }
  return record(
      op, {band, v}, o,
      [op, transposed, band = save_if(v.requires_grad(), band), v = save_if(a.requires_grad(), v),
       window = SavedWindow(window)](Backward& pass, const Tensor& g) {
        const Window w = window.get(pass);
        return gradients_of(
            pass,
            [&] {
              const Tensor x = pass(v);
              return window_scores(op, transposed ? x : g, transposed ? g : x, w, 0);
            },
            [&] { return window_sums(op, pass(band), g, w, !transposed); });
      });
}

Tensor window_matmul(const Tensor& q, const Tensor& k, int64_t w,
                     const WindowMatmulOptions& options) {
  constexpr const char* op = "window_matmul";
  if (Autocast cast(op); cast) return window_matmul(cast(q), cast(k), w, options);
  check_operands(op, q, k);
  detail::check_window(op, "a window size", w);
  check_mask(options.mask, q);
  const Tensor rows = options.keys_as_rows ? k : k.mT();
  if (q.shape() != rows.shape()) {
    throw ShapeError(op,
                     options.keys_as_rows ? "q [..., M, N] and k [..., M, N]"
                                          : "q [..., M, N] and k [..., N, M]",
                     shapes_of(q, k));
  }
  const Tensor a = detail::window_scores(op, q, rows, {w, w}, options.fill);
  return options.mask.defined() ? masked_fill(a, logical_not(options.mask), options.fill) : a;
}

Tensor unwindow_matmul(const Tensor& a, const Tensor& v, int64_t w) {
  constexpr const char* op = "unwindow_matmul";
  if (Autocast cast(op); cast) return unwindow_matmul(cast(a), cast(v), w);
  check_operands(op, a, v);
  detail::check_window(op, "a window size", w);
  if (a.shape() != with_last(v, 2 * w + 1)) {
    throw ShapeError(op, "a [..., M, 2 w + 1] and v [..., M, N]", shapes_of(a, v));
  }
  return detail::window_sums(op, a, v, {w, w});
}

Tensor window_mask(int64_t m, int64_t w, Device device) {
  check_not_negative("window_mask", "a number of rows", m);
  detail::check_window("window_mask", "a window size", w);
  const TensorOptions options{.device = device};
  const Tensor key =
      arange(0, m, 1, options).unsqueeze(1) + arange(-w, w + 1, 1, options).unsqueeze(0);
  return logical_and(ge(key, 0), lt(key, m));
}

}  // namespace sash
